//! A store with two holders in one run of five, and one that panics where nobody waits: the cases that see it say so
//! in the words that nothing excuses.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{MemoryHarness, run};
use lock_core::{
    Attempt, Capabilities, Claim, ClaimRequest, FencingToken, LockAdmin, LockBackend, LockKey,
    Released, Renewal, Result, Seen,
};

/// What a case says that has seen two holders, or a falling fence.
const WORDS: &[&str] = &[
    "another client could take",
    "another client got the lock",
    "two clients hold",
    "two claims hold",
    "two guards of one lock",
    "tokens granted are",
    "does not rise",
    "granted a lock that is held",
    "two holders",
    "should hold",
    "third permit",
];

/// The memory store, but for how it makes a claim.
struct Altered<F> {
    inner: Arc<dyn LockBackend>,
    claim: F,
}

impl<F> fmt::Debug for Altered<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl<F> LockBackend for Altered<F>
where
    F: Fn(&dyn LockBackend, ClaimRequest) -> Result<Box<dyn Claim>> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "altered"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        (self.claim)(&*self.inner, request)
    }

    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.inner.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin()
    }
}

/// A claim that is told that it has a lock that another one holds.
#[derive(Debug)]
struct Given {
    inner: Box<dyn Claim>,
    ttl: Duration,
}

#[async_trait]
impl Claim for Given {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let answer = self.inner.try_acquire().await?;
        Ok(match answer {
            Attempt::Busy(_) => {
                Attempt::Granted { token: FencingToken::answered(1)?, valid_for: Some(self.ttl) }
            }
            answer => answer,
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.inner.renew().await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.inner.check().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.inner.release().await
    }

    async fn changed(&mut self) -> Result<()> {
        self.inner.changed().await
    }
}

#[test]
fn two_holders_in_one_run_of_five_are_never_excused() {
    let (mut seen, mut excused) = (0, Vec::new());
    for first in 0..5 {
        let wrap = move |inner| -> Arc<dyn LockBackend> {
            let claims = AtomicUsize::new(first);
            let claim = move |inner: &dyn LockBackend, request: ClaimRequest| {
                let (is_generous, ttl) = (claims.fetch_add(1, Relaxed) % 5 == 4, request.ttl);
                let inner = inner.claim(request)?;
                let claim: Box<dyn Claim> =
                    if is_generous { Box::new(Given { inner, ttl }) } else { inner };
                Ok(claim)
            };
            Arc::new(Altered { inner, claim })
        };
        let report = run(MemoryHarness::queued().wrapped("generous", wrap), |_| true);
        for (case, told) in report.failed() {
            if WORDS.iter().any(|words| told.contains(words)) {
                seen += 1;
                if !told.contains("\nviolated: ") {
                    excused.push(format!("{case}: {told}"));
                }
            }
        }
    }
    assert!(seen > 50, "only {seen} cases have seen two holders");
    assert!(excused.is_empty(), "{} of {seen} are excused: {excused:#?}", excused.len());
}

#[test]
fn a_panic_that_nobody_waits_for_is_never_excused() {
    let claim = |inner: &dyn LockBackend, request| {
        tokio::spawn(async { panic!("on purpose") });
        inner.claim(request)
    };
    let wrap = move |inner| -> Arc<dyn LockBackend> { Arc::new(Altered { inner, claim }) };
    let harness = MemoryHarness::queued().wrapped("startled", wrap);
    let report = run(harness, |case| case == "c07_a_released_lock_is_free_at_once");
    let [(_, told)] = report.failed().collect::<Vec<_>>()[..] else { panic!("{report}") };
    assert!(told.contains("C7 not judged: "), "{told}");
    assert!(told.contains("\nseen: ") && told.contains("on purpose"), "{told}");
    assert!(told.contains("\nviolated: a task"), "{told}");
}
