//! How long the server keeps a session, as far as this client can know.
//!
//! The leader ends a session when it has not heard of it for the session timeout. Through a
//! follower it hears late: a follower reports the sessions that were active only in its answer to
//! the leader's ping, every half tick (`Leader#lead`, `Learner#ping`), and a request that it
//! forwards does not count as activity (`LearnerHandler#run`,
//! `LeaderZooKeeperServer#submitLearnerRequest`). So the answer to a write proves that the leader
//! knew the session, but not that it has heard of this request.
//!
//! What it does prove needs three requests, all answered by the leader: a write, or `sync`. A read
//! proves nothing: a follower answers it even while the leader is frozen and sends no pings.
//!
//! 1. A *first* one. Its follower has noted the session by then.
//! 2. A *second* one, sent a report later: half a tick at least after the first was answered. The
//!    leader was awake when it answered, so the ping that was due in between has gone out, and its
//!    answer travels before whatever the follower forwards later.
//! 3. The *write*, sent a moment after the second was answered. The leader refuses it if the
//!    session has ended, so the session lasts for one timeout from the sending of the first.
//!
//! Clients are not told the tick; a session timeout is at least two ticks (ZooKeeper's own
//! default), so a quarter of the session timeout is enough for a report, or one whole tick if it is
//! known. If the connection moved to another server in between, the move itself has told the leader
//! (`LearnerHandler`, `REVALIDATE`), after the first request and before the write.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::ClockInstant;

/// A request that the leader has answered.
#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: ClockInstant,
    answered: ClockInstant,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    timeout: Duration,
    /// How long after its reply a request has been reported to a leader that is awake.
    report: Duration,
    /// How long a leader that is awake needs at most for a ping that is due.
    moment: Duration,
    touches: VecDeque<Touch>,
    until: ClockInstant,
}

impl Timeline {
    /// A session whose handshake began at `sent` and was answered at `now`. The leader itself
    /// creates a session, so this counts at once.
    pub(crate) fn new(timeout: Duration, sent: ClockInstant, now: ClockInstant) -> Self {
        Self {
            timeout,
            report: timeout / 4,
            moment: timeout / 64,
            touches: VecDeque::from([Touch { sent, answered: now }]),
            until: sent + timeout,
        }
    }

    /// With the servers' tick, if it is known.
    pub(crate) fn with_tick(mut self, tick: Option<Duration>) -> Self {
        self.report = tick.map_or(self.report, |tick| tick.min(self.report));
        self
    }

    /// How often to ask the leader, so that there are always requests of the right age.
    pub(crate) fn beat(timeout: Duration) -> Duration {
        timeout / 20
    }

    /// The leader has answered a request that was sent at `sent`.
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

    /// The leader has answered a write, or a transaction of checks, that was sent at `sent`: the
    /// session existed.
    pub(crate) fn committed(&mut self, sent: ClockInstant, now: ClockInstant) {
        let before = |end: ClockInstant, pause: Duration| {
            self.touches.iter().rev().find(move |touch| touch.answered + pause <= end)
        };
        let second = before(sent, self.moment);
        let first = second.and_then(|second| before(second.sent, self.report));
        if let Some(first) = first {
            self.until = self.until.max(first.sent + self.timeout);
        }
        self.answered(sent, now);
    }

    /// The session exists at least until then.
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
    fn a_write_proves_an_earlier_request_and_not_itself() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10));
        assert_eq!(line.until(), at(8000), "it lasts from its handshake");
        for second in 1..4 {
            line.answered(at(second * 1000), at(second * 1000 + 10));
        }
        assert_eq!(line.until(), at(8000), "without a write nothing is proven");
        let mut line = Timeline::new(TIMEOUT, at(0), at(10));
        line.answered(at(1000), at(1010));
        line.committed(at(3500), at(3510));
        assert_eq!(line.until(), at(8000), "the leader may have slept since 1010");
        line.committed(at(3634), at(3640));
        assert_eq!(line.until(), at(8000), "its ping may still be under way");
        line.committed(at(3635), at(3640));
        assert_eq!(line.until(), at(9000), "it was awake a report after the request of 1000");
        line.committed(at(6000), at(6010));
        assert_eq!(line.until(), at(9000), "it may have slept since 3640");
    }

    #[test]
    fn a_report_counts_from_the_answer_to_the_sending() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10));
        line.answered(at(1000), at(1900));
        // Sent too early, though it is answered late enough.
        line.answered(at(3899), at(5000));
        line.committed(at(6000), at(6010));
        assert_eq!(line.until(), at(8000));
        line.answered(at(6200), at(6210));
        line.committed(at(6400), at(6410));
        assert_eq!(line.until(), at(9000));
    }

    #[test]
    fn a_known_tick_proves_more() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(10)).with_tick(Some(TIMEOUT / 80));
        line.answered(at(1000), at(1010));
        line.answered(at(1400), at(1410));
        line.committed(at(1534), at(1540));
        assert_eq!(line.until(), at(8000));
        line.committed(at(1535), at(1540));
        assert_eq!(line.until(), at(9000));
        // One that is too long for the session cannot be right.
        let line = Timeline::new(TIMEOUT, at(0), at(10)).with_tick(Some(TIMEOUT));
        assert_eq!(line.report, TIMEOUT / 4);
    }

    #[test]
    fn a_dense_stream_of_requests_is_kept_short() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(0));
        for ms in 0..100_000 {
            line.committed(at(ms), at(ms));
        }
        assert!(line.touches.len() <= 66, "{}", line.touches.len());
        let behind = at(99_999).since(line.until().minus(TIMEOUT));
        assert!(behind <= TIMEOUT / 4 + TIMEOUT / 20, "{behind:?}");
    }

    /// What the README promises of a fresh guard, with a beat in between and a slow round trip.
    #[test]
    fn a_steady_beat_keeps_two_thirds_and_more() {
        let (beat, trip) = (Timeline::beat(TIMEOUT), Duration::from_millis(20));
        for (tick, least) in [(None, 60), (Some(Duration::from_millis(500)), 78)] {
            let start = at(1_000);
            let mut line = Timeline::new(TIMEOUT, start, start + trip).with_tick(tick);
            for n in 0..40 {
                let sent = start + (beat + trip) * n;
                line.answered(sent, sent + trip);
            }
            let write = start + (beat + trip) * 40;
            line.committed(write, write + trip);
            let left = line.until().since(write);
            assert!(left >= TIMEOUT * least / 100, "{tick:?}: {left:?}");
        }
    }

    #[test]
    fn requests_are_kept_for_one_timeout_and_a_sixty_fourth_apart() {
        let mut line = Timeline::new(TIMEOUT, at(0), at(0));
        line.answered(at(124), at(124));
        assert_eq!(line.touches.len(), 1);
        line.answered(at(125), at(125));
        line.answered(at(8000), at(8000));
        assert_eq!(line.touches.len(), 3);
        line.answered(at(16_001), at(16_001));
        assert_eq!(line.touches.len(), 1);
        assert_eq!(Timeline::beat(TIMEOUT), Duration::from_millis(400));
    }
}
