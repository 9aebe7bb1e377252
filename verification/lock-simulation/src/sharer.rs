//! What the tasks of the simulated processes do with permits, as readers and as writers.

use std::time::Duration;

use lock_core::kinds::{Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use lock_core::{Held, LockKey, LockState, LostReason, Result};

use crate::choices::Scenario;
use crate::property::{Property, Violation};
use crate::sharing::{Share, Wish};
use crate::store::network::{LONG_TTL, LONGEST_TTL};
use crate::user::User;

/// Within what time all of them have their turns when there are no faults.
pub(crate) const ALL_TURNS: Duration = Duration::from_secs(8);

/// The longest work of one of them when there are no faults.
const BRIEF: Duration = Duration::from_millis(200);

enum Wanted {
    Permit(Semaphore),
    Read(RwLock),
    Write(RwLock),
}

enum Guard {
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// Calls a method of each kind by a name of its own.
macro_rules! each {
    ($wanted:ident, $permit:ident, $read:ident, $write:ident $(, $limit:ident)?) => {
        match $wanted {
            Wanted::Permit(lock) => lock.$permit($($limit)?).await.map(Guard::Permit),
            Wanted::Read(lock) => lock.$read($($limit)?).await.map(Guard::Read),
            Wanted::Write(lock) => lock.$write($($limit)?).await.map(Guard::Write),
        }
    };
}

impl Wanted {
    fn wish(&self) -> (LockKey, Wish) {
        match self {
            Self::Permit(lock) => (lock.key().clone(), Wish::Permit { of: lock.permits() }),
            Self::Read(lock) | Self::Write(lock) => (lock.key().clone(), Wish::ReadOrWrite),
        }
    }

    async fn acquire(&self) -> Result<Guard> {
        each!(self, acquire, read, write)
    }

    async fn acquire_timeout(&self, limit: Duration) -> Result<Guard> {
        each!(self, acquire_timeout, read_timeout, write_timeout, limit)
    }

    async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self {
            Self::Permit(lock) => lock.try_acquire().await.map(|taken| taken.map(Guard::Permit)),
            Self::Read(lock) => lock.try_read().await.map(|taken| taken.map(Guard::Read)),
            Self::Write(lock) => lock.try_write().await.map(|taken| taken.map(Guard::Write)),
        }
    }
}

impl Guard {
    fn held(&self) -> &Held {
        match self {
            Self::Permit(guard) => guard.held(),
            Self::Read(guard) => guard.held(),
            Self::Write(guard) => guard.held(),
        }
    }

    fn share(&self, permits: u32) -> Share {
        match self {
            Self::Permit(permit) => Share::Permit { slot: permit.slot(), permits },
            Self::Read(_) => Share::Read,
            Self::Write(_) => Share::Write,
        }
    }

    async fn renew(&self) {
        let _ = match self {
            Self::Permit(guard) => guard.renew().await,
            Self::Read(guard) => guard.renew().await,
            Self::Write(guard) => guard.renew().await,
        };
    }

    async fn check(&self) {
        let _ = match self {
            Self::Permit(guard) => guard.check().await,
            Self::Read(guard) => guard.check().await,
            Self::Write(guard) => guard.check().await,
        };
    }

    async fn release(self) {
        let _ = match self {
            Self::Permit(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        };
    }

    async fn run(self, user: &User) {
        let work = async |held| user.watched(held).await;
        let _ = match self {
            Self::Permit(guard) => guard.run(work).await,
            Self::Read(guard) => guard.run(work).await,
            Self::Write(guard) => guard.run(work).await,
        };
    }
}

impl User {
    /// Takes a permit, reads or writes, and gives it up, each in one of the ways that there are.
    pub(crate) async fn share(&self) {
        let Ok(wanted) = self.wanted() else { return };
        let (key, wish) = wanted.wish();
        self.network.observer().waits_for_share(&key, wish);
        let guard = self.take_share(&wanted).await;
        if let Some(Guard::Read(guard)) = &guard
            && guard.token().is_ok()
        {
            self.network.observer().reads();
        }
        self.network.observer().waits_for_no_share(&key, wish);
        let Some(guard) = guard else { return };
        let Ok(token) = guard.held().token() else { return };
        let share = guard.share(self.permits);
        self.world().tell(|| format!("a task has {share:?} with token {token}"));
        self.network.observer().shares(guard.held(), share);
        let view = guard.held().clone();
        self.work_on(&guard).await;
        // Others of the process may share the hold.
        if view.state() == LockState::Lost(LostReason::Released) {
            self.is_wrong(format!("{share:?} with token {token} was ended by a release of others"));
        }
        self.give_up_share(guard).await;
        if !matches!(view.state(), LockState::Lost(_)) {
            self.is_wrong(format!("{share:?} with token {token} is believed after its release"));
        }
        self.world().tell(|| format!("a task has given up {share:?} with token {token}"));
    }

    fn is_wrong(&self, what: String) {
        self.world().violated(Violation::new(Property::Sharing, what));
    }

    fn wanted(&self) -> Result<Wanted> {
        let (world, locks) = (self.world(), self.process.locks());
        let name = ["a", "b"][world.below(self.names)];
        let which = world.below(5);
        // Only tasks with the same ttl share a hold.
        let ttl = if world.has(Scenario::LONG_TTL) {
            LONG_TTL
        } else {
            LONGEST_TTL / [1, 1, 2, 6][world.below(4)]
        };
        let is_renewed = !world.one_in(8);
        if which == 0 || which == 1 {
            let lock = locks.semaphore(name, self.permits)?.ttl(ttl);
            return Ok(Wanted::Permit(if is_renewed { lock } else { lock.no_renew() }));
        }
        let lock = locks.rw_lock(name)?.ttl(ttl);
        let lock = if is_renewed { lock } else { lock.no_renew() };
        Ok(if which == 2 { Wanted::Write(lock) } else { Wanted::Read(lock) })
    }

    async fn take_share(&self, wanted: &Wanted) -> Option<Guard> {
        let world = self.world();
        match world.below(8) {
            4 => wanted.try_acquire().await.ok()?,
            5 => {
                let limit = Duration::from_millis(1) + world.duration(LONGEST_TTL);
                self.in_time(limit, wanted.acquire_timeout(limit)).await.ok()
            }
            6 | 7 => self.dropped(LONGEST_TTL, wanted.acquire()).await?.ok(),
            _ => wanted.acquire().await.ok(),
        }
    }

    async fn work_on(&self, guard: &Guard) {
        let world = self.world();
        for _ in 0..world.below(3) {
            match world.below(8) {
                5 => guard.renew().await,
                6 => guard.check().await,
                7 => drop(self.dropped(LONGEST_TTL, guard.renew()).await),
                _ if world.is_healed() => self.pause(BRIEF).await,
                _ => self.pause(LONGEST_TTL).await,
            }
        }
    }

    async fn give_up_share(&self, guard: Guard) {
        match self.world().below(8) {
            4 => drop(guard),
            5 => drop(self.dropped(LONGEST_TTL, guard.release()).await),
            6 if !self.world().is_healed() => guard.run(self).await,
            _ => guard.release().await,
        }
    }
}
