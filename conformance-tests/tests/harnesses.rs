//! Harnesses that do not do what they say: no case may pass because its fault never came.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Client, Fault, Faults, Harness, MemoryHarness, Report, Store, Time, Unavailable, run,
};
use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, ErrorKind, LockBackend, LockKey, LocksBuilder, Result,
};

/// What a harness does not do, or does in another way than it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    /// Nothing is lost, delayed or held up.
    NoFaults,
    /// The same, and nobody counts what has come of it.
    UncountedFaults,
    NoPartition,
    NoRefusal,
    NoFreeze,
    NoRestart,
    LosesTheRequest,
    LosesTheReply,
    DelaysTheReply,
    HoldsTheRequest,
    /// No delay is longer than this.
    Capped(Duration),
    SkipsNone,
    SkipsOneMore,
    CountsNoRequests,
    PartitionRefuses,
    FreezeRefuses,
    FreezesWhoIsThere,
    /// Does none of this kind.
    Without(Fault),
    /// The same, and counts it as done.
    CountsWithout(Fault),
    SkipsOneLess,
    FreezesForAMoment,
    HealsNothing,
    BreaksNothing,
    BreaksAnother,
    BreaksAll,
    BreaksTwice,
    /// The first client declares less than the others.
    DeclaresLess,
    /// Heals a moment later than it says.
    HealsLater,
    /// A healed link is cut again a moment later.
    HealsForAMoment,
    /// The faults that are arranged come upon the requests of another client.
    DisturbsAnother,
    /// Two clients are one.
    GivesOneClient,
    /// A later client reaches another store.
    GivesAnotherStore,
    /// Requests are counted by tens.
    CountsInTens,
    BreaksLater,
    ThawsNothing,
    /// Where one answer is lost, the next one is, too.
    LosesTwo,
}

#[derive(Debug)]
struct Liar(MemoryHarness, Lie);

#[derive(Debug)]
struct LyingStore {
    inner: Arc<dyn Store>,
    lie: Lie,
    links: Mutex<Vec<Arc<dyn Faults>>>,
    first: Mutex<Option<Client>>,
}

/// How late one is that does a thing later than it says.
const LATER: Duration = Duration::from_millis(700);

#[derive(Debug)]
struct LyingFaults(Arc<dyn Faults>, Lie, AtomicU64);

#[async_trait]
impl Harness for Liar {
    fn name(&self) -> &str {
        "liar"
    }

    fn time(&self) -> Time {
        Time::Virtual
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let (inner, lie) = (Arc::from(self.0.start().await?), self.1);
        Ok(Box::new(LyingStore { inner, lie, links: Mutex::default(), first: Mutex::default() }))
    }
}

impl LyingStore {
    /// Does this to the links that there are.
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        let links = self.links.lock().unwrap().clone();
        for link in links {
            link.inject(fault).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for LyingStore {
    async fn client(&self) -> Result<Client> {
        let is_first = self.links.lock().unwrap().is_empty();
        let mut client = match self.lie {
            Lie::GivesAnotherStore if !is_first => {
                let other = MemoryHarness::queued().start().await;
                other
                    .map_err(|why| Error::new(ErrorKind::Unavailable, why.to_string()))?
                    .client()
                    .await?
            }
            _ => self.inner.client().await?,
        };
        let first = self.first.lock().unwrap().get_or_insert_with(|| client.clone()).clone();
        match self.lie {
            Lie::GivesOneClient => client = first,
            Lie::DisturbsAnother => client.faults = first.faults,
            _ => {}
        }
        let link = client.faults.clone().unwrap();
        self.links.lock().unwrap().push(Arc::clone(&link));
        client.faults = Some(Arc::new(LyingFaults(link, self.lie, AtomicU64::new(0))));
        if self.lie == Lie::DeclaresLess && is_first {
            client.backend = Arc::new(Unfair(client.backend));
        }
        Ok(client)
    }

    fn configure(&self, builder: LocksBuilder) -> LocksBuilder {
        self.inner.configure(builder)
    }

    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        match self.lie {
            Lie::BreaksNothing => Ok(()),
            Lie::BreaksAnother => self.inner.break_hold(&key.sibling("other")?).await,
            // It loses its data.
            Lie::BreaksAll => self.inner.restart().await,
            Lie::BreaksTwice => {
                self.inner.break_hold(key).await?;
                self.inner.break_hold(key).await
            }
            Lie::BreaksLater => {
                let (inner, key) = (Arc::clone(&self.inner), key.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(LATER).await;
                    inner.break_hold(&key).await
                });
                Ok(())
            }
            _ => self.inner.break_hold(key).await,
        }
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        match self.lie {
            Lie::NoFreeze => Ok(()),
            Lie::FreezeRefuses => self.inject(Fault::Refuse).await,
            Lie::FreezesWhoIsThere => self.inject(Fault::Partition).await,
            Lie::FreezesForAMoment => {
                self.inner.freeze().await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.inner.thaw().await
            }
            _ => self.inner.freeze().await,
        }
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        match self.lie {
            Lie::FreezeRefuses | Lie::FreezesWhoIsThere => self.inject(Fault::Heal).await,
            Lie::ThawsNothing => Ok(()),
            _ => self.inner.thaw().await,
        }
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        if self.lie == Lie::NoRestart { Ok(()) } else { self.inner.restart().await }
    }
}

