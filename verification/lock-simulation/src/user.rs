//! What the tasks of the simulated processes do with their locks.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lock_core::{FencingToken, Held, LeaseToken, Lock, LockGuard, LockState, LostReason, Result};

use crate::choices::Scenario;
use crate::process::Process;
use crate::property::{Property, Violation};
use crate::store::network::{LONG_TTL, LONGEST_TTL, Network};
use crate::world::{Time, World, nanos};

/// What the core allows a caller beyond its limit, and a moment for the drift of the clock.
const GRACE: Duration = Duration::from_millis(260);

pub(crate) struct User {
    pub(crate) network: Network,
    pub(crate) process: Process,
    /// A process to which a lock can be handed over.
    pub(crate) other: Process,
    pub(crate) names: usize,
    /// How many permits a semaphore has.
    pub(crate) permits: u32,
    /// How many tasks may pass a hold on.
    pub(crate) cohort: u32,
    /// When there have been no faults for long enough.
    pub(crate) calm_at: Time,
}

/// The longest work of most holders that can pass their hold on.
const BRIEF: Duration = Duration::from_millis(20);

/// A lock that was got.
struct Taken {
    guard: LockGuard,
    fence: FencingToken,
    /// How often the processes had been suspended by then.
    suspensions: u64,
}

impl User {
    /// Takes locks while there are faults, and again from `calm_at` on, when there are none.
    pub(crate) async fn run(self) {
        for _ in 0..1 + self.world().below(3) {
            self.pause(Duration::from_secs(1)).await;
            if self.world().is_healed() {
                break;
            }
            self.step().await;
        }
        self.world().sleep_until(self.calm_at).await;
        for _ in 0..1 + self.world().below(2) {
            self.pause(Duration::from_millis(200)).await;
            self.step().await;
        }
    }

    pub(crate) fn world(&self) -> &World {
        self.network.world()
    }

    /// How often the processes have been suspended that this task needs.
    fn suspensions(&self) -> u64 {
        self.process.suspensions() + self.other.suspensions()
    }

    pub(crate) async fn pause(&self, longest: Duration) {
        self.world().sleep(self.world().duration(longest)).await;
    }

    /// Takes a lock, works, and gives it up, each in one of the ways that there are.
    async fn step(&self) {
        let world = self.world();
        if world.loses_processes() && world.fault(48) {
            self.process.closes();
            // It says what it has left behind.
            let _ = self.process.locks().close(world.duration(LONGEST_TTL)).await;
        }
        if world.has(Scenario::KINDS) {
            return if world.has(Scenario::SETS) {
                self.take_set().await
            } else if world.has(Scenario::ELECTIONS) {
                self.take_part().await
            } else {
                self.share().await
            };
        }
        let ttl = self.ttl();
        let Ok((lock, is_kept)) = self.lock(ttl) else { return };
        let leaves_alone = world.has(Scenario::LEFT_ALONE) && world.one_in(2);
        if leaves_alone && world.one_in(2) {
            return self.run_alone(&lock, ttl, is_kept).await;
        }
        self.network.observer().waits(lock.key());
        let guard = if leaves_alone {
            self.take_alone(&lock, ttl, is_kept).await
        } else {
            self.take(&lock, ttl).await
        };
        self.network.observer().waits_no_longer(lock.key());
        let suspensions = self.suspensions();
        let Some(guard) = guard else { return };
        let Ok(fence) = guard.token() else { return };
        world.tell(|| format!("a task has {} with fence {fence}", lock.key()));
        self.network.observer().acquired(&guard, fence);
        let taken = Taken { guard, fence, suspensions };
        if world.has(Scenario::COHORTS) && !world.one_in(4) {
            self.pause(BRIEF).await;
        } else {
            self.work(&taken).await;
        }
        self.give_up(&lock, taken).await;
        world.tell(|| format!("a task has given up fence {fence}"));
        self.network.observer().left(lock.key(), fence);
    }

    fn ttl(&self) -> Duration {
        let world = self.world();
        if world.has(Scenario::LONG_TTL) {
            // No request is later than a ttl. One that is may take a lock of which its waiter, who goes on to
            // renew a place, learns only by its next look.
            return LONG_TTL;
        }
        // Only tasks with the same ttl pass a hold on.
        if world.has(Scenario::COHORTS) && !world.one_in(4) {
            return LONGEST_TTL / 2;
        }
        LONGEST_TTL / [1, 2, 6, 20][world.below(4)]
    }

