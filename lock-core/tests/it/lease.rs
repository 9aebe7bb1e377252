//! Lease tokens through the user API: what the core itself must compare, supply and leave alone.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{Clock, ErrorKind, LeaseToken, LockState, Locks, LostReason, Operation, Released};

use crate::SECOND;

/// A store, and locks on it with the prefix `shop`, in virtual time.
fn shop() -> (MemoryBackend, Locks, TokioClock) {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    (store.clone(), with_prefix(&store, clock, "shop"), clock)
}

fn with_prefix(store: &MemoryBackend, clock: TokioClock, prefix: &str) -> Locks {
    Locks::builder(store.clone()).clock(clock).prefix(prefix).build().unwrap()
}

async fn detached(locks: &Locks, name: &str) -> LeaseToken {
    locks.named(name).unwrap().acquire().await.unwrap().detach().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_lock_is_refused_before_anything_is_sent() {
    let (store, locks, clock) = shop();
    let token = detached(&locks, "order:42").await;
    let stall = with_prefix(&store, clock, "stall");
    let sent = store.requests();
    for (lock, asked) in [
        (locks.named("order:43").unwrap(), r#"not of "order:43" with the prefix "shop""#),
        (stall.named("order:42").unwrap(), r#"not of "order:42" with the prefix "stall""#),
    ] {
        let errors = [
            (lock.attach(&token).await.unwrap_err(), Operation::Attach),
            (lock.renew(&token).await.unwrap_err(), Operation::Renew),
            (lock.release(token.clone()).await.unwrap_err(), Operation::Release),
        ];
        for (error, operation) in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert_eq!(error.operation(), Some(operation), "{error}");
            let text = error.to_string();
            assert!(text.contains(r#"of the lock "order:42" with the prefix "shop""#), "{text}");
            assert!(text.contains(asked), "{text}");
        }
    }
    assert_eq!(store.requests(), sent);
    locks.named("order:42").unwrap().renew(&token).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_attach_is_described_as_one() {
    let (store, locks, _) = shop();
    let token = detached(&locks, "order:42").await;
    assert_eq!(token.backend(), "memory");
    let lock = locks.named("order:42").unwrap();
    store.lose_next_request();
    let error = lock.attach(&token).await.unwrap_err();
    assert_eq!(error.to_string(), r#"attach "shop/order:42" on memory: the connection was cut"#);
    store.lose_now("order:42");
    let error = lock.renew(&token).await.unwrap_err();
    assert_eq!(error.lost_reason(), Some(LostReason::Taken));
    assert_eq!(error.operation(), Some(Operation::Renew));
}

/// The first request is on its way for four seconds, and the second one gets the lock meanwhile.
#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_the_release_leaves_nothing() {
    let (store, _, clock) = shop();
    let locks = Locks::builder(store.clone()).clock(clock).call_timeout(SECOND).build().unwrap();
    let lock = locks.named("order:42").unwrap().ttl(60 * SECOND);
    store.hold_next_request(4 * SECOND);
    let guard = lock.acquire().await.unwrap();
    let fence = guard.token().unwrap().get();
    let token = guard.detach().await.unwrap();
    // In another process.
    let token = token.to_text().parse().unwrap();
    assert_eq!(lock.release(token).await.unwrap(), Released::Freed);
    clock.sleep(8 * SECOND).await;
    assert_eq!(locks.inspect("order:42").await.unwrap(), None);
    // It has arrived: this store counts by ones.
    let next = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(next.token().unwrap().get(), fence + 2);
}

#[tokio::test(start_paused = true)]
async fn settings_are_those_of_the_lock_that_attaches() {
    let (_, locks, clock) = shop();
    let token = detached(&locks, "order:42").await;
    let lock = locks.named("order:42").unwrap().ttl(6 * SECOND).max_hold(10 * SECOND);
    let renewed = lock.renew(&token).await.unwrap();
    assert!(renewed.remaining < 6 * SECOND && renewed.remaining > 5 * SECOND, "{renewed:?}");
    let guard = lock.renew_every(SECOND).attach(&token).await.unwrap();
    assert_eq!((guard.ttl(), guard.token().unwrap()), (6 * SECOND, renewed.fence));
    guard.keep_alive();
    clock.sleep(9 * SECOND).await;
    // Renewed every second, so that most of the ttl is left, up to the longest hold.
    assert_eq!(guard.state(), LockState::Secure);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_renews_as_often_as_the_lock_says() {
    let (store, locks, clock) = shop();
    let token = detached(&locks, "order:42").await;
    let lock = locks.named("order:42").unwrap().ttl(60 * SECOND).renew_every(SECOND);
    let guard = lock.attach(&token).await.unwrap();
    let sent = store.requests();
    clock.sleep(10 * SECOND).await;
    assert_eq!(store.requests(), sent, "an attached lock is not renewed until that is requested");
    guard.keep_alive();
    clock.sleep(10 * SECOND).await;
    let renewals = store.requests() - sent;
    assert!((8..=12).contains(&renewals), "{renewals} renewals in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn an_attached_guard_is_given_up_without_a_word() {
    let (store, locks, clock) = shop();
    let token = detached(&locks, "order:42").await;
    let lock = locks.named("order:42").unwrap();
    drop(lock.attach(&token).await.unwrap());
    let shared = Arc::new(lock.attach(&token).await.unwrap());
    drop(Arc::clone(&shared));
    drop(shared);
    let sent = store.requests();
    locks.close(SECOND).await.unwrap();
    clock.sleep(SECOND).await;
    assert_eq!(store.requests(), sent);
    let other = with_prefix(&store, clock, "shop");
    assert!(other.named("order:42").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(other.named("order:42").unwrap().release(token).await.unwrap(), Released::Freed);
}

#[tokio::test(start_paused = true)]
async fn a_release_by_token_is_repeated_until_it_is_answered() {
    let (store, locks, clock) = shop();
    let token = detached(&locks, "order:42").await;
    (0..3).for_each(|_| store.lose_next_request());
    locks.named("order:42").unwrap().release(token).await.unwrap_err();
    clock.sleep(5 * SECOND).await;
    assert_eq!(locks.inspect("order:42").await.unwrap(), None);
}

/// The future of a detach whose answer is not read holds its keeper; closing the store lets it go.
#[tokio::test(start_paused = true)]
async fn a_detach_that_nobody_reads_does_not_outlive_the_closing() {
    let (store, locks, clock) = shop();
    let guard = locks.named("order:42").unwrap().acquire().await.unwrap();
    let mut detaching = Box::pin(guard.detach());
    std::future::poll_fn(|cx| Poll::Ready(detaching.as_mut().poll(cx).is_ready())).await;
    clock.sleep(Duration::from_millis(10)).await;
    locks.close(SECOND).await.unwrap_err();
    locks.close(SECOND).await.unwrap();
    // It may still be read, and is as good as any.
    let token = detaching.await.unwrap();
    let other = with_prefix(&store, clock, "shop");
    other.named("order:42").unwrap().renew(&token).await.unwrap();
}

/// Closing at that very moment must not make the keeper believe that the token has arrived.
#[tokio::test(start_paused = true)]
async fn a_token_that_nobody_got_is_released_before_the_store_is_closed() {
    let (store, locks, clock) = shop();
    let guard = locks.named("order:42").unwrap().acquire().await.unwrap();
    let mut detaching = Box::pin(guard.detach());
    std::future::poll_fn(|cx| Poll::Ready(detaching.as_mut().poll(cx).is_ready())).await;
    clock.sleep(Duration::from_millis(10)).await;
    drop(detaching);
    locks.close(SECOND).await.unwrap();
    let other = with_prefix(&store, clock, "shop");
    assert_eq!(other.inspect("order:42").await.unwrap(), None);
}

/// A caller that does not get the lock is told who has it, as of that moment.
#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_names_the_holder() {
    let (store, locks, clock) = shop();
    let other = with_prefix(&store, clock, "shop").named("order:42").unwrap();
    let lock = locks.named("order:42").unwrap().ttl(60 * SECOND).no_renew().label("host-7");
    let guard = lock.acquire().await.unwrap();
    let sent = store.requests();
    for limit in [Duration::ZERO, 3 * SECOND] {
        let error = other.acquire_timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired);
        let holder = error.holder().expect("the memory store shows it");
        assert_eq!((holder.owner, holder.fence), (Some(guard.owner()), guard.token().ok()));
        assert_eq!(holder.expires_in, Some(60 * SECOND - limit), "as of now, not when seen");
        let text = error.to_string();
        assert!(text.contains("another client holds it") && text.contains("host-7"), "{text}");
    }
    assert_eq!(store.requests(), sent + 3, "two attempts, and the release of a place");
    assert!(other.try_acquire().await.unwrap().is_none());
}

/// Where one task of a process asks the store for all of them, all are told the holder.
#[tokio::test(start_paused = true)]
async fn those_behind_the_gate_are_told_the_holder_too() {
    let clock = TokioClock::default();
    let store = MemoryBackend::poll_only().with_clock(clock);
    let (locks, other) = (with_prefix(&store, clock, ""), with_prefix(&store, clock, ""));
    let _guard = other.named("a").unwrap().label("host-7").acquire().await.unwrap();
    let wait = |limit| {
        let lock = locks.named("a").unwrap();
        tokio::spawn(async move { lock.acquire_timeout(limit).await.unwrap_err() })
    };
    let poller = wait(3 * SECOND);
    clock.sleep(SECOND).await;
    for error in [wait(SECOND).await.unwrap(), poller.await.unwrap()] {
        let label = error.holder().and_then(|holder| holder.label.as_deref());
        assert_eq!(label, Some("host-7"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_is_checked_like_a_name() {
    let (store, locks, _) = shop();
    let token = detached(&locks, "held").await;
    let sent = store.requests();
    for (bad, rule) in [("x".repeat(513), "the limit is 512"), ("a\nb".into(), "control character")]
    {
        let lock = locks.named("free").unwrap().label(bad.as_str());
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("label") && error.to_string().contains(rule), "{error}");
        let lock = locks.named("held").unwrap().label(bad);
        assert_eq!(lock.renew(&token).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(store.requests(), sent);
    let longest = locks.named("free").unwrap().label("ü".repeat(256));
    longest.acquire().await.unwrap().release().await.unwrap();
}

/// A check may promise what a bearer with a longer ttl was promised. The clocks drift apart for all of
/// that time, not only for the ttl of the one who asks.
#[tokio::test(start_paused = true)]
async fn what_is_promised_beyond_the_ttl_has_its_margin_too() {
    let (store, locks, clock) = shop();
    let token = locks.named("x").unwrap().ttl(100 * SECOND).acquire().await.unwrap();
    let token = token.detach().await.unwrap();
    let other = with_prefix(&store.client(), clock, "shop");
    let guard = other.named("x").unwrap().ttl(SECOND).attach(&token).await.unwrap();
    guard.check().await.unwrap();
    let (left, longest) = (guard.remaining(), 99 * SECOND - Duration::from_millis(2));
    assert!((98 * SECOND..=longest).contains(&left), "{left:?} of 100 s are believed");
}

/// The entry lasts for the longest ttl that a bearer has asked for, and so does the clean-up.
#[tokio::test(start_paused = true)]
async fn a_release_by_a_bearer_with_a_short_ttl_is_repeated_until_it_is_answered() {
    for attaches in [false, true] {
        let (store, locks, clock) = shop();
        let token = locks.named("x").unwrap().ttl(100 * SECOND).acquire().await.unwrap();
        let token = token.detach().await.unwrap();
        let client = store.client();
        let other = with_prefix(&client, clock, "shop").named("x").unwrap().ttl(SECOND);
        if attaches {
            let guard = other.attach(&token).await.unwrap();
            client.refuse();
            guard.release().await.unwrap_err();
        } else {
            client.refuse();
            other.release(token).await.unwrap_err();
        }
        clock.sleep(5 * SECOND).await;
        client.heal();
        clock.sleep(2 * SECOND).await;
        assert_eq!(locks.inspect("x").await.unwrap(), None, "attached: {attaches}");
    }
}
