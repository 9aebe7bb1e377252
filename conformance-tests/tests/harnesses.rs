//! Harnesses that do not do what they say: no case may pass because its fault never came.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{
    Client, Fault, Faults, Harness, MemoryHarness, Report, Store, Time, Unavailable, run,
};
use lock_core::{LockKey, LocksBuilder, Result};

/// What a harness only says that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    Nothing,
    /// Losing, delaying and holding up requests and answers.
    Requests,
    /// The same, and nobody counts what has come of it.
    UncountedRequests,
    Partition,
    Refuse,
    Freeze,
    Restart,
}

#[derive(Debug)]
struct IdleHarness(MemoryHarness, Idle);

#[derive(Debug)]
struct IdleStore(Box<dyn Store>, Idle);

#[derive(Debug)]
struct IdleFaults(Arc<dyn Faults>, Idle);

#[async_trait]
impl Harness for IdleHarness {
    fn name(&self) -> &str {
        "idle"
    }

    fn time(&self) -> Time {
        Time::Virtual
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        Ok(Box::new(IdleStore(self.0.start().await?, self.1)))
    }
}

#[async_trait]
impl Store for IdleStore {
    async fn client(&self) -> Result<Client> {
        let mut client = self.0.client().await?;
        client.faults = client.faults.map(|it| Arc::new(IdleFaults(it, self.1)) as Arc<dyn Faults>);
        Ok(client)
    }

    fn configure(&self, builder: LocksBuilder) -> LocksBuilder {
        self.0.configure(builder)
    }

    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        self.0.break_hold(key).await
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        if self.1 == Idle::Freeze { Ok(()) } else { self.0.freeze().await }
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.0.thaw().await
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        if self.1 == Idle::Restart { Ok(()) } else { self.0.restart().await }
    }
}

#[async_trait]
impl Faults for IdleFaults {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        let is_idle = match fault {
            Fault::Partition => self.1 == Idle::Partition,
            Fault::Refuse => self.1 == Idle::Refuse,
            Fault::Heal => false,
            _ => matches!(self.1, Idle::Requests | Idle::UncountedRequests),
        };
        if is_idle { Ok(()) } else { self.0.inject(fault).await }
    }

    fn requests(&self) -> Option<u64> {
        self.0.requests()
    }

    fn struck(&self) -> Option<u64> {
        if self.1 == Idle::UncountedRequests { None } else { self.0.struck() }
    }

    fn connections(&self) -> Option<u64> {
        self.0.connections()
    }
}

fn report(idle: Idle) -> Report {
    run(IdleHarness(MemoryHarness::queued(), idle), |_| true)
}

/// The cases that could not be judged.
fn unjudged(report: &Report) -> Vec<&'static str> {
    let failed = report.failed();
    failed.filter(|(_, told)| told.contains(" not judged: ")).map(|(case, _)| case).collect()
}

#[test]
fn a_harness_that_does_what_it_says_is_believed() {
    let report = report(Idle::Nothing);
    assert_eq!(report.failed().next(), None);
}

#[test]
fn a_fault_that_never_comes_is_no_pass() {
    let report = report(Idle::Requests);
    let unjudged = unjudged(&report);
    assert!(unjudged.len() > 40, "only {unjudged:?}");
    for case in ["c02_many_lost_answers_make_one_entry", "c06_an_error_is_not_a_loss"] {
        assert!(unjudged.contains(&case), "{case} in {unjudged:?}");
    }
}

#[test]
fn what_is_not_done_is_noticed_by_a_control() {
    for (idle, control) in [
        (Idle::UncountedRequests, "c02_a_fault_befalls_the_next_call"),
        (Idle::Partition, "c06_a_link_that_is_cut_brings_no_answer"),
        (Idle::Refuse, "c06_a_link_that_is_cut_brings_no_answer"),
        (Idle::Freeze, "c06_a_frozen_store_brings_no_answer"),
        (Idle::Restart, "c06_a_restart_is_noticed"),
    ] {
        let report = report(idle);
        let unjudged = unjudged(&report);
        assert!(unjudged.contains(&control), "{idle:?} is noticed only by {unjudged:?}");
    }
}
