//! What the metrics layer reports for one lock's life.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::{Clock, Locks, MetricsLayer, TokioClock};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// All metrics by name and labels, in one line each.
fn snapshot(recorder: &DebuggingRecorder) -> BTreeMap<String, DebugValue> {
    let all = recorder.snapshotter().snapshot().into_vec();
    all.into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            (format!("{} {}", key.key().name(), labels.join(",")), value)
        })
        .collect()
}

#[test]
fn a_life_of_a_lock_is_counted() {
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock = TokioClock::default();
            let store = MemoryBackend::queued().with_clock(clock);
            let locks =
                Locks::builder(store.clone()).clock(clock).layer(MetricsLayer::new(clock)).build();
            let lock = locks.lock("secret-name").unwrap().ttl(Duration::from_secs(9));
            let guard = lock.acquire().await.unwrap();
            let waiter = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await }
            });
            clock.sleep(Duration::from_secs(7)).await;
            guard.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            store.lose_now("secret-name");
            guard.lost().await;
            drop(guard);
            locks.close(Duration::from_secs(1)).await.unwrap();
        });
    });
    let seen = snapshot(&recorder);
    let count = |name: &str| match seen.get(name) {
        Some(DebugValue::Counter(n)) => *n,
        other => panic!("{name}: {other:?} in {seen:?}"),
    };
    let samples = |name: &str| match seen.get(name) {
        Some(DebugValue::Histogram(values)) => values.len(),
        other => panic!("{name}: {other:?} in {seen:?}"),
    };
    // Two by the holder, two by the place of the waiter.
    assert_eq!(count("lock_renewals_total backend=memory,outcome=alive"), 4);
    assert_eq!(count("lock_lost_total backend=memory"), 1);
    assert_eq!(samples("lock_acquire_duration_seconds backend=memory,outcome=granted"), 2);
    assert_eq!(samples("lock_hold_duration_seconds backend=memory,outcome=released"), 1);
    assert_eq!(samples("lock_hold_duration_seconds backend=memory,outcome=lost"), 1);
    for gauge in ["lock_held backend=memory", "lock_waiting backend=memory"] {
        assert_eq!(seen.get(gauge), Some(&DebugValue::Gauge(0.0.into())), "{gauge}");
    }
    assert!(seen.keys().all(|key| !key.contains("secret-name")));
}