impl LyingFaults {
    /// Does this a moment later.
    fn later(&self, fault: Fault) {
        let link = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            link.inject(fault).await
        });
    }
}

#[async_trait]
impl Faults for LyingFaults {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        let fault = match (self.1, fault) {
            (Lie::HealsNothing, Fault::Heal) => return Ok(()),
            (Lie::HealsLater, Fault::Heal) => {
                self.later(Fault::Heal);
                return Ok(());
            }
            (Lie::HealsForAMoment, Fault::Heal) => {
                self.later(Fault::Partition);
                fault
            }
            (_, Fault::Heal) => fault,
            (Lie::Without(not) | Lie::CountsWithout(not), _) if is_like(not, fault) => {
                self.2.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            (Lie::NoPartition, Fault::Partition) | (Lie::NoRefusal, Fault::Refuse) => return Ok(()),
            (Lie::PartitionRefuses, Fault::Partition) => Fault::Refuse,
            (_, Fault::Partition | Fault::Refuse) => fault,
            (Lie::NoFaults | Lie::UncountedFaults, _) => return Ok(()),
            (Lie::LosesTheRequest, Fault::LoseNextReply) => Fault::LoseNextRequest,
            (Lie::LosesTheReply, Fault::LoseNextRequest) => Fault::LoseNextReply,
            (Lie::DelaysTheReply, Fault::HoldNextRequest(by)) => Fault::DelayNextReply(by),
            (Lie::HoldsTheRequest, Fault::DelayNextReply(by)) => Fault::HoldNextRequest(by),
            (Lie::Capped(most), Fault::DelayNextReply(by)) => Fault::DelayNextReply(by.min(most)),
            (Lie::Capped(most), Fault::HoldNextRequest(by)) => Fault::HoldNextRequest(by.min(most)),
            (Lie::SkipsNone, Fault::SkipRequests(_)) => return Ok(()),
            (Lie::SkipsOneMore, Fault::SkipRequests(skip)) if skip > 0 => {
                Fault::SkipRequests(skip + 1)
            }
            (Lie::SkipsOneLess, Fault::SkipRequests(skip)) => {
                Fault::SkipRequests(skip.saturating_sub(1))
            }
            _ => fault,
        };
        if self.1 == Lie::LosesTwo && fault == Fault::LoseNextReply {
            self.0.inject(fault).await?;
        }
        self.0.inject(fault).await
    }

    fn requests(&self) -> Option<u64> {
        match self.1 {
            Lie::CountsNoRequests => Some(0),
            Lie::CountsInTens => self.0.requests().map(|made| made / 10 * 10),
            _ => self.0.requests(),
        }
    }

    fn struck(&self) -> Option<u64> {
        let not_done = self.2.load(Ordering::Relaxed);
        match self.1 {
            Lie::UncountedFaults => None,
            Lie::CountsWithout(_) => self.0.struck().map(|struck| struck + not_done),
            _ => self.0.struck(),
        }
    }

    fn connections(&self) -> Option<u64> {
        self.0.connections()
    }
}

/// Whether two faults differ at most in their length.
fn is_like(one: Fault, other: Fault) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

