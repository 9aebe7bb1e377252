//! How long this client has watched a node wait, by its own clock.

use std::time::Duration;

use lock_core::ClockInstant;

use super::plan::Report;

/// Since when each node has been seen in the wait that it is in.
///
/// A node's own clock, and the uptime that Redis computes from it, may be set forward in the middle
/// of a quarantine. A client that has watched the quarantine counts the lesser of what the node's
/// clock and its own monotonic clock say.
#[derive(Debug)]
pub(crate) struct Sightings(Vec<Option<Sighting>>);

#[derive(Debug)]
struct Sighting {
    nonce: String,
    run_id: String,
    at: ClockInstant,
    /// The node's own word, then.
    age: Duration,
}

impl Sightings {
    pub(crate) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    /// Notes what node number `node` has reported, and tells the report what was seen before.
    pub(crate) fn note(&mut self, node: usize, report: &mut Report, now: ClockInstant) {
        let seen = &mut self.0[node];
        match seen {
            Some(seen) if seen.nonce == report.nonce && seen.run_id == report.run_id => {
                report.watched = Some(seen.age + now.since(seen.at));
            }
            _ => {
                let (nonce, run_id) = (report.nonce.clone(), report.run_id.clone());
                *seen = Some(Sighting { nonce, run_id, at: now, age: report.age() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(nonce: &str, age: u64) -> Report {
        let (since, nonce) = (1_000_000, nonce.to_owned());
        Report { nonce, since, now: since + age * 1_000_000, ..Report::default() }
    }

    #[test]
    fn a_clock_that_is_set_forward_ends_no_wait() {
        let start = ClockInstant::from_nanos(5_000_000_000);
        let mut sightings = Sightings::new(1);
        let mut age_of = |nonce: &str, age: u64, after: u64| {
            let mut report = report(nonce, age);
            sightings.note(0, &mut report, start + Duration::from_secs(after));
            report.age()
        };
        assert_eq!(age_of("a", 2, 0), Duration::from_secs(2), "the node's word counts at first");
        assert_eq!(age_of("a", 37, 1), Duration::from_secs(3), "35 s in one second are a jump");
        assert_eq!(age_of("a", 4, 5), Duration::from_secs(4), "the lesser counts");
        assert_eq!(age_of("b", 1, 6), Duration::from_secs(1), "another wait");
        assert_eq!(age_of("b", 9, 7), Duration::from_secs(2));
    }
}
