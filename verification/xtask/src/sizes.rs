//! How much runs at a time, and how often: what to tune when the machine is idle, or answers come too late.

use std::time::Duration;

/// Most tests wait for a ttl or a server. So more of them run at a time within a program.
pub(crate) const TESTS_PER_PROCESSOR: usize = 2;

/// A case of the suite sleeps for longer than most tests.
pub(crate) const CASES_PER_PROCESSOR: usize = 6;

/// Tests at a time in a program that runs again as a whole, alone.
pub(crate) const TESTS_OF_A_PROGRAM_ALONE: usize = 8;

/// How often a test has to pass alone. An intermittent bug is more likely to show here than in a single run.
pub(crate) const RUNS_ALONE: usize = 3;

/// More than that many tests are not late by chance.
pub(crate) const MOST_JUDGED_AGAIN: usize = 6;

/// More cases than that are not run once more by chance.
pub(crate) const MOST_ONCE_MORE: usize = 15;

/// In seconds, for a program that takes two or three minutes at most: one that hangs is ended, so that somebody learns which
/// one it is.
pub(crate) const LONGEST_PROGRAM: u64 = 1_200;

/// The lines of the table of what took longest.
pub(crate) const ROWS: usize = 15;

/// For each fuzz target: each run starts from the corpus and from other random bytes.
pub(crate) const FUZZ_SECONDS: usize = 5;

pub(crate) const SIMULATION_SEEDS: usize = 100_000;

/// How long the checks beside the tests may still take when these have ended.
pub(crate) const AFTER_THE_TESTS: Duration = Duration::from_secs(1_200);

/// How often each fault of the soak strikes: three times instead of the eight of `./test.sh soak`.
pub(crate) const SOAK_HITS: &str = "3";

pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How many programs run at a time. They leave two fifths of the processors to the checks beside them. Half as many more would end no
/// sooner with these, and answers would come too late.
pub(crate) fn lanes(processors: usize) -> usize {
    processors.max(2)
}

/// How many tests of a program run at a time; `asked` is `RUST_TEST_THREADS`, if it is set.
pub(crate) fn threads(program: &str, processors: usize, asked: Option<usize>) -> usize {
    let is_suite = program.contains("conformance");
    let each = if is_suite { CASES_PER_PROCESSOR } else { TESTS_PER_PROCESSOR };
    asked.unwrap_or(each * processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_runs_at_a_time_than_there_are_processors() {
        assert_eq!([1, 2, 8].map(lanes), [2, 2, 8]);
        assert_eq!(threads("lock-kit-lib-lock_kit-0a", 2, None), 4);
        assert_eq!(threads("lock-etcd-cluster_conformance-0a", 2, None), 12);
        assert_eq!(threads("lock-etcd-cluster_conformance-0a", 2, Some(1)), 1);
    }
}
