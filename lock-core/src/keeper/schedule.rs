//! When to poll, renew and retry.

use std::time::Duration;

use super::client::Client;
use crate::kit::backoff::{Backoff, growing};
use crate::{ClockInstant, Wake, jitter};

/// The first and the longest pause between two polls of a store that cannot push.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// The first and the longest pause after an error. At most 20 requests a second go to a store that
/// answers with errors, and one a second in the long run.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The slow polling where the store pushes: a push that can get lost, and one that cannot.
const HINT_POLL: Duration = Duration::from_secs(1);
const RELIABLE_POLL: Duration = Duration::from_secs(10);
/// A pause proposed by the store is never shorter than this.
const SHORTEST: Duration = Duration::from_millis(1);

/// The pause before the next attempt, after the `looks`-th busy answer in a row.
pub(super) fn after_busy(
    client: &Client,
    wake: Wake,
    looks: u32,
    hint: Option<Duration>,
) -> Duration {
    let pause = match wake {
        Wake::Poll => growing(POLL.0, POLL.1, looks),
        Wake::Hint => HINT_POLL,
        Wake::Reliable => RELIABLE_POLL,
    };
    let spread = pause * 3 / 4 + jitter(&*client.rng, pause / 2);
    // The store counts whole milliseconds; without one more, the attempt would come just too early.
    hint.map_or(spread, |hint| spread.min(hint.saturating_add(SHORTEST)))
}

/// The pauses after errors.
pub(super) fn backoff() -> Backoff {
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
mod tests;
