//! What a store says about its own state, for people.

use std::fmt;

/// One thing that an operator should know about a store, found by
/// [`LockAdmin::diagnose`](crate::LockAdmin::diagnose).
///
/// ```
/// use lock_core::{Finding, Severity};
///
/// let finding = Finding::warning("the server keeps no data", "set appendonly to yes");
/// assert_eq!(finding.severity, Severity::Warning);
/// assert_eq!(finding.to_string(), "the server keeps no data: set appendonly to yes");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found, and where. Never a credential.
    pub what: String,
    /// What to do about it; `None` if nothing needs to be done.
    pub remedy: Option<String>,
}

/// How much a [`Finding`] matters. The worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know; nothing needs to be done.
    Fact,
    /// Locks work, but not in every event that can be expected, or not as well as they could.
    Warning,
    /// Locks cannot be taken, or may have two holders.
    Critical,
}

impl Finding {
    /// Something to know.
    pub fn fact(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fact, what: what.into(), remedy: None }
    }

    /// Something to mend, and how.
    pub fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), remedy: Some(remedy.into()) }
    }

    /// Something to mend at once, and how.
    pub fn critical(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Critical, what: what.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.remedy {
            Some(remedy) => write!(f, ": {remedy}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fact => "fact",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_shown_with_its_remedy() {
        let (fact, warning) = (Finding::fact("a"), Finding::warning("b", "do c"));
        assert_eq!((fact.to_string(), warning.to_string()), ("a".to_owned(), "b: do c".to_owned()));
        let critical = Finding::critical("d", "do e").severity;
        assert_eq!(format!("{:<8}|{:<8}", critical, fact.severity), "critical|fact    ");
    }
}
