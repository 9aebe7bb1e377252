//! The promises of the user API that need no store.

use std::sync::Arc;
use std::time::Duration;

use lock_core::testing::MemoryBackend;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, DataLoss, Error, ErrorKind, Feature,
    Finding, HolderMark, LockAdmin, LockBackend, LockInfo, LockKey, LockLayer, LockState, Locks,
    LocksBuilder, LostReason, Released, Renewal, Result, Victim, async_trait,
};

use crate::{MS, virtual_locks};

#[tokio::test]
async fn any_string_is_a_name() {
    let locks = Locks::new(MemoryBackend::queued());
    let (shared, owned): (Arc<str>, String) = ("a".into(), "a".to_owned());
    for key in [
        locks.named("a").unwrap().key().clone(),
        locks.named(&owned).unwrap().key().clone(),
        locks.named(owned).unwrap().key().clone(),
        locks.named(&shared).unwrap().key().clone(),
        locks.named(shared).unwrap().key().clone(),
    ] {
        assert_eq!(key.name(), "a");
    }
    assert!(locks.inspect(String::from("a")).await.unwrap().is_none());
}

/// Every setting of the builder that breaks a rule is an error of `build` that names the value or
/// the rule.
#[tokio::test]
async fn bad_settings_are_found_when_the_locks_are_built() {
    type Set = fn(LocksBuilder) -> LocksBuilder;
    let bad: [(&str, Set); 7] = [
        ("lock prefix", |b| b.prefix("a\u{7}")),
        ("lock prefix", |b| b.prefix("p".repeat(513))),
        ("label", |b| b.label("a\nb")),
        ("call_timeout", |b| b.call_timeout(Duration::ZERO)),
        ("call_timeout", |b| b.call_timeout(Duration::MAX)),
        ("9ms", |b| b.default_ttl(9 * MS)),
        ("366 days", |b| b.default_ttl(Duration::from_secs(367 * 24 * 3600))),
    ];
    for (names, set) in bad {
        let error = set(Locks::builder(MemoryBackend::queued())).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(names), "{names}: {error}");
    }
    let good = Locks::builder(MemoryBackend::queued()).prefix("p".repeat(512)).label("");
    good.default_ttl(10 * MS).call_timeout(MS).build().unwrap();
    let longest = Duration::from_secs(366 * 24 * 3600);
    let locks = Locks::builder(MemoryBackend::queued()).default_ttl(longest).call_timeout(longest);
    locks.build().unwrap().named("a").unwrap().acquire().await.unwrap().check().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_on_a_guard_gives_the_value_and_releases() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("a").unwrap();
    let fence = lock.acquire().await.unwrap().run(async |held| held.token()).await.unwrap();
    assert!(fence.is_ok());
    assert_eq!(lock.try_run(async |_| 7).await.unwrap(), Some(7));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(lock.try_run(async |_| panic!("it is held")).await.unwrap(), None::<()>);
    store.lose_now("a");
    let error = guard.run(async |_| clock.sleep(Duration::from_secs(60)).await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken));
}

#[tokio::test(start_paused = true)]
async fn every_token_of_a_loss_is_cancelled_and_alone() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    let (early, mine) = (guard.lost().cancellation_token(), guard.lost().cancellation_token());
    mine.cancel();
    assert!(!early.is_cancelled() && guard.token().is_ok());
    store.lose_now("a");
    early.cancelled().await;
    assert_eq!(guard.state(), LockState::Lost(LostReason::Taken));
    assert!(guard.lost().cancellation_token().is_cancelled(), "also one made later");

    // Also by the clock alone, if the store is silent.
    let guard = locks.named("a").unwrap().ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let token = guard.lost().cancellation_token();
    store.partition();
    token.cancelled().await;
    assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
}

#[tokio::test]
async fn what_a_program_requires_is_refused_by_name() {
    let locks = Locks::new(MemoryBackend::poll_only());
    let fine = [Feature::Detach, Feature::Inspect, Feature::Ttl(MS * 10)];
    locks.require(fine).unwrap();
    let error = locks
        .require([Feature::Detach, Feature::Fair, Feature::Survives(DataLoss::Restart)])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for part in ["memory", "order of their arrival", "survive a restart"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(!error.to_string().contains("take over"), "what it has is not named: {error}");
}

#[tokio::test(start_paused = true)]
async fn health_is_one_request_and_counts_what_is_in_use() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    let before = store.requests();
    store.delay_next(30 * MS);
    let health = locks.health().await.unwrap();
    assert_eq!((health.answered_in, health.in_use), (30 * MS, 1));
    assert_eq!(store.requests(), before + 1);
    guard.release().await.unwrap();
    clock.sleep(MS).await;
    assert_eq!(locks.health().await.unwrap().in_use, 0);
    store.freeze();
    assert_eq!(locks.health().await.unwrap_err().kind(), ErrorKind::NoAnswer);
}

/// A store that fails every detach.
#[derive(Debug)]
struct Stubborn;

