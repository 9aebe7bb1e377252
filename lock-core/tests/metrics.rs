//! What the metrics layer reports for one lock's life.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{Clock, LockKey, Locks, MetricsLayer};
use metrics::Unit;
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

/// Does `work` on paused time, with this recorder.
fn recorded(recorder: &DebuggingRecorder, work: impl AsyncFnOnce(TokioClock)) {
    metrics::with_local_recorder(recorder, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(work(TokioClock::default()));
    });
}

#[test]
fn a_life_of_a_lock_is_counted() {
    let recorder = DebuggingRecorder::new();
    let mut early = BTreeMap::new();
    recorded(&recorder, async |clock| {
        let store = MemoryBackend::queued().with_clock(clock);
        let locks = Locks::builder(store.clone())
            .clock(clock)
            .layer(MetricsLayer::default())
            .build()
            .unwrap();
        assert_eq!(locks.backend_name(), "memory", "a layer changes nothing");
        locks.health().await.unwrap();
        assert_eq!(store.requests(), 1);
        let lock = locks.named("secret-name").unwrap().ttl(Duration::from_secs(9));
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
        // By the holder's clock alone: the end of a lease, and of the longest hold.
        let ends = lock.clone().no_renew().acquire().await.unwrap();
        ends.lost().await;
        clock.sleep(Duration::from_secs(1)).await;
        early = snapshot(&recorder);
        drop(ends);
        let capped = lock.clone().max_hold(Duration::from_secs(4)).acquire().await.unwrap();
        clock.sleep(Duration::from_secs(5)).await;
        capped.release().await.unwrap_err();
        locks.close(Duration::from_secs(1)).await.unwrap();
    });
    let seen = snapshot(&recorder);
    // A snapshot takes counts and samples out.
    let count = |name: &str| -> u64 {
        let of = |seen: &BTreeMap<String, DebugValue>| match seen.get(name) {
            Some(DebugValue::Counter(n)) => *n,
            _ => 0,
        };
        of(&early) + of(&seen)
    };
    let samples = |name: &str| -> usize {
        let of = |seen: &BTreeMap<String, DebugValue>| match seen.get(name) {
            Some(DebugValue::Histogram(values)) => values.len(),
            _ => 0,
        };
        of(&early) + of(&seen)
    };
    let lost = |reason: &str| format!("lock_lost_total backend=memory,reason={reason}");
    for reason in ["taken", "expired"] {
        let counted = early.get(&lost(reason));
        assert_eq!(counted, Some(&DebugValue::Counter(1)), "{reason}, while the guard is alive");
    }
    // Two by the holder, two by the place of the waiter, one by the last holder.
    assert_eq!(count("lock_renewals_total backend=memory,outcome=alive"), 5);
    for reason in ["taken", "expired", "max_hold"] {
        assert_eq!(count(&lost(reason)), 1, "{reason}");
    }
    assert_eq!(samples("lock_acquire_duration_seconds backend=memory,outcome=granted"), 4);
    assert_eq!(samples("lock_hold_duration_seconds backend=memory,outcome=released"), 1);
    assert_eq!(samples("lock_hold_duration_seconds backend=memory,outcome=lost"), 3);
    for gauge in ["lock_held backend=memory", "lock_waiting backend=memory"] {
        assert_eq!(seen.get(gauge), Some(&DebugValue::Gauge(0.0.into())), "{gauge}");
    }
    assert!(seen.keys().all(|key| !key.contains("secret-name")));
}

/// A lease token may be old or forged: only a hold that the store has confirmed can be lost.
#[test]
fn a_heartbeat_is_no_hold_of_its_own() {
    let recorder = DebuggingRecorder::new();
    recorded(&recorder, async |clock| {
        let store = MemoryBackend::queued().with_clock(clock);
        let layer = MetricsLayer::default();
        let locks = Locks::builder(store).clock(clock).layer(layer).build().unwrap();
        let lock = locks.named("a").unwrap();
        let token = lock.acquire().await.unwrap().detach().await.unwrap();
        for _ in 0..3 {
            lock.renew(&token).await.unwrap();
        }
        lock.release(token.clone()).await.unwrap();
        lock.renew(&token).await.unwrap_err();
        locks.close(Duration::from_secs(1)).await.unwrap();
    });
    let seen = snapshot(&recorder);
    assert!(seen.keys().all(|key| !key.starts_with("lock_lost_total")));
    assert_eq!(seen.get("lock_held backend=memory"), Some(&DebugValue::Gauge(0.0.into())));
    let holds = seen.get("lock_hold_duration_seconds backend=memory,outcome=dropped");
    assert!(matches!(holds, Some(DebugValue::Histogram(one)) if one.len() == 1), "{holds:?}");
}

