//! What a program can require of a store.

use std::fmt;
use std::time::Duration;

use super::capabilities::{Capabilities, DataLoss, Fencing, Wake};

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
    /// Locks can have this ttl.
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
            Self::Ttl(ttl) => write!(f, "a ttl of {ttl:?}"),
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
