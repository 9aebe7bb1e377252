//! One simulated process: a clock, a `Locks`, and whether it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{Error, Locks, Result, Rng};
use tokio::runtime::Handle;

use crate::backend::Backend;
use crate::clock::DriftingClock;
use crate::network::Network;
use crate::world::{Time, World};

#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    locks: Locks,
    suspended_until: AtomicU64,
    suspensions: AtomicU64,
    is_closed: AtomicBool,
}

impl Process {
    /// `runtime` is where its keepers run; if there is none, on that of each caller.
    pub(crate) fn new(network: &Network, index: usize, runtime: Option<Handle>) -> Result<Self> {
        let world = network.world();
        let backend = Backend { network: network.clone(), process: index };
        let rng = Owners { next: AtomicU64::new(1 + (index as u64) * 1_000_000) };
        let builder = Locks::builder(backend)
            .clock(DriftingClock::new(world))
            .rng(rng)
            .label("")
            .unavailable_after(Duration::from_secs([30, 3][world.below(2)]));
        let builder = match runtime {
            Some(runtime) => builder.runtime(runtime),
            None => builder,
        };
        Ok(Self(Arc::new(Inner {
            locks: builder.build()?,
            suspended_until: AtomicU64::new(0),
            suspensions: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        })))
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    pub(crate) fn suspend(&self, until: Time) {
        self.0.suspended_until.store(until, Relaxed);
        self.0.suspensions.fetch_add(1, Relaxed);
    }

    pub(crate) fn runs(&self, world: &World) -> bool {
        world.is_healed() || world.now() >= self.suspended_until()
    }

    pub(crate) fn suspended_until(&self) -> Time {
        self.0.suspended_until.load(Relaxed)
    }

    /// How often it has been suspended.
    pub(crate) fn suspensions(&self) -> u64 {
        self.0.suspensions.load(Relaxed)
    }

    pub(crate) fn closes(&self) {
        self.0.is_closed.store(true, Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Relaxed)
    }
}

/// Owner ids that differ, and jitter that can be replayed.
#[derive(Debug)]
struct Owners {
    next: AtomicU64,
}

impl Rng for Owners {
    fn fill(&self, bytes: &mut [u8]) -> std::result::Result<(), Error> {
        let mixed = self.next.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = mixed.rotate_left(7 + 8 * u32::try_from(at % 8).unwrap_or(0)).to_le_bytes()[0];
        }
        Ok(())
    }
}
