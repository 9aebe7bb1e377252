//! How long this client has watched a node wait, by its own clock.

use std::time::Duration;

use lock_core::ClockInstant;

use super::plan::Report;

/// The wait that a node is in, as this client has first seen it.
///
/// A node's own clock, and the uptime that Redis computes from it, may be set forward in the middle
/// of a quarantine. A client that has watched the quarantine counts the lesser of what the node's
/// clock and its own monotonic clock say.
#[derive(Debug)]
pub(crate) struct Sighting {
    nonce: String,
    run_id: String,
    at: ClockInstant,
    /// The node's own word, then.
    age: Duration,
}

impl Sighting {
    /// Corrects the age in a report by what was seen before, and notes what is seen now.
    pub(crate) fn correct(seen: &mut Option<Self>, report: &mut Report, now: ClockInstant) {
        match seen {
            Some(seen) if seen.nonce == report.nonce && seen.run_id == report.run_id => {
                report.age = report.age.min(seen.age + now.since(seen.at));
            }
            _ => {
                let (nonce, run_id) = (report.nonce.clone(), report.run_id.clone());
                *seen = Some(Self { nonce, run_id, at: now, age: report.age });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_forward_ends_no_wait() {
        let start = ClockInstant::from_nanos(5_000_000_000);
        let mut seen = None;
        let mut age_of = |nonce: &str, age: u64, after: u64| {
            let age = Duration::from_secs(age);
            let mut report = Report { nonce: nonce.to_owned(), age, ..Report::default() };
            Sighting::correct(&mut seen, &mut report, start + Duration::from_secs(after));
            report.age.as_secs()
        };
        assert_eq!(age_of("a", 2, 0), 2, "the node's word counts at first");
        assert_eq!(age_of("a", 37, 1), 3, "35 s in one second are a jump");
        assert_eq!(age_of("a", 4, 5), 4, "the lesser counts");
        assert_eq!(age_of("b", 1, 6), 1, "another wait");
        assert_eq!(age_of("b", 9, 7), 2);
    }
}
