//! Until when the server keeps a session, as far as this client can know.
//!
//! The leader ends a session when it has not heard of it for the session timeout. Through a follower
//! it hears of it late: a follower reports the sessions that were active only in its answer to the
//! leader's ping, every half tick, and a write that it forwards does not count as activity
//! (`LeaderZooKeeperServer#submitLearnerRequest`, `Learner#ping`). So the answer to a write proves
//! that the leader was there, but not that it has heard of this very request.
//!
//! What it does prove: the write travelled behind the follower's reports, in order. A request that was
//! answered at least one report earlier is therefore known to the leader, and the session lasts for
//! one timeout from the *sending of that earlier request*. Reports are half a tick apart. The tick is not
//! told to clients; a session timeout is at least two ticks (ZooKeeper's own default), so a quarter of
//! the session timeout is enough between the two, or one whole tick where it is known.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::ClockInstant;

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: ClockInstant,
    answered: ClockInstant,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    timeout: Duration,
    /// How long after its answer a request has been reported to the leader.
    report: Duration,
    touches: VecDeque<Touch>,
    until: ClockInstant,
}

impl Timeline {
    /// A session whose handshake began at `sent` and was answered at `now`. The leader itself makes a
    /// session, so this counts at once.
    pub(crate) fn new(timeout: Duration, sent: ClockInstant, now: ClockInstant) -> Self {
        let touches = VecDeque::from([Touch { sent, answered: now }]);
        Self { timeout, report: timeout / 4, touches, until: sent + timeout }
    }

    /// A session that was made by somebody else, at a time that nobody knows.
    pub(crate) fn unknown(timeout: Duration) -> Self {
        let report = timeout / 4;
        Self { timeout, report, touches: VecDeque::new(), until: ClockInstant::from_nanos(0) }
    }

    /// With the servers' tick, if it is known.
    pub(crate) fn with_tick(mut self, tick: Option<Duration>) -> Self {
        self.report = tick.map_or(self.report, |tick| tick.min(self.report));
        self
    }

    /// How often something must be asked, so that there is always a request of the right age.
    pub(crate) fn beat(timeout: Duration) -> Duration {
        timeout / 20
    }

    /// Any request that was sent at `sent` has been answered.
    pub(crate) fn answered(&mut self, sent: ClockInstant, now: ClockInstant) {
        let spacing = self.timeout / 64;
        if self.touches.back().is_some_and(|last| sent < last.sent + spacing) {
            return;
        }
        self.touches.push_back(Touch { sent, answered: now });
        while self.touches.front().is_some_and(|first| first.sent + self.timeout < sent) {
            self.touches.pop_front();
        }
    }

    /// A write, or a transaction of checks, that was sent at `sent` has been answered: the leader has
    /// taken part.
    pub(crate) fn committed(&mut self, sent: ClockInstant, now: ClockInstant) {
        let report = self.report;
        let known = self.touches.iter().rev().find(|touch| touch.answered + report <= sent);
        if let Some(touch) = known {
            self.until = self.until.max(touch.sent + self.timeout);
        }
        self.answered(sent, now);
    }

    /// The session exists until then at least.
    pub(crate) fn until(&self) -> ClockInstant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> ClockInstant {
        ClockInstant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_new_session_lasts_from_its_handshake() {
        assert_eq!(Timeline::new(TIMEOUT, at(100), at(150)).until(), at(8100));
    }

    #[test]
    fn a_write_proves_an_earlier_request_and_not_itself() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10));
        line.answered(at(1000), at(1010));
        line.committed(at(1500), at(1510));
        assert_eq!(line.until(), at(8000), "the request of 1000 may be unreported");
        line.committed(at(3009), at(3020));
        assert_eq!(line.until(), at(8000), "still too close");
        line.committed(at(3510), at(3520));
        assert_eq!(line.until(), at(9500), "the write of 1500 was answered 2 s before");
    }

    #[test]
    fn a_known_tick_proves_more() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10)).with_tick(Some(TIMEOUT / 80));
        line.answered(at(1000), at(1010));
        line.committed(at(1109), at(1120));
        assert_eq!(line.until(), at(8000));
        line.committed(at(1111), at(1120));
        assert_eq!(line.until(), at(9000));
        // One that is too long for the session cannot be right.
        let line = Timeline::new(TIMEOUT, at(0), at(10)).with_tick(Some(TIMEOUT));
        assert_eq!(line.report, TIMEOUT / 4);
    }

    #[test]
    fn reads_alone_prove_nothing() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10));
        for second in 1..20 {
            line.answered(at(second * 1000), at(second * 1000 + 5));
        }
        assert_eq!(line.until(), at(8000));
    }

    #[test]
    fn a_dense_stream_of_requests_is_kept_short() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(0));
        for ms in 0..100_000 {
            line.committed(at(ms), at(ms));
        }
        assert!(line.touches.len() <= 66, "{}", line.touches.len());
        let behind = at(99_999).since(line.until().minus(TIMEOUT));
        assert!(behind <= TIMEOUT / 4 + TIMEOUT / 60, "{behind:?}");
    }

    #[test]
    fn a_session_of_unknown_age_counts_from_its_first_requests() {
        let mut line = Timeline::unknown(TIMEOUT);
        line.answered(at(1000), at(1001));
        assert_eq!(line.until(), at(0));
        line.committed(at(4000), at(4001));
        assert_eq!(line.until(), at(9000));
    }
}
