//! How many of a client's waiters ask a store that answers nobody.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ClockInstant;

/// So many looks are made in this time while none is answered. A call may take seconds to find out that a
/// store keeps silent, and a thousand waiters would all ask it meanwhile.
const MOST: (u32, Duration) = (8, Duration::from_secs(1));

/// The looks of waiters that have heard nothing from a store that pushes.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// When they were last counted from nothing.
    since: Mutex<Option<ClockInstant>>,
    /// How many were asked for since then, or since an answer. Apart from the time, so that an answer takes no
    /// lock.
    unanswered: AtomicU32,
}

impl Looks {
    /// Whether another one may be made at `now`; if so, it is counted.
    pub(super) fn may_begin(&self, now: ClockInstant) -> bool {
        let (most, within) = MOST;
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if since.is_none_or(|since| now.since(since) >= within) {
            *since = Some(now);
            self.unanswered.store(0, Relaxed);
        }
        self.unanswered.fetch_add(1, Relaxed) < most
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
        if self.unanswered.load(Relaxed) > 0 {
            self.unanswered.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_answers_nobody_is_asked_by_few() {
        let looks = Looks::default();
        let (most, within) = MOST;
        let at = |ms: u64| ClockInstant::from_nanos(ms * 1_000_000);
        let made = (0..1_000).filter(|ms| looks.may_begin(at(*ms))).count();
        assert_eq!(made, most as usize);
        // Nobody is kept from asking for ever.
        let later = 1 + u64::try_from(within.as_millis()).unwrap();
        assert!(looks.may_begin(at(later)));
        // A store that answers is asked by all.
        let all_ask = |ms| {
            looks.answered();
            looks.may_begin(at(ms))
        };
        assert!((later..later + 900).all(all_ask));
    }
}
