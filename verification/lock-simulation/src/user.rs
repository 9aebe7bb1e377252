//! What the tasks of the simulated processes do with their locks.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use lock_core::{FencingToken, Held, LeaseToken, Lock, LockGuard, LockState, LostReason, Result};

use crate::process::Process;
use crate::property::{Property, Violation};
use crate::store::network::{LONGEST_TTL, Network};
use crate::world::{Time, World, nanos};

/// What the core allows a caller beyond its limit, and a moment for the drift of the clock.
const GRACE: Duration = Duration::from_millis(260);

pub(crate) struct User {
    pub(crate) network: Network,
    pub(crate) process: Process,
    /// A process to which a lock can be handed over.
    pub(crate) other: Process,
    pub(crate) names: usize,
}

/// A lock that was got.
struct Taken {
    guard: LockGuard,
    fence: FencingToken,
    /// How often the processes had been suspended by then.
    suspensions: u64,
}

impl User {
    /// Takes locks while there are faults, and again from `calm_at` on, when there are none.
    pub(crate) async fn run(self, calm_at: Time) {
        for _ in 0..1 + self.world().below(3) {
            self.pause(Duration::from_secs(1)).await;
            if self.world().is_healed() {
                break;
            }
            self.step().await;
        }
        self.world().sleep_until(calm_at).await;
        for _ in 0..1 + self.world().below(2) {
            self.pause(Duration::from_millis(200)).await;
            self.step().await;
        }
    }

    fn world(&self) -> &World {
        self.network.world()
    }

    /// How often the processes have been suspended that this task needs.
    fn suspensions(&self) -> u64 {
        self.process.suspensions() + self.other.suspensions()
    }

    async fn pause(&self, longest: Duration) {
        self.world().sleep(self.world().duration(longest)).await;
    }

    /// Takes a lock, works, and gives it up, each in one of the ways that there are.
    async fn step(&self) {
        let world = self.world();
        if world.fault(48) {
            self.process.closes();
            // It says what it has left behind.
            let _ = self.process.locks().close(world.duration(LONGEST_TTL)).await;
        }
        let ttl = self.ttl();
        let Ok(lock) = self.lock(ttl) else { return };
        let before = self.network.observer().waits(lock.key());
        let guard = self.take(&lock, ttl).await;
        self.network.observer().waits_no_longer(lock.key());
        let suspensions = self.suspensions();
        let Some(guard) = guard else { return };
        let Ok(fence) = guard.token() else { return };
        world.tell(|| format!("a task has {} with fence {fence}", lock.key()));
        self.network.observer().granted(&guard, fence, before);
        let taken = Taken { guard, fence, suspensions };
        self.work(&taken).await;
        self.give_up(&lock, taken).await;
        world.tell(|| format!("a task has given up fence {fence}"));
        self.network.observer().left(lock.key(), fence);
    }

    fn ttl(&self) -> Duration {
        LONGEST_TTL / [1, 2, 6, 20][self.world().below(4)]
    }

    fn lock(&self, ttl: Duration) -> Result<Lock> {
        let world = self.world();
        let name = ["a", "b"][world.below(self.names)];
        let lock = self.process.locks().named(name)?.ttl(ttl);
        Ok(match world.below(8) {
            6 => lock.no_renew(),
            7 => lock.max_hold(ttl / 2 + world.duration(ttl)),
            _ => lock,
        })
    }

    /// The guard, unless the lock was not got, or the future was dropped before.
    async fn take(&self, lock: &Lock, ttl: Duration) -> Option<LockGuard> {
        let world = self.world();
        match world.below(8) {
            4 => self.in_time(longest_call(ttl), lock.try_acquire()).await.ok()?,
            5 => {
                let limit = Duration::from_millis(1) + world.duration(LONGEST_TTL);
                self.in_time(limit, lock.acquire_timeout(limit)).await.ok()
            }
            6 | 7 => self.dropped(LONGEST_TTL, lock.acquire()).await?.ok(),
            _ => lock.acquire().await.ok(),
        }
    }

    async fn work(&self, taken: &Taken) {
        let guard = &taken.guard;
        let patience = patience(guard.ttl());
        for _ in 0..self.world().below(4) {
            match self.world().below(8) {
                // What it says is seen in the state.
                4 => drop(self.in_time(patience, guard.renew()).await),
                5 => drop(self.in_time(patience, guard.check()).await),
                6 => self.wait_for_loss(taken).await,
                7 => drop(self.dropped(LONGEST_TTL, guard.renew()).await),
                _ => self.pause(LONGEST_TTL).await,
            }
        }
    }