#[derive(Debug)]
struct StubbornStore(Arc<dyn LockBackend>);

#[derive(Debug)]
struct StubbornClaim(Box<dyn Claim>);

impl LockLayer for Stubborn {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        Arc::new(StubbornStore(inner))
    }
}

#[async_trait]
impl LockBackend for StubbornStore {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(StubbornClaim(self.0.claim(request)?)))
    }
    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }
    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.0.admin()
    }
}

#[async_trait]
impl Claim for StubbornClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.0.try_acquire().await
    }
    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }
    async fn check(&mut self) -> Result<Renewal> {
        self.0.check().await
    }
    async fn release(&mut self) -> Result<Released> {
        self.0.release().await
    }
    async fn changed(&mut self) -> Result<()> {
        self.0.changed().await
    }
    async fn detach(&mut self) -> Result<Bytes> {
        Err(Error::new(ErrorKind::NoAnswer, "a reply never came").with_source(std::fmt::Error))
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_fails_gives_the_guard_back_and_the_lock_stays() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let locks = Locks::builder(store).clock(clock).layer(Stubborn).build().unwrap();
    let lock = locks.named("a").unwrap().ttl(Duration::from_secs(3));
    let failed = lock.acquire().await.unwrap().detach().await.unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::NoAnswer);
    assert!(failed.to_string().contains("detach"), "{failed}");
    let cause = std::error::Error::source(&failed).unwrap();
    assert!(cause.is::<std::fmt::Error>());
    assert!(format!("{failed:?}").contains("a reply never came"), "{failed:?}");
    let guard = failed.into_guard();
    // Renewed for several ttls.
    clock.sleep(Duration::from_secs(10)).await;
    assert_eq!(guard.state(), LockState::Secure);
    guard.renew().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    // As a plain error it drops the guard.
    let failed: Error = lock.acquire().await.unwrap().detach().await.unwrap_err().into();
    assert_eq!(failed.kind(), ErrorKind::NoAnswer);
    drop(lock.acquire_timeout(Duration::from_secs(1)).await.unwrap());
}

#[tokio::test]
async fn a_dropped_guard_is_lost_at_once() {
    let guard = Locks::new(MemoryBackend::queued()).named("a").unwrap().acquire().await.unwrap();
    let held = guard.held().clone();
    assert_eq!(held.lost().reason(), None);
    drop(guard);
    // Its keeper has not run since.
    assert_eq!(held.state(), LockState::Lost(LostReason::Released));
    assert_eq!(held.lost().reason(), Some(LostReason::Released));
}

#[tokio::test]
async fn a_holder_is_shown_by_its_process_unless_it_has_a_label() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let _guard = locks.named("a").unwrap().acquire().await.unwrap();
    let holder = locks.inspect("a").await.unwrap().unwrap().holder.unwrap();
    let process = format!("/{}", std::process::id());
    assert!(holder.label.unwrap().ends_with(&process));
}

/// Owner ids are secrets of their holders.
#[tokio::test]
async fn what_is_logged_names_the_lock_and_shows_no_secret() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("order:42").unwrap().acquire().await.unwrap();
    let (held, owner) = (guard.held().clone(), guard.held().owner());
    let texts = [
        (format!("{:?}", held.key()), "order:42"),
        (format!("{held:?}"), "Secure"),
        (format!("{:?}", HolderMark::from(owner)), "HolderMark"),
        (format!("{:?}", guard.detach().await.unwrap()), "memory"),
    ];
    for (text, part) in texts {
        assert!(text.contains(part) && !text.contains(&owner.to_hex()), "{text}");
    }
}

#[tokio::test]
async fn a_close_that_fails_is_told_through_a_layer() {
    let error = found().close(MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
}

/// A store with findings, which cannot be closed.
#[derive(Debug)]
struct Found(MemoryBackend);

#[async_trait]
impl LockBackend for Found {
    fn name(&self) -> &'static str {
        "found"
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.0.claim(request)
    }
    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }
    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
    async fn close(&self) -> Result<()> {
        Err(Error::new(ErrorKind::Store, "it is still in use"))
    }
}

#[async_trait]
impl LockAdmin for Found {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        LockAdmin::inspect(&self.0, key).await
    }
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        LockAdmin::list(&self.0, prefix, name_start).await
    }
    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        self.0.force_release(key, victim).await
    }
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::info("a"), Finding::critical("b", "c"), Finding::warning("d", "e")])
    }
}

/// Locks on it, as a shared backend.
fn found() -> Locks {
    Locks::new(Arc::new(Found(MemoryBackend::queued())))
}

#[tokio::test]
async fn an_operator_sees_the_worst_first_and_recovers_only_what_waits_for_it() {
    let locks = found();
    let found: Vec<_> = locks.diagnose().await.unwrap().into_iter().map(|one| one.what).collect();
    assert_eq!(found, ["b", "d", "a"]);
    assert_eq!(locks.recover().await.unwrap_err().kind(), ErrorKind::Unsupported);
}
