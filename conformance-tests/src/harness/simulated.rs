//! Faults for a client whose real link cannot be disturbed, by a layer around its backend.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Error, ErrorKind, Finding, LockAdmin,
    LockBackend, LockInfo, LockKey, Released, Renewal, Result, Seen, Victim,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::{Client, Fault, Faults, Unavailable};

impl Client {
    /// A client whose calls can be lost, delayed, held up and cut off, by a layer around `backend`.
    ///
    /// It sits above the driver, so it shows what the core and the store's statements do with an
    /// unknown outcome, but not how the driver copes with a broken connection: a harness that can
    /// disturb the real link should do that instead.
    pub fn with_simulated_faults(backend: impl LockBackend) -> Self {
        let link = Arc::new(Link::default());
        let faults = Simulated(Arc::clone(&link));
        Self::new(Layer { inner: Arc::new(backend), link }).with_faults(faults)
    }
}

#[derive(Debug)]
struct Link {
    state: watch::Sender<State>,
    planned: Mutex<VecDeque<Fault>>,
    requests: AtomicU64,
    struck: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Cut,
    Refused,
}

impl Default for Link {
    fn default() -> Self {
        let state = watch::Sender::new(State::Open);
        Self {
            state,
            planned: Mutex::default(),
            requests: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        }
    }
}

#[derive(Debug)]
struct Simulated(Arc<Link>);

#[async_trait]
impl Faults for Simulated {
    async fn inject(&self, fault: Fault) -> std::result::Result<(), Unavailable> {
        match fault {
            Fault::Partition => drop(self.0.state.send_replace(State::Cut)),
            Fault::Refuse => drop(self.0.state.send_replace(State::Refused)),
            Fault::Heal => drop(self.0.state.send_replace(State::Open)),
            // One entry for each request.
            Fault::SkipRequests(requests) => {
                (0..requests).for_each(|_| self.0.plan(Fault::SkipRequests(1)));
            }
            planned => self.0.plan(planned),
        }
        Ok(())
    }

    fn requests(&self) -> Option<u64> {
        Some(self.0.requests.load(Ordering::Relaxed))
    }

    fn struck(&self) -> Option<u64> {
        Some(self.0.struck.load(Ordering::Relaxed))
    }
}

impl Link {
    fn plan(&self, fault: Fault) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// The fault of the next request, which waits while the link is cut.
    async fn next(&self) -> Result<Option<Fault>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = self.planned.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.until(|state| *state != State::Cut).await;
        if *self.state.borrow() == State::Refused {
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        if fault.is_some_and(Fault::is_for_one_request) {
            self.struck.fetch_add(1, Ordering::Relaxed);
        }
        match fault {
            Some(Fault::LoseNextRequest) => Err(cut_off()),
            fault => Ok(fault),
        }
    }

    async fn until(&self, is_so: impl FnMut(&State) -> bool) {
        // The sender is borrowed here, so it cannot be gone.
        let _ = self.state.subscribe().wait_for(is_so).await;
    }

    /// A request not made by a claim.
    async fn pass<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.next().await? {
            Some(Fault::HoldNextRequest(delay)) => {
                tokio::time::sleep(delay).await;
                call.await
            }
            fault => after(fault, call.await).await,
        }
    }
}

/// The answer as the caller gets it.
async fn after<T>(fault: Option<Fault>, answer: Result<T>) -> Result<T> {
    match fault {
        Some(Fault::LoseNextReply) => return Err(cut_off()),
        Some(Fault::DelayNextReply(delay)) => tokio::time::sleep(delay).await,
        _ => {}
    }
    answer
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was cut").with_unknown_effect()
}

#[derive(Debug)]
struct Layer {
    inner: Arc<dyn LockBackend>,
    link: Arc<Link>,
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Layer {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let claim = self.inner.claim(request.clone())?;
        let (store, link) = (Arc::clone(&self.inner), Arc::clone(&self.link));
        Ok(Box::new(LayerClaim { claim, store, link, request, is_pushed: false }))
    }

