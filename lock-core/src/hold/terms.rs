//! What a lock asks for: which settings are allowed, and how they are rounded.

use std::sync::Arc;
use std::time::Duration;

use super::held::{margin, promised_end};
use crate::{Capabilities, ClockInstant, Error, Result};

/// A lock's own settings, as the caller gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) ttl: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    pub(crate) renewal: RenewalWish,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) cohort: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RenewalWish {
    /// Every third of the TTL.
    #[default]
    Default,
    Every(Duration),
    Never,
}

/// A lock's settings unless it overrides them.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// `None`: 30 s, or what the store allows.
    pub(crate) ttl: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) min_hold: Duration,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) unavailable_after: Duration,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) cohort: u32,
}

/// What was asked for, checked and rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockTerms {
    /// How long the holder counts on a grant or a renewal.
    pub(crate) ttl: Duration,
    /// For how long after that the store is asked to keep it, so that others come later by the delay.
    pub(crate) kept_after: Duration,
    /// How often the lock is renewed; `None` for never.
    pub(crate) renew_every: Option<Duration>,
    /// How often it is renewed once renewal is requested.
    pub(crate) every: Duration,
    /// How long after the grant others get the lock at the earliest.
    pub(crate) min_hold: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) call_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    /// How many tasks of this process may have one hold after the other.
    pub(crate) cohort: u32,
    pub(crate) label: Option<Arc<str>>,
}

impl LockTerms {
    /// The TTL that the store is asked for.
    pub(crate) fn kept_for(&self) -> Duration {
        self.ttl + self.kept_after
    }

    /// Until when the holder counts on what the store has promised for a call that was sent at `sent`.
    pub(crate) fn promised_end(&self, sent: ClockInstant, valid_for: Duration) -> ClockInstant {
        promised_end(sent, valid_for.saturating_sub(self.kept_after), self.ttl)
    }

    /// Until when the store keeps the lock at least, if the holder counts on it `until` then.
    pub(crate) fn kept_until(&self, until: ClockInstant) -> ClockInstant {
        until + margin(self.ttl) + self.kept_after
    }

    #[cfg(test)]
    pub(crate) fn for_a_test() -> Self {
        let second = Duration::from_secs(1);
        Self {
            ttl: 30 * second,
            kept_after: Duration::ZERO,
            renew_every: None,
            every: 10 * second,
            min_hold: Duration::ZERO,
            max_hold: None,
            call_timeout: second,
            unavailable_after: second,
            cohort: 1,
            label: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// Below this the margins would use up the validity.
    const SHORTEST_TTL: Duration = Duration::from_millis(10);
    pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
    const SHORTEST_CALL: Duration = Duration::from_millis(10);
    pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(5);

    /// Checks everything before anything is sent.
    pub(crate) fn terms(
        &self,
        defaults: &Defaults,
        store: &Capabilities,
        backend: &str,
        label: Option<Arc<str>>,
    ) -> Result<LockTerms> {
        let asked = self.ttl.or(defaults.ttl);
        let ttl = round_ttl(asked.unwrap_or_else(|| default_ttl(store)), store)?;
        let kept_after = kept_after(self.lock_delay.unwrap_or(defaults.lock_delay), ttl)?;
        // What the store rounds up is more for the holder to count on.
        let ttl = round_ttl(ttl + kept_after, store)?.saturating_sub(kept_after);
        let every = match self.renewal {
            RenewalWish::Never | RenewalWish::Default => ttl / 3,
            RenewalWish::Every(every) => check_renewal(every, ttl)?,
        };
        let renew_every = (!matches!(self.renewal, RenewalWish::Never)).then_some(every);
        if self.max_hold.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::invalid(
                "max_hold is zero: allow at least a millisecond, or omit it",
            ));
        }
        let (min_hold, max_hold) = (self.min_hold.unwrap_or(defaults.min_hold), self.max_hold);
        if let Some(limit) = max_hold.filter(|limit| *limit < min_hold) {
            return Err(Error::invalid(format!(
                "a min_hold of {min_hold:?} is longer than max_hold, {limit:?}: make it shorter"
            )));
        }
        let by_ttl = (ttl / 3).clamp(Self::SHORTEST_CALL, Self::LONGEST_CALL);
        let call_timeout = defaults.call_timeout.unwrap_or(by_ttl);
        let unavailable_after = defaults.unavailable_after;
        let cohort = self.cohort.unwrap_or(defaults.cohort);
        store.check_cohort(cohort, backend)?;
        Ok(LockTerms {
            ttl,
            kept_after,
            renew_every,
            every,
            min_hold,
            max_hold,
            call_timeout,
            unavailable_after,
            cohort,
            label,
        })
    }
}

