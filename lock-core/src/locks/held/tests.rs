use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::testing::ManualClock;

const SECOND: Duration = Duration::from_secs(1);

fn hold(clock: &ManualClock, max_hold: Option<Duration>) -> Held {
    Held::new(
        Arc::new(clock.clone()),
        Grant {
            key: LockKey::new("", "a").unwrap(),
            owner: OwnerId::from_bytes([1; 16]),
            token: FencingToken::new(1).unwrap(),
            ttl: 10 * SECOND,
            until: clock.now() + 10 * SECOND,
            max_hold,
            killed: CancellationToken::new(),
        },
    )
}

#[test]
fn the_end_is_exact_and_for_ever() {
    let clock = ManualClock::default();
    let held = hold(&clock, None);
    clock.advance(10 * SECOND - Duration::from_nanos(1));
    assert_eq!(held.state(), LockState::Secure);
    clock.advance(Duration::from_nanos(1));
    // An answer that comes at this very moment is too late.
    held.extend(clock.now() + 10 * SECOND);
    assert_eq!(held.state(), LockState::Lost(LostReason::Expired));
    assert_eq!(held.remaining(), Duration::ZERO);
    assert!(held.token().is_err());
    assert_eq!(held.lose(LostReason::Released), Some(LostReason::Expired));
}

#[test]
fn a_renewal_prolongs_and_heals_but_never_past_max_hold() {
    let clock = ManualClock::default();
    let held = hold(&clock, Some(15 * SECOND));
    held.set_at_risk(true);
    assert_eq!(held.state(), LockState::AtRisk);
    clock.advance(5 * SECOND);
    held.extend(clock.now() + 20 * SECOND);
    held.set_at_risk(false);
    assert_eq!((held.state(), held.remaining()), (LockState::Secure, 10 * SECOND));
    clock.advance(10 * SECOND);
    assert_eq!(held.state(), LockState::Lost(LostReason::MaxHold));
}

#[test]
fn an_answer_that_promises_less_does_not_shorten() {
    let clock = ManualClock::default();
    let held = hold(&clock, None);
    held.extend(clock.now() + SECOND);
    assert_eq!(held.remaining(), 10 * SECOND);
}

#[test]
fn the_end_on_the_wall_clock_is_as_far_away() {
    let clock = ManualClock::default();
    let held = hold(&clock, None);
    let (before, shown, after) =
        (SystemTime::now(), held.valid_until_wall_clock(), SystemTime::now());
    assert!((before + 10 * SECOND..=after + 10 * SECOND).contains(&shown));
    let ago = clock.now();
    clock.advance(15 * SECOND);
    let (before, shown, after) = (SystemTime::now(), ago.to_system_time(&clock), SystemTime::now());
    assert!((before - 15 * SECOND..=after - 15 * SECOND).contains(&shown));
}

/// What the tasks and threads that share a hold do with it. Each is one step under its lock, so every
/// interleaving of threads is a sequence of these.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes: to the signal of the loss, to the end of the lease, to that of `max_hold`.
    Tick(u64),
    /// The keeper has an answer: the lease lasts so many seconds from now.
    Renewed(u32),
    RenewalFailed,
    /// The keeper sees that the signal is due.
    Expire,
    /// The store has said that it is gone.
    Taken,
    /// The guard is dropped.
    Released,
    /// The backend is being closed.
    Killed,
}

const STEPS: [Step; 9] = [
    Step::Tick(9_950),
    Step::Tick(50),
    Step::Tick(5_000),
    Step::Renewed(10),
    Step::RenewalFailed,
    Step::Expire,
    Step::Taken,
    Step::Released,
    Step::Killed,
];

