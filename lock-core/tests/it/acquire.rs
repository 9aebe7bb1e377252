//! How a lock is searched for, kept and undone, on a store whose answers are written down. Each test is
//! named after what must hold.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Binding, Busy, Bytes, Capabilities, Claim, ClaimRequest, Clock, Effect, Error,
    ErrorKind, FencingToken, LeaseToken, LockBackend, LockState, Locks, LocksBuilder, LostReason,
    Released, Renewal, Result, Wake, async_trait,
};

use crate::{MS, SECOND};

/// The answers to one kind of call, each with the time that it takes. The last one stays.
type Answers<T> = Mutex<VecDeque<(Duration, Result<T>)>>;

/// A store that answers as it is told to.
#[derive(Clone, Debug)]
struct Script(Arc<Told>);

#[derive(Debug)]
struct Told {
    can: Capabilities,
    calls: Mutex<Vec<&'static str>>,
    tries: Answers<Attempt>,
    renewals: Answers<Renewal>,
    releases: Answers<Released>,
    pushes: Answers<()>,
    /// What came with a lease token.
    resumed: Mutex<Option<Bytes>>,
}

impl Script {
    fn new(tries: impl IntoIterator<Item = (Duration, Result<Attempt>)>) -> Self {
        Self::of(Capabilities::new(Binding::Lease, Wake::Reliable), tries)
    }

    fn of(
        mut can: Capabilities,
        tries: impl IntoIterator<Item = (Duration, Result<Attempt>)>,
    ) -> Self {
        (can.fair, can.detachable) = (true, true);
        Self(Arc::new(Told {
            can,
            calls: Mutex::default(),
            tries: Mutex::new(tries.into_iter().collect()),
            renewals: Mutex::new([(Duration::ZERO, Ok(alive()))].into()),
            releases: Mutex::new([(Duration::ZERO, Ok(Released::Freed))].into()),
            // None comes.
            pushes: Mutex::new([(Duration::MAX, Ok(()))].into()),
            resumed: Mutex::default(),
        }))
    }

    fn locks(&self) -> (LocksBuilder, TokioClock) {
        let clock = TokioClock::default();
        (Locks::builder(self.clone()).clock(clock), clock)
    }

    fn renews(self, answers: impl IntoIterator<Item = (Duration, Result<Renewal>)>) -> Self {
        *self.0.renewals.lock().unwrap() = answers.into_iter().collect();
        self
    }

    fn releases(self, answers: impl IntoIterator<Item = (Duration, Result<Released>)>) -> Self {
        *self.0.releases.lock().unwrap() = answers.into_iter().collect();
        self
    }

    fn pushes(self, answer: Result<()>) -> Self {
        *self.0.pushes.lock().unwrap() = [(Duration::ZERO, answer)].into();
        self
    }

    fn count(&self, call: &str) -> usize {
        self.0.calls.lock().unwrap().iter().filter(|made| **made == call).count()
    }

    async fn answer<T: Clone>(&self, call: &'static str, answers: &Answers<T>) -> Result<T> {
        self.0.calls.lock().unwrap().push(call);
        let (takes, answer) = {
            let mut answers = answers.lock().unwrap();
            let next = answers.front().cloned().unwrap();
            if answers.len() > 1 {
                answers.pop_front();
            }
            next
        };
        match takes {
            Duration::ZERO => {}
            Duration::MAX => std::future::pending().await,
            // To the nanosecond, unlike a sleep.
            takes => tokio::time::advance(takes).await,
        }
        answer
    }
}

#[async_trait]
impl LockBackend for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.can.clone()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        *self.0.resumed.lock().unwrap() = request.resume.map(|resume| resume.data);
        Ok(Box::new(self.clone()))
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Claim for Script {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.answer("try", &self.0.tries).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.answer("renew", &self.0.renewals).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        Ok(alive())
    }

    async fn release(&mut self) -> Result<Released> {
        self.answer("release", &self.0.releases).await
    }

    async fn changed(&mut self) -> Result<()> {
        self.answer("changed", &self.0.pushes).await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.0.calls.lock().unwrap().push("detach");
        Ok(Bytes::from_static(b"entry 7"))
    }
}

const AT_ONCE: Duration = Duration::ZERO;
const NEVER: Duration = Duration::MAX;

fn alive() -> Renewal {
    Renewal::Alive { valid_for: Some(SECOND) }
}

