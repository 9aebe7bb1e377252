//! Tests of code that uses locks: no server, no waiting, and every fault at hand.

use std::time::Duration;

use distlock::testing::{self, ManualClock, TokioClock};
use distlock::{ErrorKind, FenceCheck, LockState, Locks, LostReason, Result};

/// The code under test: writes the report unless another machine does.
async fn report(locks: &Locks) -> Result<&'static str> {
    let lock = locks.named("nightly-report")?.ttl(Duration::from_secs(30));
    let written = lock.try_run(async |_| tokio::time::sleep(Duration::from_secs(3600)).await);
    Ok(if written.await?.is_some() { "written" } else { "another machine writes it" })
}

/// Another machine has the lock.
#[tokio::test]
async fn a_busy_lock_is_left_alone() -> Result<()> {
    let (_store, locks) = testing::locks_on(ManualClock::default());
    let _theirs = locks.named("nightly-report")?.acquire().await?;
    assert_eq!(report(&locks).await?, "another machine writes it");
    Ok(())
}

/// An hour of work and its renewals, in a millisecond: paused time advances when every task waits.
#[tokio::test(start_paused = true)]
async fn long_work_keeps_its_lock() -> Result<()> {
    let (store, locks) = testing::locks_on(TokioClock::default());
    assert_eq!(report(&locks).await?, "written");
    assert!(store.requests() > 300, "it was renewed");
    Ok(())
}

/// An operator takes the lock away while the work runs.
#[tokio::test(start_paused = true)]
async fn work_stops_when_the_lock_is_lost() -> Result<()> {
    let (store, locks) = testing::locks_on(TokioClock::default());
    let (done, ()) = tokio::join!(report(&locks), async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        store.lose_now("nightly-report");
    });
    assert_eq!(done.unwrap_err().kind(), ErrorKind::Lost(LostReason::Taken));
    Ok(())
}

/// The network is gone for longer than the lease. Nothing waits here, so the test moves the clock.
#[tokio::test]
async fn a_holder_that_is_cut_off_stops_and_its_late_write_is_refused() -> Result<()> {
    let clock = ManualClock::default();
    let (store, here) = testing::locks_on(clock.clone());
    let there = Locks::builder(store.client()).clock(clock.clone()).build()?;
    let mut data = FenceCheck::default();

    let old = here.named("order:42")?.ttl(Duration::from_secs(30)).acquire().await?;
    let old_fence = old.token()?;
    store.partition();
    clock.advance(Duration::from_secs(31));
    assert_eq!(old.state(), LockState::Lost(LostReason::Expired));

    let new = there.named("order:42")?.acquire().await?;
    data.admit(new.token()?)?;
    assert!(data.admit(old_fence).is_err(), "the late write");
    Ok(())
}

/// The store has granted the lock, and its answer is lost: the repair finds the grant again.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_no_lock_behind() -> Result<()> {
    let (store, locks) = testing::locks_on(TokioClock::default());
    store.lose_next_reply();
    let guard = locks.named("order:42")?.try_acquire().await?.expect("it is free");
    guard.release().await?;
    assert!(locks.inspect("order:42").await?.is_none());
    Ok(())
}
