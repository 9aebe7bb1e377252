//! What a case works with: one store, its clients, and time.

pub(crate) mod cancel;
pub(crate) mod child;
pub(crate) mod history;
pub(crate) mod register;
pub(crate) mod seed;
pub(crate) mod witness;

#[cfg(test)]
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Capabilities, Claim, ClaimRequest, Clock, ClockInstant, Error, FencingToken,
    LockBackend, LockKey, Locks, LocksBuilder, OsRng, OwnerId, Sleep, SystemClock,
};
use tokio::time::Instant;

use crate::context::witness::Witness;
use crate::runner::check::{Check, Stop, fail};
use crate::{Client, Fault, Faults, Harness, Store, Time};

/// The context of one case. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Cx(Arc<Inner>);

/// The context of a case that may have ended: it does not keep the store.
#[derive(Clone, Debug)]
pub(crate) struct WeakCx(Weak<Inner>);

impl WeakCx {
    pub(crate) fn upgrade(&self) -> Option<Cx> {
        self.0.upgrade().map(Cx)
    }
}

struct Inner {
    time: Time,
    store: Box<dyn Store>,
    clock: SuiteClock,
    capabilities: Capabilities,
    prefix: String,
    /// A fault may live in the value that arranges it, such as a proxy, while a case keeps only the
    /// backend.
    faults: Mutex<Vec<Arc<dyn Faults>>>,
    /// The last fault of each link.
    meant: Mutex<Vec<Arc<Meant>>>,
    witness: Witness,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("store", &self.store).finish_non_exhaustive()
    }
}

/// How often the first client of a case tries to connect.
const CONNECTS: u32 = 3;

/// A client that has made no request for so long is at rest.
const MOMENT: Duration = Duration::from_millis(30);
/// How many moments are given to a client to come to rest.
const MOST_MOMENTS: u32 = 40;

impl Cx {
    /// Starts a fresh store for one case, which may disturb the servers only if it has them `alone`.
    pub(crate) async fn start(
        harness: &dyn Harness,
        alone: bool,
    ) -> Result<Self, crate::Unavailable> {
        let time = harness.time();
        let clock = SuiteClock(match time {
            Time::Virtual => Arc::new(TokioClock::default()),
            Time::Real => SuiteClock::real().0,
        });
        let store = if alone { harness.start_alone().await? } else { harness.start().await? };
        let mut first = store.client().await;
        // A server that has just started may be slow to answer.
        for _ in 1..CONNECTS {
            if first.as_ref().is_err_and(Error::is_retryable) {
                first = store.client().await;
            }
        }
        let capabilities = first?.backend.capabilities();
        let prefix = store.prefix();
        LockKey::new(prefix.as_str(), "any")?;
        let (faults, meant) = (Mutex::default(), Mutex::default());
        let witness = Witness::new(clock.clone());
        let inner = Inner { time, store, clock, capabilities, prefix, faults, meant, witness };
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn downgrade(&self) -> WeakCx {
        WeakCx(Arc::downgrade(&self.0))
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.0.time == Time::Virtual
    }

    // --- time ---

    pub(crate) fn now(&self) -> ClockInstant {
        self.0.clock.now()
    }

    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        self.0.clock.sleep(duration)
    }

    pub(crate) fn sleep_until(&self, at: ClockInstant) -> Sleep {
        self.0.clock.sleep_until(at)
    }

    /// The ttl of most cases: short, but long enough that a busy machine does not spoil it.
    pub(crate) fn ttl(&self) -> Duration {
        self.round(Duration::from_secs(if self.is_virtual() { 1 } else { 2 }))
    }

    /// A ttl that does not run out while a case runs.
    pub(crate) fn long_ttl(&self) -> Duration {
        self.round(Duration::from_secs(60))
    }

