//! Looks, and what they must show.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, ClaimRequest, Error, FencingToken, LockBackend, LockKey, OwnerId, Seen};

use crate::cases::tools::{answered, in_time};
use crate::context::{Cx, busy, granted};
use crate::runner::check::{Check, Demanded as _, Stop, ensure, ensure_exactly};

/// After so long the core drops a call that concerns no claim.
const LIMIT: Duration = Duration::from_secs(5);

/// The answer to a look at these names, which is dropped when it takes too long.
pub(crate) async fn answer_to_look(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    keys: &[LockKey],
) -> Result<Vec<Seen>, Error> {
    look_within(cx, LIMIT, backend, keys).await
}

/// The answer to a look that is dropped after this time.
pub(crate) async fn look_within(
    cx: &Cx,
    limit: Duration,
    backend: &Arc<dyn LockBackend>,
    keys: &[LockKey],
) -> Result<Vec<Seen>, Error> {
    in_time(cx, limit, backend.look(keys)).await
}

/// What a look at these names shows of each.
pub(crate) async fn look(
    cx: &Cx,
    backend: &Arc<dyn LockBackend>,
    keys: &[LockKey],
) -> Check<Vec<Seen>> {
    let mut seen = Vec::new();
    // A store in which other locks come and go may show no floor now and then.
    for _ in 0..20 {
        seen = answer_to_look(cx, backend, keys).await.demanded("a look")?;
        is_whole(keys, &seen)?;
        if seen.iter().all(|seen| !matches!(seen, Seen::Free { floor: None })) {
            break;
        }
    }
    Ok(seen)
}

/// Each name has its answer.
pub(crate) fn is_whole(keys: &[LockKey], seen: &[Seen]) -> Check {
    ensure_exactly!(
        seen.len() == keys.len(),
        "a look at {} names has {} answers",
        keys.len(),
        seen.len()
    );
    Ok(())
}

/// What a look at one name shows.
pub(crate) async fn look_at(cx: &Cx, backend: &Arc<dyn LockBackend>, key: &LockKey) -> Check<Seen> {
    Ok(look(cx, backend, std::slice::from_ref(key)).await?.remove(0))
}

/// A hold that lasts for longer than its case, unless it is ended.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) claim: Box<dyn Claim>,
    pub(crate) request: ClaimRequest,
    /// The first one of a block.
    pub(crate) fence: FencingToken,
}

/// A request for this lock, for longer than a case takes.
pub(crate) fn labelled(cx: &Cx, key: &LockKey, label: Option<&str>) -> Check<ClaimRequest> {
    let request = cx.request_for("any", cx.long_ttl())?;
    let mut request = request.with_label(label.map(ToOwned::to_owned));
    request.key = key.clone();
    Ok(request)
}

impl Holding {
    /// Takes the lock, which must be free.
    pub(crate) async fn take(
        cx: &Cx,
        backend: &Arc<dyn LockBackend>,
        key: &LockKey,
        label: Option<&str>,
    ) -> Check<Self> {
        Self::of(backend, labelled(cx, key, label)?).await
    }

    /// Makes this request, which must be granted.
    pub(crate) async fn of(backend: &Arc<dyn LockBackend>, request: ClaimRequest) -> Check<Self> {
        let mut claim = backend.claim(request.clone())?;
        let fence = granted(&mut *claim).await?;
        Ok(Self { claim, request, fence })
    }

    /// A look that began after the grant, and ended before the hold, shows it.
    pub(crate) fn is_shown(&self, cx: &Cx, seen: &Seen, when: &str) -> Check {
        let Self { request: ClaimRequest { key, label, .. }, fence, .. } = self;
        let told = format!(
            "{when}, {key:?} is held with the token {fence} and the label {label:?}, and a look shows {seen:?}"
        );
        match seen {
            Seen::Free { .. } => cx.not_alone_at(key, 1, told),
            seen => {
                ensure_exactly!(shows(seen, *fence, label.as_deref()), "{told}");
                Ok(())
            }
        }
    }

    /// As [`is_shown`](Self::is_shown), where its holder did not know of the grant yet: its label may be missing, and
    /// if the attempt was under way, its token may be missing or lower.
    pub(crate) fn is_shown_early(&self, cx: &Cx, seen: &Seen, when: &str) -> Check {
        let fence = Some(self.fence);
        match seen {
            Seen::Held { fence: shown, .. } if *shown < fence => Ok(()),
            Seen::Held { fence: shown, label: None } if *shown == fence => Ok(()),
            seen => self.is_shown(cx, seen, when),
        }
    }