impl Defaults {
    /// Checks what was set for all locks of a store.
    pub(crate) fn check(&self, store: &Capabilities, backend: &str) -> Result<()> {
        if let Some(limit) = self.call_timeout {
            if limit.is_zero() {
                return Err(Error::invalid("call_timeout is zero: no store answers that fast"));
            }
            if limit > Options::LONGEST_TTL {
                return Err(Error::invalid(format!(
                    "a call_timeout of {limit:?} is out of range: it must be at most 366 days, the longest TTL"
                )));
            }
        }
        store.check_cohort(self.cohort, backend)?;
        self.ttl.map_or(Ok(()), |ttl| round_ttl(ttl, store).map(drop))
    }
}

/// The TTL if none was set: a store that keeps locks for less must work, too.
fn default_ttl(store: &Capabilities) -> Duration {
    Options::DEFAULT_TTL.min(store.max_ttl.unwrap_or(Duration::MAX))
}

/// The TTL that the store can keep: never shorter than asked for.
fn round_ttl(ttl: Duration, store: &Capabilities) -> Result<Duration> {
    if ttl < Options::SHORTEST_TTL || ttl > Options::LONGEST_TTL {
        return Err(Error::invalid(format!(
            "a TTL of {ttl:?} is out of range: it must be between 10ms and 366 days"
        )));
    }
    let step = store.ttl_step.as_nanos().max(1);
    let wanted = ttl.max(store.min_ttl).as_nanos();
    let rounded =
        Duration::from_nanos(u64::try_from(wanted.div_ceil(step) * step).unwrap_or(u64::MAX));
    if let Some(longest) = store.max_ttl.filter(|longest| rounded > *longest) {
        return Err(Error::invalid(format!(
            "a TTL of {ttl:?} is longer than this store allows, {longest:?}: shorten it, and let the lock renew itself"
        )));
    }
    Ok(rounded)
}

/// How much longer than the TTL the store is asked to keep the lock: the clocks may drift apart meanwhile. What a
/// store promises may be less by a share of all of it, which must leave most of the TTL.
fn kept_after(lock_delay: Duration, ttl: Duration) -> Result<Duration> {
    if lock_delay > ttl * 10 {
        return Err(Error::invalid(format!(
            "a lock_delay of {lock_delay:?} does not fit a TTL of {ttl:?}: it must be at most ten times the TTL"
        )));
    }
    Ok(lock_delay + lock_delay / 100)
}

/// A renewal must come early enough that a second one can follow before the lease ends.
fn check_renewal(every: Duration, ttl: Duration) -> Result<Duration> {
    if every.is_zero() || every > ttl * 2 / 3 {
        return Err(Error::invalid(format!(
            "renewing every {every:?} does not fit a TTL of {ttl:?}: it must be more than zero and at most two thirds of the TTL"
        )));
    }
    Ok(every)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Binding, Wake};

    #[test]
    fn a_ttl_is_rounded_up_to_what_the_store_keeps() {
        let mut store = Capabilities::new(Binding::Lease, Wake::Poll);
        store.min_ttl = Duration::from_secs(2);
        store.ttl_step = Duration::from_secs(1);
        store.max_ttl = Some(Duration::from_secs(30));
        let rounded = |ms| round_ttl(Duration::from_millis(ms), &store).map(|d| d.as_secs());
        assert_eq!(rounded(500).unwrap(), 2);
        assert_eq!(rounded(2000).unwrap(), 2);
        assert_eq!(rounded(2001).unwrap(), 3);
        assert!(rounded(30_001).is_err());
        for bad in [0, 9] {
            assert!(rounded(bad).is_err());
        }
        assert!(round_ttl(Duration::MAX, &store).is_err());
    }

    #[test]
    fn the_default_is_what_the_store_allows() {
        let mut store = Capabilities::new(Binding::Session, Wake::Poll);
        assert_eq!(default_ttl(&store), Options::DEFAULT_TTL);
        store.max_ttl = Some(Duration::from_secs(60));
        assert_eq!(default_ttl(&store), Options::DEFAULT_TTL);
        store.max_ttl = Some(Duration::from_secs(20));
        assert_eq!(default_ttl(&store), Duration::from_secs(20));
        assert!(round_ttl(default_ttl(&store), &store).is_ok());
        assert!(
            round_ttl(Options::DEFAULT_TTL, &store).is_err(),
            "a requested ttl is not shortened"
        );
    }

    #[test]
    fn a_renewal_leaves_time_for_a_second_one() {
        let ttl = Duration::from_secs(30);
        assert!(check_renewal(Duration::from_secs(20), ttl).is_ok());
        assert!(check_renewal(Duration::from_secs(21), ttl).is_err());
        assert!(check_renewal(Duration::ZERO, ttl).is_err());
    }
}