    /// `ttl` rounded up to what the store can keep, as the core does.
    pub(crate) fn round(&self, ttl: Duration) -> Duration {
        let step = self.0.capabilities.ttl_step.as_nanos().max(1);
        let wanted = ttl.max(self.0.capabilities.min_ttl).as_nanos();
        let rounded = u64::try_from(wanted.div_ceil(step) * step).unwrap_or(u64::MAX);
        let rounded = Duration::from_nanos(rounded);
        self.0.capabilities.max_ttl.map_or(rounded, |longest| rounded.min(longest))
    }

    /// How much later than promised something may be seen: timers, polls and, in real time, a busy
    /// machine.
    pub(crate) fn slack(&self) -> Duration {
        if self.is_virtual() { Duration::from_millis(200) } else { Duration::from_millis(1500) }
    }

    /// How much longer than its ttl a lease may seem to last: one step of the store's clock, plus
    /// the slack.
    pub(crate) fn lapse(&self) -> Duration {
        self.0.capabilities.ttl_step + self.slack()
    }

    /// When a lease of [`ttl`](Self::ttl) is over if it is not renewed.
    pub(crate) fn over(&self) -> Duration {
        self.ttl() + self.lapse()
    }

    /// How much later than its deadline a call may end.
    pub(crate) fn late(&self) -> Duration {
        if self.is_virtual() { Duration::from_millis(100) } else { self.slack() }
    }

    /// How late a timer may fire: tokio's has a granularity of 1 ms, and a busy machine may not run
    /// us at all for a while.
    pub(crate) fn tick(&self) -> Duration {
        if self.is_virtual() { Duration::from_millis(2) } else { Duration::from_millis(500) }
    }

    /// How much earlier than the core a case may have read the clock.
    pub(crate) fn skew(&self) -> Duration {
        if self.is_virtual() { Duration::ZERO } else { Duration::from_millis(100) }
    }

    // --- clients and locks ---

    pub(crate) async fn client(&self) -> Check<Client> {
        let client = self.0.store.client().await?;
        let declared = client.backend.capabilities();
        if declared != self.0.capabilities {
            // What the first one does not declare, no case looks at.
            return Err(Stop::hindered(format_args!(
                "the first client of the store declares {:?}, and a later one {declared:?}",
                self.0.capabilities
            )));
        }
        let mut faults = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.extend(client.faults.clone());
        drop(faults);
        Ok(client.map(|backend| self.0.witness.watch(backend)))
    }

    /// What the store was asked last.
    pub(crate) fn last_calls(&self) -> Vec<String> {
        self.0.witness.told()
    }

    /// What has passed between each client and the store last, if anybody has listened.
    pub(crate) fn last_messages(&self) -> Vec<String> {
        let secrets = self.0.store.secrets();
        let faults = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let links = faults.iter().map(|link| link.last_messages()).enumerate();
        let of_each = (MESSAGES / faults.len().max(1)).max(3);
        let told = |(nth, messages): (usize, Vec<String>)| {
            let (of, before) =
                (format!("client {}", nth + 1), messages.len().saturating_sub(of_each));
            messages.into_iter().skip(before).map(move |message| format!("{of}, {message}"))
        };
        links.flat_map(told).map(|message| without(&secrets, message)).collect()
    }

    /// Which calls of a store the case has made, and in which states.
    #[cfg(test)]
    pub(crate) fn made(&self) -> BTreeSet<(crate::matrix::Call, crate::matrix::State)> {
        self.0.witness.made()
    }

    /// Says that others than one have the lock: with no excuse if the store has promised it to `owners`
    /// until later than now, and else a slow machine may have outlasted a hold.
    pub(crate) fn not_alone<T>(&self, name: &str, owners: usize, seen: impl Display) -> Check<T> {
        self.not_alone_at(&self.key(name)?, owners, seen)
    }

    /// As [`not_alone`](Self::not_alone) with the key of the lock.
    pub(crate) fn not_alone_at<T>(
        &self,
        key: &LockKey,
        owners: usize,
        seen: impl Display,
    ) -> Check<T> {
        match self.0.witness.holders(key) >= owners {
            true => Err(Stop::violated(seen)),
            false => Err(Stop::failed(seen)),
        }
    }