/// A task that waits for the signal.
struct Waiting {
    signal: Option<Pin<Box<dyn Future<Output = LostReason> + Send>>>,
    woken: Arc<Woken>,
    heard: Option<LostReason>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl Waiting {
    fn on(held: &Held) -> Self {
        let signal: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(held.lost().into_future());
        let mut waiting = Self {
            signal: Some(signal),
            woken: Arc::new(Woken(AtomicBool::new(true))),
            heard: None,
        };
        waiting.runs_if_woken();
        waiting
    }

    fn runs_if_woken(&mut self) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        while self.woken.0.swap(false, SeqCst)
            && let Some(signal) = &mut self.signal
        {
            if let Poll::Ready(reason) = signal.as_mut().poll(&mut cx) {
                self.heard = Some(reason);
                self.signal = None;
            }
        }
    }
}

/// Does the steps, and checks after each what the hold says.
fn play(steps: &[Step], max_hold: Option<Duration>) {
    let clock = ManualClock::default();
    let begun = clock.now();
    let held = hold(&clock, max_hold);
    let mut waiting = Waiting::on(&held);
    let cancelled = held.lost().cancellation_token();
    let cap = max_hold.map_or(ClockInstant::FAR_FUTURE, |limit| begun + limit);
    let mut promised = begun + 10 * SECOND;
    let mut lost = None;
    for step in steps {
        match *step {
            Step::Tick(ms) => clock.advance(Duration::from_millis(ms)),
            Step::Renewed(seconds) => {
                let until = clock.now() + seconds * SECOND;
                // The answer counts only if the hold is not over by then.
                if !matches!(held.state(), LockState::Lost(_)) {
                    promised = promised.max(until);
                }
                held.extend(until);
            }
            Step::RenewalFailed => held.set_at_risk(true),
            // As the keeper does: not before it is due.
            Step::Expire if clock.now() >= held.signal_at() => {
                let _ = held.expire();
            }
            Step::Expire => {}
            Step::Taken => {
                let _ = held.lose(LostReason::Taken);
            }
            Step::Released => {
                let _ = held.lose(LostReason::Released);
            }
            Step::Killed => held.0.killed.cancel(),
        }
        waiting.runs_if_woken();
        let now = clock.now();
        match held.state() {
            LockState::Lost(reason) => {
                assert_eq!(*lost.get_or_insert(reason), reason, "it is lost once, for one reason");
                waiting.runs_if_woken();
                assert_eq!(waiting.heard, Some(reason), "whoever waits hears of it");
                assert!(cancelled.is_cancelled() && held.token().is_err());
                assert!(held.remaining().is_zero() && held.valid_until() <= now);
            }
            LockState::Secure | LockState::AtRisk => {
                assert_eq!(lost, None, "it never returns");
                assert!(now < promised && now < cap && !held.0.killed.is_cancelled());
                assert_eq!(held.valid_until(), promised.min(cap));
                assert_eq!(held.lease_end(), promised);
                assert!(
                    waiting.heard.is_none() && !cancelled.is_cancelled() && held.token().is_ok()
                );
            }
        }
    }
}

#[test]
fn every_interleaving_of_the_threads_that_share_a_hold() {
    const LONGEST: u32 = 5;
    for max_hold in [None, Some(12 * SECOND)] {
        for sequence in 0..STEPS.len().pow(LONGEST) {
            let at = |place| sequence / STEPS.len().pow(place) % STEPS.len();
            let steps: Vec<_> = (0..LONGEST).map(|place| STEPS[at(place)]).collect();
            let played = std::panic::catch_unwind(|| play(&steps, max_hold));
            assert!(played.is_ok(), "{steps:?} with max_hold {max_hold:?}");
        }
    }
}

#[test]
fn the_margin_and_the_lead_are_as_documented() {
    let ms = Duration::from_millis;
    for (ttl, before_the_end, signal) in [(10, 2, 1), (300, 5, 30), (500, 7, 50), (30_000, 302, 50)]
    {
        assert_eq!(margin(ms(ttl)).as_millis(), before_the_end, "{ttl}");
        assert_eq!(lead(ms(ttl)).as_millis(), signal, "{ttl}");
    }
}