fn granted() -> Result<Attempt> {
    Ok(Attempt::Granted { token: FencingToken::new(1).unwrap(), valid_for: Some(SECOND) })
}

fn busy() -> Result<Attempt> {
    Ok(Attempt::Busy(Busy::default().with_retry_after(100 * MS)))
}

fn cut() -> Error {
    Error::new(ErrorKind::Unavailable, "cut").with_unknown_effect()
}

/// Of a lease of a second 12 ms are the margin, and 50 ms the time before its end at which the loss is
/// signalled.
#[tokio::test(start_paused = true)]
async fn a_grant_counts_only_while_something_of_it_is_left() {
    for (takes, tries) in [(937 * MS, 1), (938 * MS, 2)] {
        let store = Script::new([(takes, granted()), (AT_ONCE, granted())]);
        let locks = store.locks().0.call_timeout(2 * SECOND).build().unwrap();
        let guard = locks.named("x").unwrap().ttl(SECOND).try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.state(), LockState::Secure);
        assert_eq!(store.count("try"), tries, "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_token_carries_what_the_store_has_written_on_it() {
    let store = Script::new([(AT_ONCE, granted())]);
    let (builder, _clock) = store.locks();
    let lock = builder.build().unwrap().named("x").unwrap().ttl(SECOND);
    let token = lock.acquire().await.unwrap().detach().await.unwrap();
    let _guard = lock.attach(&token.to_text().parse().unwrap()).await.unwrap();
    assert_eq!(store.0.resumed.lock().unwrap().as_deref(), Some(&b"entry 7"[..]));
    // This store grants one fence at a time.
    let text = token.to_text();
    let json = URL_SAFE_NO_PAD.decode(text.strip_prefix("distlock1.").unwrap()).unwrap();
    let mut fields: serde_json::Value = serde_json::from_slice(&json).unwrap();
    fields["s"] = serde_json::json!([1, 2]);
    let edited = format!("distlock1.{}", URL_SAFE_NO_PAD.encode(fields.to_string()));
    let edited: LeaseToken = edited.parse().unwrap();
    let error = lock.attach(&edited).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_taken_over_only_while_something_of_it_is_left() {
    for (takes, is_held) in [(987 * MS, true), (988 * MS, false)] {
        let store = Script::new([(AT_ONCE, granted())]).renews([(takes, Ok(alive()))]);
        let locks = store.locks().0.call_timeout(2 * SECOND).build().unwrap();
        let lock = locks.named("x").unwrap().ttl(SECOND);
        let token = lock.acquire().await.unwrap().detach().await.unwrap();
        assert_eq!(lock.attach(&token).await.is_ok(), is_held, "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_at_the_end_of_the_lease_is_no_theft() {
    for (takes, is_theft) in [(987 * MS, true), (988 * MS, false)] {
        let gone = (takes, Ok(Released::AlreadyGone));
        let store = Script::new([(AT_ONCE, granted())]).releases([gone]);
        let locks = store.locks().0.call_timeout(2 * SECOND).build().unwrap();
        let guard = locks.named("x").unwrap().ttl(SECOND).no_renew().acquire().await.unwrap();
        let released = guard.release().await.map_err(|error| error.lost_reason());
        let expected =
            if is_theft { Err(Some(LostReason::Taken)) } else { Ok(Released::AlreadyGone) };
        assert_eq!(released, expected, "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_deadline_cuts_short_says_nothing() {
    let silent = || (NEVER, busy());
    for (tries, kind) in [
        (vec![(AT_ONCE, busy()), silent()], ErrorKind::NotAcquired),
        (vec![(AT_ONCE, Err(cut())), silent()], ErrorKind::Unavailable),
        (vec![silent()], ErrorKind::NoAnswer),
        (vec![(AT_ONCE, busy()), (200 * MS, Err(cut())), silent()], ErrorKind::Unavailable),
        // This one has ended by its own limit.
        (
            vec![(AT_ONCE, busy()), (AT_ONCE, Err(Error::new(ErrorKind::NoAnswer, "")))],
            ErrorKind::NoAnswer,
        ),
    ] {
        let locks = Script::new(tries.clone()).locks().0.call_timeout(SECOND).build().unwrap();
        let error = locks.named("x").unwrap().acquire_timeout(500 * MS).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{tries:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_gives_a_silent_store_up_after_one_call() {
    for (tries, kind) in [
        (vec![(NEVER, busy())], ErrorKind::NoAnswer),
        // The second one says less than the first, but nobody knows what it has done.
        (vec![(800 * MS, Err(cut())), (NEVER, busy())], ErrorKind::Unavailable),
    ] {
        let (builder, clock) = Script::new(tries).locks();
        let locks = builder.call_timeout(SECOND).build().unwrap();
        let begun = clock.now();
        let error = locks.named("x").unwrap().acquire_timeout(Duration::ZERO).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (kind, Effect::Unknown), "{error}");
        assert_eq!(clock.now().since(begun), SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_deadline_is_not_the_end() {
    let store = Script::new([(AT_ONCE, Err(cut())), (AT_ONCE, granted())]);
    let locks = store.locks().0.build().unwrap();
    drop(locks.named("x").unwrap().acquire_timeout(SECOND).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn only_silence_counts_as_an_outage() {
    let busy_for_long = (0..20).map(|_| (AT_ONCE, busy()));
    let store = Script::new(busy_for_long.chain([(AT_ONCE, Err(cut())), (AT_ONCE, granted())]));
    let locks = store.locks().0.unavailable_after(SECOND).build().unwrap();
    drop(locks.named("x").unwrap().acquire().await.unwrap());
    assert_eq!(store.count("try"), 22);
}

#[tokio::test(start_paused = true)]
async fn an_error_says_how_long_it_was_waited() {
    let locks = Script::new([(AT_ONCE, busy())]).locks().0.build().unwrap();
    let lock = locks.named("x").unwrap();
    for (limit, text) in [
        (Duration::ZERO, "another client holds it"),
        (2 * SECOND, "another client holds it, after 2.0s of waiting"),
    ] {
        assert_eq!(lock.acquire_timeout(limit).await.unwrap_err().message(), text);
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_is_dropped_before_its_second_request_does_not_send_it() {
    let store = Script::new([(AT_ONCE, busy()), (AT_ONCE, granted())]);
    let (builder, clock) = store.locks();
    let lock = builder.build().unwrap().named("x").unwrap();
    let mut waiting = Box::pin(lock.acquire());
    std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready())).await;
    drop(waiting);
    // The next look is due when its task runs for the first time.
    tokio::time::advance(20 * SECOND).await;
    clock.sleep(SECOND).await;
    assert_eq!((store.count("try"), store.count("release")), (1, 1));
}

/// What is bound to a lease ends with it; a session may last for ever.
#[tokio::test(start_paused = true)]
async fn a_clean_up_is_given_up_only_where_the_lease_does_it() {
    for (binding, releases) in [(Binding::Lease, 5..=6), (Binding::Session, 11..=11)] {
        let can = Capabilities::new(binding, Wake::Poll);
        let failing = (0..10).map(|_| (AT_ONCE, Err(cut())));
        let store = Script::of(can, [(AT_ONCE, Err(cut()))]).releases(
            failing.chain([(AT_ONCE, Ok(Released::Freed)), (AT_ONCE, Ok(Released::AlreadyGone))]),
        );
        let (builder, clock) = store.locks();
        let lock = builder.build().unwrap().named("x").unwrap().ttl(SECOND);
        lock.try_acquire().await.unwrap_err();
        clock.sleep(60 * SECOND).await;
        let made = store.count("release");
        assert!(releases.contains(&made), "{binding:?}: {made} releases");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_lost_is_not_renewed() {
    let place = || Ok(Attempt::Busy(Busy::default().with_place(SECOND)));
    let store =
        Script::new([(AT_ONCE, place()), (AT_ONCE, busy())]).renews([(AT_ONCE, Ok(Renewal::Lost))]);
    let locks = store.locks().0.build().unwrap();
    let lock = locks.named("x").unwrap().ttl(SECOND);
    lock.acquire_timeout(5 * SECOND).await.unwrap_err();
    assert_eq!(store.count("renew"), 1);
}

/// Where a first request may have got it the lock, the renewals of its place keep that, and only a look finds it.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_request_in_doubt_looks_now_and_then() {
    const TTL: Duration = Duration::from_secs(600);
    let refused = Error::new(ErrorKind::Unavailable, "refused");
    for (error, tries) in [(refused, 2..=2), (cut(), 6..=10)] {
        let busy = Busy::default().with_place(TTL).with_retry_after(TTL);
        let place = || Ok(Attempt::Busy(busy.clone()));
        let kept = Renewal::Alive { valid_for: Some(TTL) };
        let store = Script::new([(AT_ONCE, Err(error)), (AT_ONCE, place())]);
        let locks = store.clone().renews([(AT_ONCE, Ok(kept))]).locks().0.build().unwrap();
        let lock = locks.named("x").unwrap().ttl(TTL);
        lock.acquire_timeout(60 * SECOND).await.unwrap_err();
        assert!(tries.contains(&store.count("try")), "{} tries", store.count("try"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_pushes_endlessly_is_not_asked_endlessly() {
    let store = Script::new([(AT_ONCE, busy())]).pushes(Ok(()));
    let locks = store.locks().0.build().unwrap();
    locks.named("x").unwrap().acquire_timeout(50 * MS).await.unwrap_err();
    assert!((2..=501).contains(&store.count("try")), "{} tries", store.count("try"));
}

/// A store that pushes is asked every ten seconds otherwise.
#[tokio::test(start_paused = true)]
async fn a_waiter_polls_while_pushes_fail() {
    let busy = || Ok(Attempt::Busy(Busy::default()));
    let store = Script::new([(AT_ONCE, busy())]).pushes(Err(cut()));
    let locks = store.locks().0.build().unwrap();
    locks.named("x").unwrap().acquire_timeout(5 * SECOND).await.unwrap_err();
    let (tries, asked) = (store.count("try"), store.count("changed"));
    assert!((20..=102).contains(&tries), "{tries} tries");
    assert!((20..=102).contains(&asked), "{asked} times");
}

#[tokio::test(start_paused = true)]
async fn pushes_that_fail_for_a_holder_are_asked_for_again_in_time() {
    let store = Script::new([(AT_ONCE, granted())]).pushes(Err(cut()));
    let (builder, clock) = store.locks();
    let guard = builder.build().unwrap().named("x").unwrap().ttl(SECOND).acquire().await.unwrap();
    clock.sleep(20 * SECOND).await;
    assert_eq!(guard.state(), LockState::Secure);
    assert!((33..=51).contains(&store.count("changed")), "{} times", store.count("changed"));
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_last_renewal_was_answered_is_detached_at_once() {
    let store = Script::new([(AT_ONCE, granted())]);
    let locks = store.locks().0.build().unwrap();
    let guard = locks.named("x").unwrap().ttl(SECOND).acquire().await.unwrap();
    let _token = guard.detach().await.unwrap();
    assert_eq!((store.count("renew"), store.count("detach")), (0, 1));
}

#[test]
fn a_hold_ends_with_the_runtime_of_its_keeper() {
    let locks = Locks::new(MemoryBackend::queued());
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let first = runtime();
    let guard = first.block_on(locks.named("x").unwrap().acquire()).unwrap();
    assert_eq!(guard.state(), LockState::Secure);
    drop(first);
    assert_eq!(guard.state(), LockState::Lost(LostReason::Closed));
    assert_eq!(runtime().block_on(guard.lost().wait()), LostReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_makes_nobody_in_line_give_up() {
    let clock = TokioClock::default();
    let store = MemoryBackend::poll_only().with_clock(clock);
    let locks = Locks::builder(store.clone()).clock(clock).unavailable_after(5 * SECOND);
    let lock = locks.build().unwrap().named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    let (first, second) = (wait(), wait());
    clock.sleep(SECOND).await;
    store.refuse();
    clock.sleep(2 * SECOND).await;
    store.heal();
    assert!(!first.is_finished() && !second.is_finished());
    guard.release().await.unwrap();
    drop(first.await.unwrap().unwrap());
    drop(second.await.unwrap().unwrap());
}

/// The answer to its first attempt comes too late, and when it gives that up, another task is the first in line.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_granted_without_an_answer_is_found_from_behind_in_line() {
    let clock = TokioClock::default();
    let store = MemoryBackend::poll_only().with_clock(clock);
    let locks = Locks::builder(store.clone()).clock(clock).build().unwrap();
    let lock = locks.named("x").unwrap().ttl(3600 * SECOND);
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    store.delay_next(60 * SECOND);
    let first = wait();
    clock.sleep(SECOND).await;
    let second = wait();
    clock.sleep(5 * SECOND).await;
    assert!(first.is_finished() && !second.is_finished());
    drop(first.await.unwrap().unwrap());
    drop(second.await.unwrap().unwrap());
}