    /// A loss by the clock is signalled before the store ends the hold, if the process runs.
    async fn wait_for_loss(&self, taken: &Taken) {
        let (guard, lost) = (&taken.guard, taken.guard.lost());
        if matches!(guard.state(), LockState::Lost(_)) {
            return;
        }
        let reason = self.dropped(2 * LONGEST_TTL, lost.wait()).await;
        let observer = self.network.observer();
        if matches!(reason, Some(LostReason::Expired | LostReason::MaxHold))
            && self.suspensions() == taken.suspensions
            && !observer.is_kept(guard.key(), taken.fence)
        {
            let what = format!("the loss of fence {} was signalled after its end", taken.fence);
            self.world().violated(Violation::new(Property::LossInTime, what));
        }
    }

    async fn give_up(&self, lock: &Lock, Taken { guard, fence, .. }: Taken) {
        let observer = self.network.observer();
        let ttl = guard.ttl();
        let patience = patience(ttl);
        // What the calls answer is not needed: the store shows what they have done.
        match self.world().below(8) {
            4 => {
                observer.left(lock.key(), fence);
                drop(guard);
            }
            5 => {
                observer.left(lock.key(), fence);
                drop(self.dropped(LONGEST_TTL, guard.release()).await);
            }
            6 => drop(guard.run(async |held| self.watched(held).await).await),
            7 => {
                let detach = self.in_time(patience, guard.detach());
                if let Some(Ok(token)) = self.dropped(LONGEST_TTL, detach).await {
                    self.hand_over(lock, token, fence).await;
                }
            }
            _ => {
                observer.left(lock.key(), fence);
                drop(self.in_time(patience, guard.release()).await);
            }
        }
    }

    /// Another process takes the lock over, and somebody releases it.
    async fn hand_over(&self, lock: &Lock, token: LeaseToken, fence: FencingToken) {
        self.pause(Duration::from_secs(1)).await;
        let theirs = self.other.locks().named(lock.key().name());
        let ttl = self.ttl();
        if let Ok(theirs) = theirs.map(|theirs| theirs.ttl(ttl))
            && let Some(Ok(guard)) = self.dropped(LONGEST_TTL, theirs.attach(&token)).await
            && guard.token().is_ok()
        {
            let suspensions = self.suspensions();
            self.network.observer().granted(&guard, fence, None);
            if self.world().one_in(2) {
                guard.keep_alive();
            }
            let taken = Taken { guard, fence, suspensions };
            if self.world().one_in(2) {
                // The first bearer renews it, too, with its own ttl.
                drop(self.dropped(LONGEST_TTL, lock.renew(&token)).await);
            }
            self.work(&taken).await;
            if self.world().one_in(2) {
                drop(taken.guard.release().await);
            }
        }
        self.network.observer().left(lock.key(), fence);
        drop(lock.release(token).await);
    }

    /// Work that must not be continued after the loss of its lock.
    async fn watched(&self, held: Held) {
        let mut work = pin!(self.pause(LONGEST_TTL));
        poll_fn(|cx| {
            if matches!(held.state(), LockState::Lost(_)) {
                let what = "the work went on after the loss of its lock";
                self.world().violated(Violation::new(Property::StoppedWork, what));
            }
            work.as_mut().poll(cx)
        })
        .await;
    }

    /// Checks that a call with a limit ends at it, if its process runs.
    async fn in_time<T>(&self, limit: Duration, call: impl Future<Output = T>) -> T {
        let (begun, suspensions) = (self.world().now(), self.suspensions());
        let answer = call.await;
        let took = self.world().now() - begun;
        let allowed = nanos(limit + limit / 50 + GRACE);
        if took > allowed && suspensions == self.suspensions() {
            let what = format!("a call with a limit of {limit:?} took {} ms", took / 1_000_000);
            self.world().violated(Violation::new(Property::LimitKept, what));
        }
        answer
    }

    /// Drops a call after a while, if it has no answer by then.
    async fn dropped<T>(&self, longest: Duration, call: impl Future<Output = T>) -> Option<T> {
        let drops = self.world().sleep(self.world().duration(longest));
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = drops => None,
        }
    }
}

/// The limit of one call to the store, as the core sets it.
fn longest_call(ttl: Duration) -> Duration {
    (ttl / 3).clamp(Duration::from_millis(10), Duration::from_secs(5))
}

/// Within what time a guard answers: a call in progress, which may not end by itself, and three more.
fn patience(ttl: Duration) -> Duration {
    let call = longest_call(ttl);
    4 * call + call.max(Duration::from_secs(1))
}
