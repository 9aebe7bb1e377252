//! How much of a store is tested: the first cases of a new one are to be green on the first morning.

use crate::matrix::{Call, State};
use crate::runner::case::{Case, Need};

/// The variable that says up to which level the cases run.
pub(crate) const LEVEL: &str = "LOCK_TEST_LEVEL";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// A claim can be acquired and released, and that is all.
    Release,
    /// All calls, and nothing goes wrong around them.
    Calm,
    /// All that the suite knows.
    Whole,
}

impl Level {
    /// What the variable says.
    ///
    /// # Errors
    ///
    /// If it is no level.
    pub(crate) fn asked() -> Result<Self, String> {
        match std::env::var(LEVEL) {
            Err(_) => Ok(Self::Whole),
            Ok(text) => Self::read(&text).ok_or_else(|| {
                format!(
                    "{LEVEL}={text}: it is 1 for `try_acquire` and `release`, 2 for all calls without faults, or 3 for everything"
                )
            }),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "1" => Some(Self::Release),
            "2" => Some(Self::Calm),
            "3" => Some(Self::Whole),
            _ => None,
        }
    }

    /// The first level that has this case.
    pub(crate) fn of(case: &Case) -> Self {
        let is_first = |call, state| {
            matches!(call, Call::TryAcquire | Call::Release)
                && matches!(state, State::New | State::Refused | State::Held | State::Done)
        };
        let calls_only_first = case.covers.iter().all(|cell| is_first(cell.call, cell.state));
        if case.guards.is_empty()
            && !case.covers.is_empty()
            && calls_only_first
            && case.needs.is_empty()
        {
            return Self::Release;
        }
        let is_calm = |need: &Need| !matches!(need, Need::Faults | Need::Processes | Need::Alone);
        if case.needs.iter().all(is_calm) { Self::Calm } else { Self::Whole }
    }

    /// Why a case of this level is ignored.
    pub(crate) fn left_out(self) -> String {
        format!("it is of level {}, which {LEVEL} leaves out", self as u8 + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lock_core::{
        Attempt, Binding, Capabilities, Claim, ClaimRequest, Error, LockBackend, Released, Renewal,
        Result, Wake, async_trait,
    };

    use super::*;
    use crate::runner::report::Outcome;
    use crate::{Harness, MemoryHarness, cases, runner};

    /// A store whose author has written `try_acquire` and `release`.
    #[derive(Debug)]
    struct Begun(Arc<dyn LockBackend>);

    #[derive(Debug)]
    struct BegunClaim(Box<dyn Claim>);

    fn not_yet<T>() -> Result<T> {
        Err(Error::unsupported("not yet written"))
    }

    #[async_trait]
    impl LockBackend for Begun {
        fn name(&self) -> &'static str {
            "begun"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::new(Binding::Lease, Wake::Poll)
        }

        fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
            Ok(Box::new(BegunClaim(self.0.claim(request)?)))
        }

        async fn ping(&self) -> Result<()> {
            not_yet()
        }
    }

    #[async_trait]
    impl Claim for BegunClaim {
        async fn try_acquire(&mut self) -> Result<Attempt> {
            self.0.try_acquire().await
        }

        async fn renew(&mut self) -> Result<Renewal> {
            not_yet()
        }

        async fn check(&mut self) -> Result<Renewal> {
            not_yet()
        }

        async fn release(&mut self) -> Result<Released> {
            self.0.release().await
        }
    }

    #[test]
    fn a_store_that_can_acquire_and_release_passes_the_first_level() {
        let begun = |inner| Arc::new(Begun(inner)) as Arc<dyn LockBackend>;
        let harness = MemoryHarness::poll_only().wrapped("begun", begun);
        let harness: Arc<dyn Harness> = Arc::new(harness);
        let first: Vec<_> = cases::all().filter(|case| Level::of(case) == Level::Release).collect();
        println!("{first:#?}");
        assert!(first.len() >= 20, "only {}", first.len());
        let failed =
            first.iter().filter_map(|case| match runner::run_case(&harness, **case).outcome() {
                Outcome::Passed => None,
                other => Some(format!("{}: {other:?}", case.id)),
            });
        assert_eq!(failed.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn the_levels_grow() {
        let of = |level| cases::all().filter(|case| Level::of(case) <= level).count();
        let sizes = [Level::Release, Level::Calm, Level::Whole].map(of);
        assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
        assert_eq!(sizes[2], cases::all().count());
        assert_eq!(
            ["1", "2", "3"].map(Level::read),
            [Level::Release, Level::Calm, Level::Whole].map(Some)
        );
        assert_eq!(Level::read("0"), None);
    }
}