    async fn ping(&self) -> Result<()> {
        self.link.pass(self.inner.ping()).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.link.pass(self.inner.look(keys)).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

impl Layer {
    fn below(&self) -> Result<&dyn LockAdmin> {
        self.inner.admin().ok_or_else(|| Error::unsupported("the store below has no inspection"))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for Layer {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.link.pass(self.below()?.inspect(key)).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        self.link.pass(self.below()?.list(prefix, name_start)).await
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        self.link.pass(self.below()?.force_release(key, victim)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.link.pass(self.below()?.diagnose()).await
    }

    async fn recover(&self) -> Result<()> {
        self.link.pass(self.below()?.recover()).await
    }
}

#[derive(Debug)]
struct LayerClaim {
    claim: Box<dyn Claim>,
    store: Arc<dyn LockBackend>,
    link: Arc<Link>,
    request: ClaimRequest,
    /// Whether there is a push that has not been told yet: whoever waits for it may give up while the link is cut.
    is_pushed: bool,
}

impl LayerClaim {
    /// When a call that begins now has to end.
    fn limit(&self) -> Instant {
        Instant::now() + self.request.call_timeout
    }

    /// A request that arrives late, even if its caller has given up: made by a task, and by another
    /// claim of the same owner, since this one may continue.
    async fn late<T, F>(
        &mut self,
        delay: Duration,
        call: impl FnOnce(Box<dyn Claim>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let call = call(self.store.claim(self.request.clone())?);
        let (send, answer) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            // The caller may have left.
            let _ = send.send(call.await);
        });
        answer.await.unwrap_or_else(|_| Err(cut_off()))
    }
}

/// What ends in time, as a call of a driver with a limit does (clause C12). Never a call of the claim
/// below, which runs to its end (clause C8).
async fn bounded<T>(until: Instant, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| {
        let why = "the store did not answer within the call timeout";
        Err(Error::new(ErrorKind::NoAnswer, why).with_unknown_effect())
    })
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Claim for LayerClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let until = self.limit();
        match bounded(until, self.link.next()).await? {
            Some(Fault::HoldNextRequest(delay)) => {
                let late = self.late(delay, |mut claim| async move { claim.try_acquire().await });
                bounded(until, late).await
            }
            fault => bounded(until, after(fault, self.claim.try_acquire().await)).await,
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let until = self.limit();
        match bounded(until, self.link.next()).await? {
            Some(Fault::HoldNextRequest(delay)) => {
                let late = self.late(delay, |mut claim| async move { claim.renew().await });
                bounded(until, late).await
            }
            fault => bounded(until, after(fault, self.claim.renew().await)).await,
        }
    }

    async fn check(&mut self) -> Result<Renewal> {
        let until = self.limit();
        let fault = bounded(until, self.link.next()).await?;
        bounded(until, after(fault, self.claim.check().await)).await
    }

    async fn release(&mut self) -> Result<Released> {
        let until = self.limit();
        match bounded(until, self.link.next()).await? {
            Some(Fault::HoldNextRequest(delay)) => {
                let late = self.late(delay, |mut claim| async move { claim.release().await });
                bounded(until, late).await
            }
            fault => bounded(until, after(fault, self.claim.release().await)).await,
        }
    }

    async fn changed(&mut self) -> Result<()> {
        if !self.is_pushed {
            self.claim.changed().await?;
            self.is_pushed = true;
        }
        self.link.until(|state| *state == State::Open).await;
        self.is_pushed = false;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let until = self.limit();
        let fault = bounded(until, self.link.next()).await?;
        bounded(until, after(fault, self.claim.detach().await)).await
    }
}

#[cfg(test)]
mod tests {
    use lock_core::memory::MemoryBackend;
    use lock_core::{OsRng, OwnerId};
    use tokio::time::timeout;

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_push_that_nobody_waited_for_is_told_when_the_link_is_healed() {
        let store = MemoryBackend::queued();
        let Client { backend, faults } = Client::with_simulated_faults(store.client());
        let faults = faults.unwrap();
        let request = || {
            let key = LockKey::new("", "lock").unwrap();
            ClaimRequest::new(key, OwnerId::generate(&OsRng).unwrap(), TTL).with_wait(true)
        };
        let mut holder = store.claim(request()).unwrap();
        holder.try_acquire().await.unwrap();
        let mut waiter = backend.claim(request()).unwrap();
        assert!(matches!(waiter.try_acquire().await.unwrap(), Attempt::Busy(_)));
        faults.inject(Fault::Partition).await.unwrap();
        holder.release().await.unwrap();
        assert!(timeout(TTL / 60, waiter.changed()).await.is_err(), "the link is cut");
        faults.inject(Fault::Heal).await.unwrap();
        timeout(TTL / 60, waiter.changed()).await.unwrap().unwrap();
        assert!(timeout(TTL / 60, waiter.changed()).await.is_err(), "it is told once");
        assert!(matches!(waiter.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    }
}