/// A client that does not say that it is fair.
#[derive(Debug)]
struct Unfair(Arc<dyn LockBackend>);

#[async_trait]
impl LockBackend for Unfair {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.fair = false;
        capabilities
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.0.claim(request)
    }

    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }
}

fn report(lie: Lie, filter: impl Fn(&str) -> bool) -> Report {
    run(Liar(MemoryHarness::queued(), lie), filter)
}

/// The cases that could not be judged.
fn unjudged(report: &Report) -> Vec<&'static str> {
    let failed = report.failed();
    failed.filter(|(_, told)| told.contains(" not judged: ")).map(|(case, _)| case).collect()
}

#[test]
fn a_harness_that_does_what_it_says_is_believed() {
    let report = report(Lie::None, |_| true);
    assert_eq!(report.failed().next(), None);
}

#[test]
fn a_fault_that_never_comes_is_no_pass() {
    let report = report(Lie::NoFaults, |_| true);
    let unjudged = unjudged(&report);
    assert!(unjudged.len() > 40, "only {unjudged:?}");
    for case in ["c02_many_lost_answers_make_one_entry", "c06_an_error_is_not_a_loss"] {
        assert!(unjudged.contains(&case), "{case} in {unjudged:?}");
    }
}

#[test]
fn what_is_not_done_is_noticed_by_a_control() {
    let (befalls, skips, acts) = (
        "c02_a_fault_befalls_the_next_call",
        "c02_a_fault_skips_as_many_requests_as_asked",
        "c02_an_answer_is_lost_after_the_store_has_acted",
    );
    let cut = "c06_a_link_that_is_cut_brings_no_answer";
    let frozen = "c06_a_frozen_store_brings_no_answer";
    let broken = "c06_a_hold_is_broken_and_no_other";
    let any = Duration::ZERO;
    for (lie, control) in [
        (Lie::CountsWithout(Fault::LoseNextRequest), befalls),
        (Lie::CountsWithout(Fault::LoseNextReply), befalls),
        (Lie::CountsWithout(Fault::DelayNextReply(any)), befalls),
        (Lie::CountsWithout(Fault::HoldNextRequest(any)), befalls),
        (Lie::Without(Fault::LoseNextReply), "c02_a_lost_reply_is_found_again"),
        (Lie::Without(Fault::HoldNextRequest(any)), befalls),
        (Lie::SkipsOneLess, skips),
        (Lie::FreezesForAMoment, frozen),
        (Lie::HealsNothing, cut),
        (Lie::BreaksNothing, broken),
        (Lie::BreaksAnother, broken),
        (Lie::BreaksAll, broken),
        (Lie::BreaksTwice, broken),
        (Lie::UncountedFaults, befalls),
        (Lie::Capped(Duration::from_millis(300)), befalls),
        (Lie::CountsNoRequests, befalls),
        (Lie::SkipsNone, skips),
        (Lie::SkipsOneMore, skips),
        (Lie::LosesTheRequest, acts),
        (Lie::LosesTheReply, acts),
        (Lie::DelaysTheReply, acts),
        (Lie::HoldsTheRequest, acts),
        (Lie::NoPartition, cut),
        (Lie::PartitionRefuses, cut),
        (Lie::NoRefusal, cut),
        (Lie::NoFreeze, frozen),
        (Lie::FreezeRefuses, frozen),
        (Lie::FreezesWhoIsThere, frozen),
        (Lie::NoRestart, "c06_a_restart_is_noticed"),
        (Lie::DeclaresLess, "c06_a_restart_is_noticed"),
        (Lie::HealsLater, "c07_a_release_after_calls_that_were_cut_off_works"),
        (Lie::HealsForAMoment, cut),
        (Lie::DisturbsAnother, "c02_a_lost_reply_is_found_again"),
        (Lie::GivesOneClient, acts),
        (Lie::GivesAnotherStore, acts),
        (Lie::CountsInTens, befalls),
        (Lie::BreaksLater, broken),
        (Lie::ThawsNothing, frozen),
        (Lie::LosesTwo, "c02_a_lost_reply_is_found_again"),
    ] {
        let report = report(lie, |case| case == control);
        assert_eq!(unjudged(&report), [control], "{lie:?} is not noticed");
    }
}