    /// A look has shown the lock as held just before this hold was granted to a waiter, who may have been too slow
    /// to take its turn.
    pub(crate) fn is_expected(&self, seen: &Seen, when: &str) -> Check {
        let Self { request: ClaimRequest { key, label, .. }, fence, .. } = self;
        ensure!(
            shows(seen, *fence, label.as_deref()) || shows(seen, *fence, None),
            "{when}, {key:?} was granted to a waiter with the token {fence} and the label {label:?}, and a look has just shown {seen:?}"
        );
        Ok(())
    }

    /// Looks at it with this client.
    pub(crate) async fn is_seen(&self, cx: &Cx, by: &Arc<dyn LockBackend>, when: &str) -> Check {
        self.is_shown(cx, &look_at(cx, by, &self.request.key).await?, when)
    }

    /// Gives the lock up, and has this client look at it: nobody has it, and its floor is not below the token.
    pub(crate) async fn ends(
        mut self,
        cx: &Cx,
        by: &Arc<dyn LockBackend>,
        when: &str,
    ) -> Check<Option<FencingToken>> {
        // A fault that was meant for an earlier call may come upon this one.
        answered(cx, cx.ttl() * 2, async || self.claim.release().await).await?;
        floor(&look_at(cx, by, &self.request.key).await?, Some(self.fence.get()), when)
    }
}

/// The floor of a lock that nobody has, which no token so far may exceed; the last one is `last`.
pub(crate) fn floor(seen: &Seen, last: Option<u64>, when: &str) -> Check<Option<FencingToken>> {
    match seen {
        Seen::Free { floor } if floor.map(FencingToken::get) >= last => Ok(*floor),
        Seen::Free { floor } => Err(Stop::violated(format_args!(
            "{when}, the token {last:?} was given, and a look shows the floor {floor:?}"
        ))),
        _ => Err(Stop::violated(format_args!(
            "{when}, nobody has the lock, and a look shows {seen:?}"
        ))),
    }
}

/// A token that was given after a look is above the floor that it has shown.
pub(crate) fn is_above(floor: Option<FencingToken>, token: FencingToken, when: &str) -> Check {
    ensure_exactly!(
        Some(token) > floor,
        "{when}, a look has shown the floor {floor:?}, and then the token {token} was given"
    );
    Ok(())
}

/// A claim that waits for a lock that another one holds.
#[derive(Debug)]
pub(crate) struct InLine {
    pub(crate) claim: Box<dyn Claim>,
    request: ClaimRequest,
}

impl InLine {
    pub(crate) async fn enter(
        cx: &Cx,
        backend: &Arc<dyn LockBackend>,
        key: &LockKey,
        label: &str,
    ) -> Check<Self> {
        let request = labelled(cx, key, Some(label))?.with_wait(true);
        let mut claim = backend.claim(request.clone())?;
        busy(cx, &mut *claim).await?;
        Ok(Self { claim, request })
    }

    /// The hold before it, with the token `last`, has ended, and it is next. A look before it knows shows its
    /// hold, or a floor below its token if the store has not granted it yet.
    pub(crate) async fn follows(
        mut self,
        cx: &Cx,
        by: &Arc<dyn LockBackend>,
        last: FencingToken,
        when: &str,
    ) -> Check<Holding> {
        let before = holder(by, &self.request.key).await?;
        let seen = look_at(cx, by, &self.request.key).await?;
        let fence = granted(&mut *self.claim).await?;
        let was_granted = before == Some((self.request.owner, fence));
        let holding = self.has(fence);
        match &seen {
            seen if was_granted => holding.is_shown_early(cx, seen, when)?,
            Seen::Free { .. } => is_above(floor(&seen, Some(last.get()), when)?, fence, when)?,
            seen => holding.is_expected(seen, when)?,
        }
        holding.is_seen(cx, by, when).await?;
        Ok(holding)
    }

    /// It was granted this token.
    pub(crate) fn has(self, fence: FencingToken) -> Holding {
        let Self { claim, request } = self;
        Holding { claim, request, fence }
    }
}

/// Whether a look shows this hold.
fn shows(seen: &Seen, token: FencingToken, under: Option<&str>) -> bool {
    matches!(seen, Seen::Held { fence, label } if *fence == Some(token) && label.as_deref() == under)
}

/// The holder that the store shows to operators, with its token, if it shows that.
pub(crate) async fn holder(
    backend: &Arc<dyn LockBackend>,
    key: &LockKey,
) -> Check<Option<(OwnerId, FencingToken)>> {
    let Some(admin) = backend.admin() else { return Ok(None) };
    let holder = admin.inspect(key).await?.and_then(|info| info.holder);
    Ok(holder.and_then(|holder| holder.owner.zip(holder.fence)))
}
