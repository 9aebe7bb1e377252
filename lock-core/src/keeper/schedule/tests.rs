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
        clients().map(|client| after_busy(&client, wake, looks, hint).as_micros())
    };
    assert_eq!(pauses(Wake::Poll, 1, None), [1_500, 2_000]);
    assert_eq!(pauses(Wake::Poll, 2, None), [3_000, 4_000]);
    assert_eq!(pauses(Wake::Poll, 99, None), [75_000, 100_000]);
    assert_eq!(pauses(Wake::Hint, 1, None), [750_000, 1_000_000]);
    assert_eq!(pauses(Wake::Reliable, 1, None), [7_500_000, 10_000_000]);
    assert_eq!(pauses(Wake::Reliable, 1, Some(MS(40))), [41_000, 41_000]);
    assert_eq!(pauses(Wake::Poll, 1, Some(MS(40))), [1_500, 2_000]);
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