#[test]
fn slack_is_what_was_left_and_a_lock_has_the_name_that_it_is_given() {
    let recorder = DebuggingRecorder::new();
    recorded(&recorder, async |clock| {
        let kind = |key: &LockKey| Some(key.name().strip_suffix(":42")?.to_owned());
        let layer = MetricsLayer::default().named_by(kind);
        let store = MemoryBackend::queued().with_clock(clock);
        let locks = Locks::builder(store).clock(clock).layer(layer).build().unwrap();
        for name in ["order:42", "other"] {
            let lock = locks.named(name).unwrap().ttl(Duration::from_secs(30));
            let guard = lock.renew_every(Duration::from_secs(10)).acquire().await.unwrap();
            clock.sleep(Duration::from_secs(25)).await;
            guard.release().await.unwrap();
        }
    });
    let seen = snapshot(&recorder);
    for slack in ["backend=memory", "backend=memory,lock=order"] {
        let slack = seen.get(&format!("lock_renewal_slack_seconds {slack}"));
        let Some(DebugValue::Histogram(left)) = slack else { panic!("{slack:?}") };
        assert_eq!(left.len(), 2);
        assert!(left.iter().all(|left| (19.0..=21.0).contains(&left.0)), "{left:?}");
    }
}

#[test]
fn each_holder_of_a_cohort_is_counted() {
    let recorder = DebuggingRecorder::new();
    recorded(&recorder, async |clock| {
        let store = MemoryBackend::queued().with_clock(clock);
        let layer = MetricsLayer::default();
        let locks = Locks::builder(store).clock(clock).layer(layer).cohort(8).build().unwrap();
        let lock = locks.named("a").unwrap();
        let first = lock.acquire().await.unwrap();
        let next = tokio::spawn(async move { lock.acquire().await });
        clock.sleep(Duration::from_millis(20)).await;
        drop(first);
        next.await.unwrap().unwrap().release().await.unwrap();
        locks.close(Duration::from_secs(1)).await.unwrap();
    });
    let seen = snapshot(&recorder);
    let samples = |name: &str| match seen.get(name) {
        // Virtual time moves by whole milliseconds and a little more.
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.0 > 0.015).collect(),
        _ => Vec::new(),
    };
    let waited = samples("lock_acquire_duration_seconds backend=memory,outcome=granted");
    assert_eq!(waited, [false, true]);
    for (outcome, is_long) in [("passed_on", true), ("released", false)] {
        let name = format!("lock_hold_duration_seconds backend=memory,outcome={outcome}");
        assert_eq!(samples(&name), [is_long], "{outcome}");
    }
    assert!(seen.keys().all(|key| !key.contains("given_up") && !key.contains("dropped")));
    assert_eq!(seen.get("lock_held backend=memory"), Some(&DebugValue::Gauge(0.0.into())));
}

#[test]
fn a_hold_that_is_taken_over_is_one() {
    let recorder = DebuggingRecorder::new();
    recorded(&recorder, async |clock| {
        let store = MemoryBackend::queued().with_clock(clock);
        let plain = Locks::builder(store.client()).clock(clock).build().unwrap();
        let token = plain.named("a").unwrap().acquire().await.unwrap().detach().await.unwrap();
        let layer = MetricsLayer::default();
        let locks = Locks::builder(store).clock(clock).layer(layer).build().unwrap();
        let _guard = locks.named("a").unwrap().attach(&token).await.unwrap();
        let seen = snapshot(&recorder);
        assert_eq!(seen.get("lock_held backend=memory"), Some(&DebugValue::Gauge(1.0.into())));
    });
}

/// Whoever looks at a dashboard, or writes an alert, is told what a metric means.
#[test]
fn each_metric_has_a_help_text_and_a_unit() {
    let recorder = DebuggingRecorder::new();
    let link = MemoryBackend::queued();
    recorded(&recorder, async |clock| {
        let store = link.with_clock(clock);
        let layer = MetricsLayer::default();
        let locks = Locks::builder(store.clone()).clock(clock).layer(layer).build().unwrap();
        let lock = locks.named("lock").unwrap().ttl(Duration::from_secs(9));
        let held = lock.acquire().await.unwrap();
        assert!(lock.acquire_timeout(Duration::from_secs(7)).await.is_err());
        store.lose_next_reply();
        assert!(held.check().await.is_err());
        store.lose_now("lock");
        held.lost().await;
        drop(held);
        lock.acquire().await.unwrap().release().await.unwrap();
        locks.close(Duration::from_secs(1)).await.unwrap();
    });
    let mut names = BTreeSet::new();
    for (key, unit, text, _) in recorder.snapshotter().snapshot().into_vec() {
        let name = key.key().name();
        let expected = if name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        assert_eq!(unit, Some(expected), "the unit of {name}");
        assert!(text.is_some_and(|text| text.len() > 20), "{name} has no help text");
        names.insert(name.to_owned());
    }
    assert_eq!(names.len(), 8, "not each of them was used: {names:?}");
}

/// Those behind the first of their process ask the store nothing.
#[test]
fn all_who_wait_are_counted() {
    let recorder = DebuggingRecorder::new();
    recorded(&recorder, async |clock| {
        let store = MemoryBackend::poll_only().with_clock(clock);
        let layer = MetricsLayer::default();
        let locks = Locks::builder(store).clock(clock).layer(layer).build().unwrap();
        let lock = locks.named("a").unwrap();
        let _guard = lock.acquire().await.unwrap();
        for _ in 0..5 {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await.map(drop) });
        }
        clock.sleep(Duration::from_secs(1)).await;
        let waiting = snapshot(&recorder).remove("lock_waiting backend=memory");
        assert_eq!(waiting, Some(DebugValue::Gauge(5.0.into())));
    });
}
