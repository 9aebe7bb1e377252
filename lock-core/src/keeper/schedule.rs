//! When to poll, renew and retry.

use std::time::Duration;

use super::client::{Client, STANDSTILL_GRACE};
use crate::backoff::{Backoff, growing};
use crate::{ClockInstant, Wake, jitter};

/// The first and the longest pause between two polls of a store that cannot push.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// The first and the longest pause after an error. At most 20 requests a second go to a store that
/// answers with errors, and one a second in the long run.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The pause between two questions of a task that waits behind others, if a request of its own may have got
/// the lock.
pub(super) const IN_DOUBT: Duration = BACK_OFF.1;
/// The slow polling where the store pushes: a push that can get lost, and one that cannot.
const HINT_POLL: Duration = Duration::from_secs(1);
pub(super) const RELIABLE_POLL: Duration = Duration::from_secs(10);
/// A pause proposed by the store is never shorter than this.
const SHORTEST: Duration = Duration::from_millis(1);

/// Whether the process, or its machine, has stood still since something was `due`, and for so long that it counts for a
/// caller who gives up a silent store after `patience`. It has asked nobody meanwhile, so no store was silent for that time.
pub(crate) fn has_stood_still(due: ClockInstant, now: ClockInstant, patience: Duration) -> bool {
    now.since(due) > (patience / 2).max(STANDSTILL_GRACE)
}

/// The pause before the next attempt, after the `looks`-th busy answer in a row; about `longest` at the most.
pub(super) fn after_busy(
    client: &Client,
    wake: Wake,
    looks: u32,
    longest: Duration,
    hint: Option<Duration>,
) -> Duration {
    let pause = match wake {
        Wake::Poll => growing(POLL.0, POLL.1, looks),
        Wake::Hint => HINT_POLL,
        Wake::Reliable => RELIABLE_POLL,
    };
    let pause = pause.min(longest);
    let spread = pause * 3 / 4 + jitter(&*client.rng, pause / 2);
    // The store counts whole milliseconds; without one more, the attempt would come just too early.
    match hint.map(|hint| hint.saturating_add(SHORTEST)) {
        // It knows whose turn it is. The renewals of the places find a push that was lost.
        Some(hint) if client.capabilities.fair && wake == Wake::Reliable => hint.min(longest),
        Some(hint) => spread.min(hint),
        None => spread,
    }
}

/// The pause before the next look, after so many in a row that have shown nothing free: that of a store that
/// cannot push.
pub(crate) fn after_a_busy_look(client: &Client, looks: u32) -> Duration {
    after_busy(client, Wake::Poll, looks, Duration::MAX, None)
}

/// When to renew a place after a request sent at `sent`: all those of a client together, and often enough
/// to find a push that was lost and to notice `within` that time that the store answers nobody.
pub(super) fn renew_place_at(
    client: &Client,
    sent: ClockInstant,
    ttl: Duration,
    within: Duration,
) -> ClockInstant {
    let ttl = ttl.min(RELIABLE_POLL * 3);
    renew_at(client, sent, within.min(ttl / 3), ttl)
}

/// The pauses after errors.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(BACK_OFF.0, BACK_OFF.1)
}

/// The pause before pushes are asked for again while a lock is held.
pub(super) fn without_pushes(client: &Client) -> Duration {
    let pause = BACK_OFF.0 * 8;
    pause + jitter(&*client.rng, pause / 2)
}

/// The pause after a failed check, or before a look that is put off.
pub(super) fn a_moment(client: &Client) -> Duration {
    BACK_OFF.0 + jitter(&*client.rng, BACK_OFF.0 / 2)
}

/// When to renew after a request sent at `sent`: about `every` later, on the grid of this `Locks`,
/// so locks taken one after the other are renewed together and a backend can batch them. Never
/// later than `every`.
pub(super) fn renew_at(
    client: &Client,
    sent: ClockInstant,
    every: Duration,
    ttl: Duration,
) -> ClockInstant {
    let due = sent + every;
    let grid = u64::try_from((ttl / 60).as_nanos()).unwrap_or(u64::MAX).max(1);
    let phase = client.grid_phase % grid;
    let on_grid =
        ClockInstant::from_nanos((due.as_nanos().saturating_sub(phase) / grid) * grid + phase);
    if on_grid > sent { on_grid } else { due }
}

