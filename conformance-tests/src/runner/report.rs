//! The results.

use std::collections::BTreeMap;
use std::fmt;

use crate::runner::clause;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything it checks held.
    Passed,
    /// It does not apply, for this reason.
    Ignored(String),
    /// Something did not hold: what, and what was seen.
    Failed(String),
}

/// One case and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    /// The name of the case.
    pub id: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// What [`run`](crate::run) returns: one result for each case that the filter let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order of the suite.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// The names of the cases that passed.
    pub fn passed(&self) -> impl Iterator<Item = &'static str> {
        self.results.iter().filter(|r| r.outcome == Outcome::Passed).map(|r| r.id)
    }

    /// The cases that failed, and what they saw.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|r| match &r.outcome {
            Outcome::Failed(seen) => Some((r.id, seen.as_str())),
            _ => None,
        })
    }

    /// The cases that failed since the store broke their clause, and what they saw: not those that
    /// could not be judged.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.failed().filter(|(id, seen)| seen.starts_with(&format!("{} broken: ", clause(id))))
    }

    /// The cases that do not apply, and why.
    pub fn ignored(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|r| match &r.outcome {
            Outcome::Ignored(reason) => Some((r.id, reason.as_str())),
            _ => None,
        })
    }

    /// The outcome of the case with this name, if it was run.
    pub fn outcome(&self, id: &str) -> Option<&Outcome> {
        self.results.iter().find(|r| r.id == id).map(|r| &r.outcome)
    }
}

/// The summary: how many ran, passed and failed, and how many were ignored for which reason.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, ignored) =
            (self.passed().count(), self.failed().count(), self.ignored().count());
        write!(f, "{} ran, {passed} passed, {failed} failed, {ignored} ignored", passed + failed)?;
        let mut reasons = BTreeMap::<&str, usize>::new();
        for (_, reason) in self.ignored() {
            *reasons.entry(reason).or_default() += 1;
        }
        for (reason, count) in reasons {
            write!(f, "\n  {count} ignored: {reason}")?;
        }
        Ok(())
    }
}