    /// A lock, and whether it is kept for as long as anybody wants.
    fn lock(&self, ttl: Duration) -> Result<(Lock, bool)> {
        let world = self.world();
        let name = ["a", "b"][world.below(self.names)];
        let mut lock = self.process.locks().named(name)?.ttl(ttl);
        if world.has(Scenario::COHORTS) && !world.one_in(8) {
            lock = lock.cohort(self.cohort);
        }
        let span = ttl.min(LONGEST_TTL);
        Ok(match world.below(8) {
            6 => (lock.no_renew(), false),
            7 => (lock.max_hold(span / 2 + world.duration(span)), false),
            _ => (lock, true),
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

    /// The guard that a call has brought after it had been left alone.
    async fn take_alone(&self, lock: &Lock, ttl: Duration, is_kept: bool) -> Option<LockGuard> {
        let is_calm = self.world().now() >= self.calm_at;
        let taken = self.left_alone(ttl, lock.acquire()).await?;
        let is_held = taken.as_ref().is_ok_and(|guard| guard.token().is_ok());
        self.has_waited_alone(is_held, is_calm && is_kept);
        taken.ok()
    }

    /// A call that takes the lock and works, and is left alone at some time.
    async fn run_alone(&self, lock: &Lock, ttl: Duration, is_kept: bool) {
        let (observer, is_calm) = (self.network.observer(), self.world().now() >= self.calm_at);
        let fence = Cell::new(None);
        observer.waits(lock.key());
        let work = async |held: Held| {
            observer.waits_no_longer(lock.key());
            if let Ok(token) = held.token() {
                fence.set(Some(token));
                observer.acquired(&held, token);
            }
            self.watched(held).await;
        };
        let done = self.left_alone(ttl, lock.run(work)).await;
        observer.waits_no_longer(lock.key());
        if let Some(fence) = fence.get() {
            observer.left(lock.key(), fence);
        }
        if let Some(done) = done {
            self.has_waited_alone(done.is_ok(), is_calm && is_kept);
        }
    }

    fn has_waited_alone(&self, is_held: bool, must_be_held: bool) {
        if is_held {
            self.network.observer().has_waited_alone();
        } else if must_be_held && !(self.process.is_closed() || self.process.has_lost_a_runtime()) {
            let what = "a call that was left alone has not got its lock, or not kept it";
            self.world().violated(Violation::new(Property::WaitsAlone, what));
        }
    }

    /// Polls a call a few times, mostly once, then neither polls nor drops it for longer than a lock lasts,
    /// unless that is for ever. Afterwards the call is dropped, or goes on.
    async fn left_alone<T>(&self, ttl: Duration, call: impl Future<Output = T>) -> Option<T> {
        let world = self.world();
        let mut call = pin!(call);
        let mut polls = 1 + [0, 0, 1, 3][world.below(4)];
        let answer = poll_fn(|cx| {
            let answer = call.as_mut().poll(cx);
            polls -= 1;
            if polls > 0 { answer.map(Some) } else { Poll::Ready(ready(answer)) }
        });
        if let Some(answer) = answer.await {
            return Some(answer);
        }
        let observer = self.network.observer();
        observer.is_left_alone();
        world.tell(|| "a call is left alone".into());
        let least = if ttl > LONGEST_TTL { Duration::ZERO } else { ttl };
        world.sleep(least + world.duration(LONGEST_TTL)).await;
        observer.is_not_alone();
        if world.one_in(2) { None } else { Some(call.await) }
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
            self.network.observer().granted(&guard, fence);
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
    pub(crate) async fn watched(&self, held: Held) {
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
    pub(crate) async fn in_time<T>(&self, limit: Duration, call: impl Future<Output = T>) -> T {
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
    pub(crate) async fn dropped<T>(
        &self,
        longest: Duration,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let drops = self.world().sleep(self.world().duration(longest));
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = drops => None,
        }
    }
}

fn ready<T>(answer: Poll<T>) -> Option<T> {
    match answer {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
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