    /// Says of a lock that others hold that somebody has got it: with no excuse if the store has promised
    /// any lock to two at this moment.
    pub(crate) fn second_holder<T>(&self, seen: impl Display) -> Check<T> {
        match self.0.witness.is_crowded() {
            true => Err(Stop::violated(seen)),
            false => Err(Stop::failed(seen)),
        }
    }

    pub(crate) async fn backend(&self) -> Check<Arc<dyn LockBackend>> {
        Ok(self.client().await?.backend)
    }

    /// A client with faults, or the reason there is none.
    pub(crate) async fn link(&self) -> Check<Link> {
        let client = self.client().await?;
        match client.faults {
            Some(faults) => {
                let meant = Arc::new(Meant { faults, last: Mutex::default() });
                let mut all = self.0.meant.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(Arc::clone(&meant));
                Ok(Link { backend: client.backend, meant })
            }
            None => Err(Stop::NotApplicable("this harness cannot disturb a client's link".into())),
        }
    }

    /// A client with faults that has made its first call, and all that it does besides: it may make more
    /// requests than a later one, or look after the store at the same time.
    pub(crate) async fn warm_link(&self, name: &str) -> Check<Link> {
        let link = self.link().await?;
        self.fence_if_free(&link.backend, name).await?;
        let mut made = link.requests().unwrap_or_default();
        for _ in 0..MOST_MOMENTS {
            self.sleep(MOMENT).await;
            let now = link.requests().unwrap_or_default();
            if now == made {
                break;
            }
            made = now;
        }
        Ok(link)
    }

    /// Whether each fault has come upon the call that it was meant for.
    pub(crate) fn all_have_struck(&self) -> Check {
        let all = self.0.meant.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().try_for_each(|meant| meant.has_struck())
    }

    pub(crate) fn builder(&self, backend: &Arc<dyn LockBackend>) -> LocksBuilder {
        let builder = Locks::builder(Arc::clone(backend)).clock(self.0.clock.clone());
        let builder = builder.prefix(self.0.prefix.as_str()).default_ttl(self.ttl());
        self.0.store.configure(builder)
    }

    pub(crate) fn locks_on(&self, backend: &Arc<dyn LockBackend>) -> Locks {
        self.builder(backend)
            .build()
            .expect("BUG: the prefix was checked when the store was started")
    }

