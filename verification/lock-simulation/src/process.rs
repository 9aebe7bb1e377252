//! One simulated process: a `Locks`, whether it runs, its runtime, which runs only while it is driven, and
//! its clock, which starts anywhere and runs a little too fast or too slow.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error, Locks, Result, Rng, Sleep};
use tokio::runtime::{Builder, Handle, Id, Runtime};

use crate::property::Variant;
use crate::store::backend::Backend;
use crate::store::network::Network;
use crate::world::{Time, World, nanos};

#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    locks: Locks,
    suspended_until: AtomicU64,
    suspensions: AtomicU64,
    is_closed: AtomicBool,
    has_lost_a_runtime: AtomicBool,
}

impl Process {
    /// `runtime` is where its keepers run; if there is none, on that of each caller.
    pub(crate) fn new(network: &Network, index: usize, runtime: Option<Handle>) -> Result<Self> {
        let world = network.world();
        let backend = Backend { network: network.clone(), process: index };
        let rng = Owners {
            next: AtomicU64::new(1 + (index as u64) * 1_000_000),
            only: world.is_wrong(Variant::RepeatsOwners).then_some(index as u64),
        };
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
            has_lost_a_runtime: AtomicBool::new(false),
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

    pub(crate) fn loses_a_runtime(&self) {
        self.0.has_lost_a_runtime.store(true, Relaxed);
    }

    /// Whether one on which its tasks run has ended.
    pub(crate) fn has_lost_a_runtime(&self) -> bool {
        self.0.has_lost_a_runtime.load(Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Relaxed)
    }
}

/// Owner ids that differ, and jitter that can be replayed.
#[derive(Debug)]
struct Owners {
    next: AtomicU64,
    /// The only one, in a wrong variant.
    only: Option<u64>,
}

impl Rng for Owners {
    fn fill(&self, bytes: &mut [u8]) -> std::result::Result<(), Error> {
        let next = self.next.fetch_add(1, Relaxed);
        let drawn = if bytes.len() == 16 { self.only.unwrap_or(next) } else { next };
        let mixed = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = mixed.rotate_left(7 + 8 * u32::try_from(at % 8).unwrap_or(0)).to_le_bytes()[0];
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) id: Id,
    /// `None` once it has ended.
    runtime: Option<Runtime>,
    idle: Arc<Idle>,
    pub(crate) stands_until: Time,
    /// Something has happened since it was driven.
    pub(crate) is_stirred: bool,
}

#[derive(Debug, Default)]
struct Idle {
    is_parked: AtomicBool,
    root: Mutex<Option<Waker>>,
}

impl Driven {
    pub(crate) fn new() -> io::Result<Self> {
        let idle = Arc::new(Idle::default());
        let parks = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || {
                parks.is_parked.store(true, Relaxed);
                if let Some(root) = &*parks.root.lock().unwrap_or_else(PoisonError::into_inner) {
                    root.wake_by_ref();
                }
            })
            .build()?;
        let id = runtime.handle().id();
        Ok(Self { id, runtime: Some(runtime), idle, stands_until: 0, is_stirred: false })
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        self.runtime.as_ref().map(|runtime| runtime.handle().clone())
    }

    /// Runs its tasks until none is ready.
    pub(crate) fn drive(&self) {
        let Some(runtime) = &self.runtime else { return };
        self.idle.is_parked.store(false, Relaxed);
        runtime.block_on(poll_fn(|cx| {
            if self.idle.is_parked.load(Relaxed) {
                return Poll::Ready(());
            }
            let mut root = self.idle.root.lock().unwrap_or_else(PoisonError::into_inner);
            *root = Some(cx.waker().clone());
            Poll::Pending
        }));
    }

    /// Ends it, with all its tasks.
    pub(crate) fn end(&mut self) {
        self.runtime = None;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.runtime.is_none()
    }
}

/// Parts per million by which a client's clock may be wrong: just within what the core allows for.
const DRIFT: i64 = 9_900;

#[derive(Clone, Debug)]
pub(crate) struct DriftingClock {
    world: World,
    offset: u64,
    /// Its nanoseconds for each million of the true ones.
    rate: u128,
}

impl DriftingClock {
    pub(crate) fn new(world: &World) -> Self {
        let drift = [0, DRIFT, -DRIFT, DRIFT / 2][world.below(4)];
        let slow = if world.is_wrong(Variant::SlowClock) { 100_000 } else { 0 };
        let rate = u128::from((1_000_000 + drift - slow).unsigned_abs());
        let offset = 1_000_000_000 * (1 + world.below(200) as u64);
        Self { world: world.clone(), offset, rate }
    }

    fn shown(&self, time: Time) -> u64 {
        self.offset + u64::try_from(u128::from(time) * self.rate / 1_000_000).unwrap_or(u64::MAX)
    }

    /// The first true time at which this clock shows at least `shown`.
    fn true_time(&self, shown: u64) -> Time {
        let passed = u128::from(shown.saturating_sub(self.offset));
        u64::try_from((passed * 1_000_000).div_ceil(self.rate)).unwrap_or(u64::MAX)
    }
}

impl Clock for DriftingClock {
    fn now(&self) -> ClockInstant {
        ClockInstant::from_nanos(self.shown(self.world.now()))
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        if at == ClockInstant::FAR_FUTURE {
            return Box::pin(std::future::pending());
        }
        let mut at = self.true_time(at.as_nanos());
        if self.world.is_wrong(Variant::LateTimers) {
            at = at.saturating_add(nanos(Duration::from_millis(700)));
        }
        Box::pin(self.world.sleep_until(at))
    }
}
