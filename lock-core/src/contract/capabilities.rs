//! What a store can do.

use std::fmt;
use std::time::Duration;

use super::error::{Error, Result};
use super::fence::Fences;

/// What a backend promises. The conformance suite tests every declared capability. A request for an
/// undeclared one is refused with a typed error, never quietly weakened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// What a hold is bound to, and so what ends it.
    pub binding: Binding,
    /// How a waiter learns that it should try again.
    pub wake: Wake,
    /// Whether waiters are served in the order of their arrival. Where they are not, the core lets
    /// one task per process wait at the store, and the others wait behind it.
    pub fair: bool,
    /// How far the rising of the fencing tokens can be trusted.
    pub fencing: Fencing,
    /// Whether a grant can come with a block of fencing tokens (clause C16), so that tasks of one
    /// process can pass a hold on: see [`Lock::cohort`](crate::Lock::cohort).
    pub fence_block: bool,
    /// Whether another process can take over a hold.
    pub detachable: bool,
    /// Whether [`LockBackend::admin`](crate::LockBackend::admin) is available.
    pub inspect: bool,
    /// Whether [`LockBackend::look`](crate::LockBackend::look) is available (clause C18).
    pub look: bool,
    /// The shortest lease the store can keep; a shorter request is rounded up.
    pub min_ttl: Duration,
    /// The granularity of leases; a TTL between two steps is rounded up.
    pub ttl_step: Duration,
    /// The longest lease the store allows; a longer request is an error.
    pub max_ttl: Option<Duration>,
    /// The events after which there may be two holders, because the store forgets what it answered.
    pub loses_data_on: &'static [DataLoss],
}

impl Capabilities {
    /// The weakest promises for this binding and wake; set the fields where the store does better.
    pub const fn new(binding: Binding, wake: Wake) -> Self {
        Self {
            binding,
            wake,
            fair: false,
            fencing: Fencing::BestEffort,
            fence_block: false,
            detachable: false,
            inspect: false,
            look: false,
            min_ttl: Duration::from_millis(10),
            ttl_step: Duration::from_millis(1),
            max_ttl: None,
            loses_data_on: &[],
        }
    }

    /// Refuses a cohort of a size that is out of range, or that the store has no fences for.
    pub(crate) fn check_cohort(&self, cohort: u32, backend: &str) -> Result<()> {
        if !(1..=Fences::LONGEST).contains(&cohort) {
            return Err(Error::invalid(format!(
                "a cohort of {cohort} is out of range: it must be between 1 (no cohort) and {}",
                Fences::LONGEST
            )));
        }
        if cohort > 1 && !self.fence_block {
            return Err(Error::unsupported(format!(
                "a cohort of {cohort} needs a store that grants fencing tokens in blocks, and {backend} does not: leave the cohort at 1"
            )));
        }
        Ok(())
    }
}

/// What a hold is bound to, and so what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binding {
    /// Its own lease, which the store ends unless it is renewed.
    Lease,
    /// The session between this client and the store; all holds of the client live and die with it.
    Session,
}

/// How a waiter learns that it should try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wake {
    /// The store cannot push. The core polls.
    Poll,
    /// The store pushes, and a push can get lost. The core also polls, slowly.
    Hint,
    /// The store pushes, and after a reconnect replays what was missed. The core still polls, very
    /// slowly.
    Reliable,
}

/// How far the rising of the fencing tokens can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// What the store has acknowledged survives a crash, so tokens keep rising.
    Durable,
    /// The store can lose what it has acknowledged in ordinary operation, by a restart or a
    /// fail-over. Tokens then rise only where something else carries them, such as the server's
    /// clock.
    BestEffort,
}

/// An event after which the store may have forgotten a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataLoss {
    /// A restart of the store's process.
    Restart,
    /// A fail-over to a replica that was behind.
    Failover,
    /// Eviction under memory pressure.
    Eviction,
}

/// Something that not every store can do: see [`Locks::require`](crate::Locks::require).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// A lock can be handed to another process: [`LockGuard::detach`](crate::LockGuard::detach).
    Detach,
    /// Locks can be inspected and taken away: [`Locks::inspect`](crate::Locks::inspect).
    Inspect,
    /// Waiters are served in the order of their arrival.
    Fair,
    /// Tasks of one process can pass a hold on: [`Lock::cohort`](crate::Lock::cohort).
    Cohorts,
    /// Waiters are woken by the store, and do not poll.
    Push,
    /// Fencing tokens keep rising across a crash of the store.
    DurableFences,
    /// Locks can have this TTL.
    Ttl(Duration),
    /// Locks survive this event.
    Survives(DataLoss),
}

impl Capabilities {
    /// Whether this store has the feature.
    pub fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::Detach => self.detachable,
            Feature::Inspect => self.inspect,
            Feature::Fair => self.fair,
            Feature::Cohorts => self.fence_block,
            Feature::Push => self.wake != Wake::Poll,
            Feature::DurableFences => self.fencing == Fencing::Durable,
            Feature::Ttl(ttl) => {
                ttl >= self.min_ttl && self.max_ttl.is_none_or(|longest| ttl <= longest)
            }
            Feature::Survives(event) => !self.loses_data_on.contains(&event),
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detach => f.write_str("locks that another process can take over"),
            Self::Inspect => f.write_str("locks that can be inspected"),
            Self::Fair => f.write_str("waiters in the order of their arrival"),
            Self::Cohorts => f.write_str("holds that tasks of one process pass on"),
            Self::Push => f.write_str("waiters that are woken"),
            Self::DurableFences => f.write_str("fencing tokens that rise through a crash"),
            Self::Ttl(ttl) => write!(f, "a TTL of {ttl:?}"),
            Self::Survives(DataLoss::Restart) => f.write_str("locks that survive a restart"),
            Self::Survives(DataLoss::Failover) => f.write_str("locks that survive a fail-over"),
            Self::Survives(DataLoss::Eviction) => f.write_str("locks that are never evicted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Binding;

    #[test]
    fn a_store_has_what_it_declares() {
        let mut can = Capabilities::new(Binding::Lease, Wake::Poll);
        (can.min_ttl, can.max_ttl) = (Duration::from_secs(2), Some(Duration::from_secs(9)));
        can.loses_data_on = &[DataLoss::Restart];
        let ttls = [1, 2, 9, 10].map(|ttl| can.has(Feature::Ttl(Duration::from_secs(ttl))));
        assert_eq!(ttls, [false, true, true, false]);
        can.max_ttl = None;
        assert!(can.has(Feature::Ttl(Duration::MAX)));
        assert!(!can.has(Feature::Survives(DataLoss::Restart)));
        assert!(can.has(Feature::Survives(DataLoss::Failover)));
        assert!(!can.has(Feature::Push) && !can.has(Feature::DurableFences));
        (can.wake, can.fencing) = (Wake::Hint, Fencing::Durable);
        assert!(can.has(Feature::Push) && can.has(Feature::DurableFences));
    }
}