    /// The locks of a new client.
    pub(crate) async fn locks(&self) -> Check<Locks> {
        Ok(self.locks_on(&self.backend().await?))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    pub(crate) fn key(&self, name: &str) -> Check<LockKey> {
        Ok(LockKey::new(self.0.prefix.as_str(), name)?)
    }

    /// A request for a lock with a new owner and the case's ttl, without waiting.
    pub(crate) fn request(&self, name: &str) -> Check<ClaimRequest> {
        self.request_for(name, self.ttl())
    }

    pub(crate) fn request_for(&self, name: &str, ttl: Duration) -> Check<ClaimRequest> {
        let owner = OwnerId::generate(&OsRng)?;
        Ok(ClaimRequest::new(self.key(name)?, owner, self.round(ttl))
            .with_call_timeout(self.ttl().max(Duration::from_secs(5))))
    }

    pub(crate) fn claim(
        &self,
        backend: &Arc<dyn LockBackend>,
        name: &str,
    ) -> Check<Box<dyn Claim>> {
        Ok(backend.claim(self.request(name)?)?)
    }

    pub(crate) fn waiting_claim(
        &self,
        backend: &Arc<dyn LockBackend>,
        name: &str,
    ) -> Check<Box<dyn Claim>> {
        Ok(backend.claim(self.request(name)?.with_wait(true))?)
    }

    /// A new claim that holds the lock, and its token.
    pub(crate) async fn held(
        &self,
        backend: &Arc<dyn LockBackend>,
        name: &str,
    ) -> Check<(Box<dyn Claim>, FencingToken)> {
        let mut claim = self.claim(backend, name)?;
        let token = granted(&mut *claim).await?;
        Ok((claim, token))
    }

    /// Whether a new claim gets the lock, which it releases again at once.
    pub(crate) async fn is_free(&self, backend: &Arc<dyn LockBackend>, name: &str) -> Check<bool> {
        Ok(self.fence_if_free(backend, name).await?.is_some())
    }

    /// Like [`is_free`](Self::is_free), but returns the token that it got.
    pub(crate) async fn fence_if_free(
        &self,
        backend: &Arc<dyn LockBackend>,
        name: &str,
    ) -> Check<Option<FencingToken>> {
        let mut claim = self.claim(backend, name)?;
        match claim.try_acquire().await? {
            Attempt::Granted { token, .. } => {
                claim.release().await?;
                Ok(Some(token))
            }
            Attempt::Busy { .. } => Ok(None),
            other => fail!("a probe was answered {other:?}"),
        }
    }

    /// Waits for at most `limit` until a new claim of another client gets the lock; returns how
    /// long it took.
    pub(crate) async fn freed_within(
        &self,
        backend: &Arc<dyn LockBackend>,
        name: &str,
        limit: Duration,
    ) -> Check<Option<Duration>> {
        let start = self.now();
        loop {
            // An attempt counts from its start: a slow answer may date from before the limit.
            let looked = self.now().since(start);
            if self.is_free(backend, name).await? {
                return Ok(Some(self.now().since(start)));
            }
            if looked >= limit {
                return Ok(None);
            }
            self.sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A client whose link can be disturbed.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) backend: Arc<dyn LockBackend>,
    meant: Arc<Meant>,
}

/// The faults of one link, of which the last must have struck before the next is arranged, and before the
/// case ends.
#[derive(Debug)]
struct Meant {
    faults: Arc<dyn Faults>,
    /// The last fault for one request, and how many had struck before it.
    last: Mutex<Option<(Fault, u64)>>,
}

impl Meant {
    fn has_struck(&self) -> Check {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (last, self.faults.struck()) {
            (Some((fault, before)), Some(now)) if now <= before => Err(Stop::missed(fault)),
            _ => Ok(()),
        }
    }

    fn expect(&self, fault: Option<Fault>) {
        let last = fault.zip(self.faults.struck());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}

impl Link {
    /// Arranges `fault`. One for a request must befall one that the case makes after this.
    pub(crate) async fn inject(&self, fault: Fault) -> Check {
        self.inject_into(1, fault).await
    }

    /// Arranges `fault` for as many requests, of which the case makes at least one.
    pub(crate) async fn inject_into(&self, requests: u32, fault: Fault) -> Check {
        self.meant.has_struck()?;
        if fault.is_for_one_request() {
            self.meant.expect(Some(fault));
        }
        for _ in 0..requests {
            self.meant.faults.inject(fault).await?;
        }
        Ok(())
    }

    /// Arranges `fault` for the request after `skip` others, if there are so many.
    pub(crate) async fn inject_after(&self, skip: u32, fault: Fault) -> Check {
        self.meant.faults.inject(Fault::SkipRequests(skip)).await?;
        self.meant.expect(None);
        Ok(self.meant.faults.inject(fault).await?)
    }

    /// How many of the faults for one request have befallen one, if anybody counts.
    pub(crate) fn struck(&self) -> Option<u64> {
        self.meant.faults.struck()
    }

    /// How many requests the client has made, or the reason why nobody knows.
    pub(crate) fn requests(&self) -> Check<u64> {
        self.meant.faults.requests().ok_or_else(|| {
            Stop::NotApplicable("this harness does not count a client's requests".into())
        })
    }
}

/// About so many messages are shown of all clients together.
const MESSAGES: usize = 60;

/// The longest message that is shown.
const SHOWN: usize = 160;

/// The beginning of a message, with stars for each secret.
fn without(secrets: &[String], message: String) -> String {
    let message = secrets.iter().fold(message, |text, secret| text.replace(secret, "***"));
    message.chars().take(SHOWN).collect()
}

/// A store with one writer for all locks tells a client that it is busy, too, when it could not look: it had no turn within
/// its time. A store that can look does not take so long.
const LONG_FOR_A_LOOK: Duration = Duration::from_millis(250);

/// Says if the answer to a try that began then was too long in coming to say anything of the lock.
pub(crate) fn could_look(begun: Instant) -> Check {
    if begun.elapsed() >= LONG_FOR_A_LOOK {
        return Err(Stop::late("the store was too busy to look at the lock"));
    }
    Ok(())
}

/// The token of an attempt that must be granted.
pub(crate) async fn granted(claim: &mut dyn Claim) -> Check<FencingToken> {
    let begun = Instant::now();
    match claim.try_acquire().await? {
        Attempt::Granted { token, .. } => Ok(token),
        other => {
            could_look(begun)?;
            fail!("try_acquire of a lock that should be free was answered {other:?}")
        }
    }
}

/// An attempt that must be refused.
pub(crate) async fn busy(cx: &Cx, claim: &mut dyn Claim) -> Check {
    match claim.try_acquire().await? {
        Attempt::Busy { .. } => Ok(()),
        other => cx.second_holder(format_args!(
            "try_acquire of a lock that another client should hold was answered {other:?}"
        )),
    }
}

/// The clock of a case, which its `Locks` share.
#[derive(Clone, Debug)]
pub(crate) struct SuiteClock(Arc<dyn Clock>);

impl SuiteClock {
    /// The system's clock, with its own timers.
    pub(crate) fn real() -> Self {
        Self(Arc::new(SystemClock::default()))
    }
}

impl Clock for SuiteClock {
    fn now(&self) -> ClockInstant {
        self.0.now()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        self.0.sleep_until(at)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use lock_core::memory::MemoryBackend;

    use super::*;
    use crate::Unavailable;

    /// Its link works as long as a value of it exists, as with a proxy.
    #[derive(Clone, Debug, Default)]
    struct Proxied(Arc<()>);

    #[async_trait]
    impl Faults for Proxied {
        async fn inject(&self, _: Fault) -> Result<(), Unavailable> {
            Ok(())
        }

        fn last_messages(&self) -> Vec<String> {
            vec!["AUTH correct-horse".to_owned(), "x".repeat(200)]
        }
    }

    #[async_trait]
    impl Store for Proxied {
        async fn client(&self) -> lock_core::Result<Client> {
            Ok(Client::new(MemoryBackend::queued()).with_faults(self.clone()))
        }

        fn secrets(&self) -> Vec<String> {
            vec!["correct-horse".to_owned()]
        }
    }

    #[async_trait]
    impl Harness for Proxied {
        fn name(&self) -> &str {
            "proxied"
        }

        fn time(&self) -> Time {
            Time::Real
        }

        async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
            Ok(Box::new(self.clone()))
        }
    }

    #[tokio::test]
    async fn messages_are_shown_without_secrets() {
        let cx = Cx::start(&Proxied::default(), false).await.unwrap();
        let _client = cx.client().await.unwrap();
        assert_eq!(
            cx.last_messages(),
            ["client 1, AUTH ***", &format!("client 1, {}", "x".repeat(150))]
        );
    }

    #[tokio::test]
    async fn a_proxy_lives_as_long_as_the_case_that_keeps_the_backend_only() {
        let harness = Proxied::default();
        let cx = Cx::start(&harness, false).await.unwrap();
        let before = Arc::strong_count(&harness.0);
        let backend = cx.backend().await.unwrap();
        assert_eq!(Arc::strong_count(&harness.0), before + 1, "the proxy ended with the client");
        drop((backend, cx));
        assert_eq!(Arc::strong_count(&harness.0), 1, "the proxy outlives the case");
    }
}