/// When to try again after a renewal that failed for the `failures`-th time in a row, at `now`.
pub(super) fn retry_at(
    client: &Client,
    now: ClockInstant,
    failures: u32,
    ttl: Duration,
) -> ClockInstant {
    let pause = (ttl / 24 * failures.clamp(1, 4)).min(Duration::from_secs(2));
    now + pause * 3 / 4 + jitter(&*client.rng, pause / 2)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryBackend;
    use crate::{Locks, Result, Rng};

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const SECOND: Duration = Duration::from_secs(1);

    /// Chance that always gives so many 256ths.
    #[derive(Debug)]
    struct Always(u8);

    impl Rng for Always {
        fn fill(&self, bytes: &mut [u8]) -> Result<()> {
            bytes.fill(0);
            if let Some(last) = bytes.last_mut() {
                *last = self.0;
            }
            Ok(())
        }
    }

    /// A client without chance, and one with the average of it.
    fn clients() -> [Client; 2] {
        [0, 128].map(|chance| {
            let builder = Locks::builder(MemoryBackend::queued()).rng(Always(chance));
            Arc::into_inner(builder.build().unwrap().0).unwrap()
        })
    }

    #[test]
    fn the_pause_after_a_busy_answer_is_three_to_five_quarters() {
        let pauses = |wake, looks, hint| {
            clients().map(|mut client| {
                client.capabilities.fair = false;
                after_busy(&client, wake, looks, Duration::MAX, hint).as_micros()
            })
        };
        assert_eq!(pauses(Wake::Poll, 1, None), [1_500, 2_000]);
        assert_eq!(pauses(Wake::Poll, 2, None), [3_000, 4_000]);
        assert_eq!(pauses(Wake::Poll, 99, None), [75_000, 100_000]);
        assert_eq!(pauses(Wake::Hint, 1, None), [750_000, 1_000_000]);
        assert_eq!(pauses(Wake::Reliable, 1, None), [7_500_000, 10_000_000]);
        assert_eq!(pauses(Wake::Reliable, 1, Some(MS(40))), [41_000, 41_000]);
        assert_eq!(pauses(Wake::Poll, 1, Some(MS(40))), [1_500, 2_000]);
    }

    /// Such a store knows when a look is worthwhile, and the renewals of a place are aligned.
    #[test]
    fn a_fair_store_says_when_to_look() {
        for client in clients() {
            assert!(client.capabilities.fair);
            let pause = |wake, longest, hint| after_busy(&client, wake, 1, longest, hint);
            let hint = Some(60 * SECOND);
            assert_eq!(pause(Wake::Reliable, Duration::MAX, hint), 60 * SECOND + MS(1));
            // Unless it may be found silent by then, or its pushes can be lost.
            assert_eq!(pause(Wake::Reliable, 30 * SECOND, hint), 30 * SECOND);
            assert!(pause(Wake::Hint, Duration::MAX, hint) <= SECOND);
            assert!(pause(Wake::Reliable, Duration::MAX, None) <= 10 * SECOND);
            let sent = ClockInstant::from_nanos(1_000_000_000);
            let after = |ttl, within| renew_place_at(&client, sent, ttl, within).since(sent);
            let (hour, never) = (3600 * SECOND, Duration::MAX);
            assert!((MS(9_500)..=10 * SECOND).contains(&after(hour, never)));
            assert!((MS(950)..=SECOND).contains(&after(3 * SECOND, never)));
            assert!((MS(1_500)..=2 * SECOND).contains(&after(hour, 2 * SECOND)));
        }
    }

    #[test]
    fn pauses_without_pushes_and_after_a_failed_check() {
        assert_eq!(clients().map(|client| without_pushes(&client)), [MS(400), MS(500)]);
        let checks = clients().map(|client| a_moment(&client).as_micros());
        assert_eq!(checks, [50_000, 62_500]);
    }

    #[test]
    fn renewals_lie_on_the_grid_and_never_late() {
        let [mut client, _] = clients();
        client.grid_phase = 7_007_000_000;
        let at = |ms: u64| ClockInstant::from_nanos(ms * 1_000_000);
        // With this ttl the grid has steps of a second.
        let next = |sent, every| renew_at(&client, at(sent), every, 60 * SECOND);
        assert_eq!(next(10_500, 20 * SECOND), at(30_007));
        assert_eq!(next(10_006, 20 * SECOND), at(29_007));
        // No point of the grid lies between: the one at which it was sent is none.
        assert_eq!(next(10_500, MS(100)), at(10_600));
        assert_eq!(next(10_007, MS(500)), at(10_507));
    }

    #[test]
    fn a_renewal_that_failed_is_tried_again_four_times_as_late_at_most() {
        let pauses = |failures, ttl| {
            let now = ClockInstant::from_nanos(1_000_000_000);
            clients().map(|client| retry_at(&client, now, failures, ttl).since(now).as_millis())
        };
        assert_eq!(pauses(1, 6 * SECOND), [187, 250]);
        assert_eq!(pauses(3, 6 * SECOND), [562, 750]);
        assert_eq!(pauses(9, 6 * SECOND), [750, 1_000]);
        assert_eq!(pauses(9, 60 * SECOND), [1_500, 2_000]);
    }
}
