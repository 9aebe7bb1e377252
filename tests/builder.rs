//! A URL with further settings, a store that is not running yet, and programs without a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use distlock::backend::Operation;
use distlock::backend::{LockBackend, LockLayer};
use distlock::testing::ManualClock;
use distlock::{ErrorKind, blocking, builder, connect_blocking};

/// Counts how often it was asked to wrap a backend.
#[derive(Debug, Default)]
struct Counting(Arc<AtomicUsize>);

impl LockLayer for Counting {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        self.0.fetch_add(1, Relaxed);
        inner
    }
}

#[tokio::test]
async fn what_the_program_sets_wins_over_the_url() {
    let (clock, layer) = (ManualClock::default(), Counting::default());
    let layers = Arc::clone(&layer.0);
    let url = "memory://builder?lock_ttl=7s&lock_prefix=url&lock_label=url";
    let locks = builder(url)
        .clock(clock.clone())
        .prefix("program")
        .layer(layer)
        .unavailable_after(Duration::from_secs(9))
        .call_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    assert_eq!(guard.key().prefix(), "program");
    assert_eq!(guard.ttl(), Duration::from_secs(7), "a setting only in the URL stays");
    assert_eq!(layers.load(Relaxed), 1);
    let before = guard.remaining();
    clock.advance(Duration::from_secs(1));
    assert_eq!(before - guard.remaining(), Duration::from_secs(1), "it runs on the given clock");
}

#[tokio::test]
async fn a_bad_setting_is_an_error_of_connect() {
    let error = builder("memory://").prefix("a\u{0}").connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.operation(), Some(Operation::Connect));
    let error = builder("memory://?lock_ttl=1ms").connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn no_password_is_shown() {
    let builder = builder("redis://user:s3cr3t@host");
    assert!(!format!("{builder:?}").contains("s3cr3t"));
}

#[test]
fn locks_are_kept_on_the_runtime_that_was_given() {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(1).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let short = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = short.block_on(builder("memory://").runtime(handle).connect()).unwrap();
    drop(short);
    let lock = locks.named("x").unwrap().ttl(Duration::from_millis(300));
    let guard = lock.acquire_blocking().unwrap();
    std::thread::park_timeout(Duration::from_millis(900));
    assert!(guard.token().is_ok(), "renewed on the runtime that is alive: {:?}", guard.state());
}

#[tokio::test]
async fn a_mistake_in_the_url_is_found_before_anything_is_connected() {
    for url in ["gopher://x", "memory://?lock_tttl=3s", "memory://?lock_ttl=soon"] {
        let error = builder(url).connect_lazy().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    // Nobody listens there.
    let url = if cfg!(feature = "redis") { "redis://127.0.0.1:1" } else { "memory://" };
    let label = format!("lock_label={}", "x".repeat(600));
    for setting in
        ["lock_cohort=0", "lock_ttl=1ms", "lock_prefix=%0A", "lock_call_timeout=1000days", &label]
    {
        let builder = builder(format!("{url}?{setting}"));
        for error in
            [builder.clone().connect_lazy().unwrap_err(), builder.connect().await.unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{setting}: {error}");
            assert_eq!(error.operation(), Some(Operation::Connect));
        }
    }
    assert_eq!(builder(url).cohort(0).connect_lazy().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_lazy_store_is_connected_once() {
    let layer = Counting::default();
    let layers = Arc::clone(&layer.0);
    let lazy = builder("memory://").layer(layer).connect_lazy().unwrap();
    assert!(lazy.current().is_none());
    assert_eq!(layers.load(Relaxed), 0, "nothing is opened before it is needed");
    let (one, two) = tokio::join!(lazy.get(), lazy.get());
    let _held = one.unwrap().named("x").unwrap().acquire().await.unwrap();
    assert!(two.unwrap().named("x").unwrap().try_acquire().await.unwrap().is_none());
    assert!(lazy.clone().current().is_some());
    assert_eq!(layers.load(Relaxed), 1);
}

/// A service that starts before its store.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_store_may_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = folder.path().join("mounted");
    let url = format!("sqlite://{}/locks.db", mounted.display());
    let lazy = builder(url).connect_lazy().unwrap();
    assert!(lazy.get().await.is_err(), "it is not running yet");
    std::fs::create_dir(&mounted).unwrap();
    let locks = lazy.get().await.unwrap();
    locks.named("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

/// A whole program without a runtime, on a store whose driver needs one.
#[test]
fn a_program_without_a_runtime() {
    #[cfg(feature = "sqlite")]
    let folder = tempfile::tempdir().unwrap();
    #[cfg(feature = "sqlite")]
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    #[cfg(not(feature = "sqlite"))]
    let url = "memory://".to_owned();
    let locks = connect_blocking(&url).unwrap();
    let guard = locks.named("x").unwrap().acquire_blocking().unwrap();
    let info = blocking::run({
        let locks = locks.clone();
        async move { locks.inspect("x").await }
    });
    assert_eq!(info.unwrap().unwrap().holder.unwrap().fence, guard.token().ok());
    guard.release_blocking().unwrap();
    locks.close_blocking(Duration::from_secs(20)).unwrap();
}
