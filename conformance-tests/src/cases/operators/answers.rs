//! C15: what an answer says besides its verdict is true, or left out.

use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClockInstant, ErrorKind, FencingToken, HolderInfo, LockBackend, OwnerId,
};

use crate::cases::operators::shown::grain;
use crate::cases::tools::free_soon;
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure};

cases! {
    c15_a_busy_answer_names_the_true_holder []
        "what a busy answer says about the holder is true of the current holder"
        covers [TryAcquire/New/OtherHolder, TryAcquire/Refused/OtherHolder];
    c15_a_wait_in_vain_names_the_true_holder []
        "what the error of a failed wait says about the holder is true of the current holder"
        guards [AcquireTimeout/Free/OtherHolder, AcquireTimeout/Waiting/Plain];
}

/// A holder with a label.
struct Labelled {
    claim: Box<dyn Claim>,
    owner: OwnerId,
    fence: FencingToken,
    label: Option<&'static str>,
    /// It has held the lock since some moment between these.
    since: (ClockInstant, ClockInstant),
}

impl Labelled {
    async fn take(cx: &Cx, backend: &dyn LockBackend, label: Option<&'static str>) -> Check<Self> {
        let request = cx.request("lock")?.with_label(label.map(Into::into));
        let owner = request.owner;
        let mut claim = backend.claim(request)?;
        let asked = cx.now();
        let fence = granted(&mut *claim).await?;
        Ok(Self { claim, owner, fence, label, since: (asked, cx.now()) })
    }

    /// Passes the lock on to one that has waited for it.
    async fn next(
        mut self,
        cx: &Cx,
        backend: &dyn LockBackend,
        label: Option<&'static str>,
    ) -> Check<Self> {
        let request = cx.request("lock")?.with_label(label.map(Into::into)).with_wait(true);
        let owner = request.owner;
        let mut claim = backend.claim(request)?;
        busy(cx, &mut *claim).await?;
        cx.sleep(cx.ttl() / 4).await;
        let asked = cx.now();
        self.claim.release().await?;
        let fence = granted(&mut *claim).await?;
        Ok(Self { claim, owner, fence, label, since: (asked, cx.now()) })
    }

    /// A try of another one, which began at `looked`, was answered that this one holds the lock.
    fn is_named(&self, cx: &Cx, answer: Attempt, looked: ClockInstant) -> Check {
        match answer {
            Attempt::Busy(busy) => match busy.holder {
                Some(shown) => self.is_shown(cx, &shown, looked),
                None => Ok(()),
            },
            other => cx.second_holder(format_args!(
                "another client should hold the lock, but a try is answered {other:?}"
            )),
        }
    }

    /// Only this holder is shown, or nothing, by a call that began at `looked` and has just ended.
    fn is_shown(&self, cx: &Cx, shown: &HolderInfo, looked: ClockInstant) -> Check {
        let HolderInfo { owner, label, fence, expires_in, held_for, .. } = shown;
        let (least, most) = (looked.since(self.since.1), cx.now().since(self.since.0));
        let (step, grain) = (cx.capabilities().ttl_step, grain(cx));
        let is_left = |left: Duration| !left.is_zero() && left + least <= cx.ttl() + step + grain;
        ensure!(owner.is_none_or(|owner| owner == self.owner), "another owner is shown: {shown:?}");
        ensure!(
            label.is_none() || label.as_deref() == self.label,
            "the holder is {:?}, and shown is {label:?}",
            self.label
        );
        ensure!(
            fence.is_none_or(|fence| fence == self.fence),
            "the fence is {}, and shown is {fence:?}",
            self.fence
        );
        ensure!(
            expires_in.is_none_or(is_left),
            "{least:?} after its grant, a lease of {:?} is shown to end in {expires_in:?}",
            cx.ttl()
        );
        ensure!(
            held_for.is_none_or(|held| held + grain >= least && held <= most + cx.skew()),
            "a hold of {least:?} to {most:?} is shown to last for {held_for:?}"
        );
        Ok(())
    }
}

async fn c15_a_busy_answer_names_the_true_holder(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    for wait in [false, true] {
        let mut waiter = b.claim(cx.request("lock")?.with_wait(wait))?;
        // The same claim tries while one holds the lock, and while the next one does.
        for label in [Some("host-7/42 ünï"), None, Some("host-8")] {
            let mut holder = Labelled::take(&cx, &*a, label).await?;
            cx.sleep(cx.ttl() / 20).await;
            let looked = cx.now();
            holder.is_named(&cx, waiter.try_acquire().await?, looked)?;
            if wait {
                waiter.release().await?;
                waiter = b.claim(cx.request("lock")?.with_wait(wait))?;
            }
            holder.claim.release().await?;
        }
    }
    let first = Labelled::take(&cx, &*a, Some("host-7")).await?;
    let mut holder = first.next(&cx, &*b, Some("host-8")).await?;
    let looked = cx.now();
    holder.is_named(&cx, cx.claim(&a, "lock")?.try_acquire().await?, looked)?;
    // Whoever waits is not the holder.
    let request = cx.request("lock")?.with_label(Some("host-9".to_owned())).with_wait(true);
    let mut waiter = a.claim(request)?;
    busy(&cx, &mut *waiter).await?;
    let looked = cx.now();
    holder.is_named(&cx, cx.claim(&a, "lock")?.try_acquire().await?, looked)?;
    waiter.release().await?;
    holder.claim.release().await?;
    Ok(())
}

async fn c15_a_wait_in_vain_names_the_true_holder(cx: Cx) -> Check {
    let (backend, locks) = (cx.backend().await?, cx.locks().await?);
    for label in [Some("host-7/42 ünï"), None, Some("host-8")] {
        let mut holder = Labelled::take(&cx, &*backend, label).await?;
        for limit in [Duration::ZERO, cx.ttl() / 4] {
            let looked = cx.now();
            match locks.named("lock")?.acquire_timeout(limit).await {
                Ok(_second) => return cx.not_alone("lock", 2, "two holders of one lock"),
                Err(error) if error.kind() == ErrorKind::NotAcquired => {
                    if let Some(shown) = error.holder() {
                        holder.is_shown(&cx, shown, looked)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        holder.claim.release().await?;
        // The place of a wait that was answered at its deadline is given up behind that.
        free_soon(&cx, &backend, "lock", "after its holder and all who waited have left").await?;
    }
    Ok(())
}
