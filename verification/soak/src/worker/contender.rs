//! One contender: it takes the locks in every way there is, and adds to the registers under them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance_tests::shared::{Cut, Seeded, drop_after};
use distlock::clock::Clock;
use distlock::{Effect, Error, Held, LeaseToken, Lock, LockGuard, Released, Result};
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::JoinSet;

use super::Shared;
use crate::protocol::{Ended, Say, Seen};

/// How a contender takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Acquire,
    Try,
    Timeout,
    Run,
    /// The future is dropped after some polls.
    Drop,
    /// Another worker goes on with the lock.
    Detach,
    NoRenew,
    MaxHold,
    /// Several tasks at once, which pass one hold on where the store can grant a block of fences.
    Cohort,
    /// For longer than the ttl: not drawn, but due at times.
    Outlast,
}

/// How many tasks the largest cohort has.
const LARGEST_COHORT: u32 = 32;
/// A cohort ends after 50 ms, so its holds are short. Every other one has no pause at all.
const HOLD_IN_COHORT: Duration = Duration::from_millis(1);

/// How long a hold that has to be renewed lasts, and after how long the next one is due, in ttls: others must have their turns.
const OUTLASTS: f64 = 1.5;
const OUTLASTS_EVERY: f64 = 8.0;

/// Each way, and how often it is taken.
const TURNS: &[(u64, Turn)] = &[
    (24, Turn::Acquire),
    (23, Turn::Try),
    (15, Turn::Timeout),
    (10, Turn::Run),
    (10, Turn::Drop),
    (5, Turn::Detach),
    (5, Turn::NoRenew),
    (5, Turn::MaxHold),
    (3, Turn::Cohort),
];

#[derive(Debug)]
pub(super) struct Contender {
    pub(super) shared: Arc<Shared>,
    chance: Seeded,
    /// The number of the next hold, of the tasks of a cohort too.
    pub(super) next_hold: Arc<AtomicU64>,
    /// The mean time for which it holds a lock.
    pub(super) hold: Duration,
    /// For which time it holds a lock at least.
    least: Duration,
    /// When a hold is due that outlasts its ttl.
    outlast_at: Option<u64>,
    /// Whether what it holds is renewed.
    renews: bool,
    /// The hold that has been told, and whose end has not.
    open: Option<(Ended, Held)>,
}

impl Contender {
    pub(super) fn new(shared: Arc<Shared>, nth: u64, chance: Seeded) -> Self {
        // Numbers that no other contender of any worker uses, and that are not `EMPTY`.
        let first = (shared.brief.number << 40 | nth << 24) + 1;
        let (next_hold, hold) = (Arc::new(AtomicU64::new(first)), shared.brief.hold);
        // One contender of each worker.
        let outlast_at = (shared.brief.outlasts && nth == 0).then(|| shared.now());
        let least = Duration::ZERO;
        Self { shared, chance, next_hold, hold, least, outlast_at, renews: true, open: None }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.finishing.load(Relaxed) {
            let name = self.below(self.shared.brief.names.len() as u64);
            let turn = self.draw();
            if let Err(error) = self.turn(turn, name).await {
                self.failed(&error);
                self.rest(Duration::from_millis(50)).await;
            }
        }
    }

    fn draw(&mut self) -> Turn {
        if self.outlast_at.is_some_and(|at| self.shared.now() >= at) {
            let pause = self.shared.brief.ttl.mul_f64(OUTLASTS_EVERY);
            self.outlast_at = Some((self.shared.clock.now() + pause).as_nanos());
            return Turn::Outlast;
        }
        let all = TURNS.iter().map(|(weight, _)| weight).sum();
        let mut drawn = self.chance.below(all);
        for (weight, turn) in TURNS {
            if drawn < *weight {
                return *turn;
            }
            drawn -= weight;
        }
        Turn::Acquire
    }

    pub(super) fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.chance.below(limit)).unwrap_or(0)
    }

    /// Up to twice so long.
    pub(super) async fn rest(&mut self, mean: Duration) {
        let micros = u64::try_from(mean.as_micros() * 2).unwrap_or(u64::MAX);
        if micros == 0 {
            return tokio::task::yield_now().await;
        }
        let pause = Duration::from_micros(self.chance.below(micros));
        self.shared.clock.sleep(pause).await;
    }

    async fn turn(&mut self, turn: Turn, name: usize) -> Result<()> {
        let mut lock = self.shared.locks.named(&self.shared.brief.names[name])?;
        match turn {
            Turn::NoRenew => lock = lock.no_renew(),
            Turn::MaxHold => lock = lock.max_hold(self.shared.brief.hold),
            _ => {}
        }
        self.renews = turn != Turn::NoRenew;
        self.least = match turn {
            Turn::Outlast => self.shared.brief.ttl.mul_f64(OUTLASTS),
            _ => Duration::ZERO,
        };
        let asked = self.shared.now();
        match turn {
            Turn::Run => return self.run_under(&lock, name, asked).await,
            Turn::Cohort => return self.cohort(lock, name).await,
            _ => {}
        }
        let Some(guard) = self.take(turn, &lock).await? else {
            self.rest(Duration::from_millis(15)).await;
            return Ok(());
        };
        if self.hold(&guard, name, asked).await {
            match turn {
                Turn::Detach if self.shared.locks.capabilities().detachable => {
                    self.detach(guard, name).await;
                }
                _ => self.release(guard).await,
            }
        }
        Ok(())
    }

    async fn take(&mut self, turn: Turn, lock: &Lock) -> Result<Option<LockGuard>> {
        let deadly = self.shared.deadly.swap(0, Relaxed);
        if deadly > 0 {
            let _ = drop_after(deadly, lock.acquire()).await;
            let _ = kill_process(getpid(), Signal::KILL);
        }
        match turn {
            Turn::Try => {
                let guard = lock.try_acquire().await?;
                if guard.is_none() {
                    self.shared.post.say(Say::Saw(Seen::Busy));
                }
                Ok(guard)
            }
            Turn::Timeout => {
                let limit = self.shared.brief.ttl.mul_f64(0.1 * (1 + self.below(8)) as f64);
                lock.acquire_timeout(limit).await.map(Some)
            }
            Turn::Drop => match drop_after(1 + self.below(6), lock.acquire()).await {
                Cut::Done(taken) => taken.map(Some),
                Cut::Dropped => {
                    self.shared.post.say(Say::Saw(Seen::Dropped));
                    Ok(None)
                }
            },
            _ => lock.acquire().await.map(Some),
        }
    }

    /// Lets several tasks wait for the lock at once.
    async fn cohort(&mut self, mut lock: Lock, name: usize) -> Result<()> {
        if self.shared.locks.capabilities().fence_block {
            lock = lock.cohort(LARGEST_COHORT);
            self.shared.post.say(Say::Saw(Seen::Cohort));
        }
        let mut tasks = JoinSet::new();
        for _ in 0..2 + self.below(u64::from(LARGEST_COHORT) - 1) {
            let pause = HOLD_IN_COHORT * u32::from(self.below(2) == 0);
            let member = Self {
                shared: Arc::clone(&self.shared),
                chance: Seeded::from(self.chance.next_u64()),
                next_hold: Arc::clone(&self.next_hold),
                hold: self.hold.min(pause),
                least: Duration::ZERO,
                outlast_at: None,
                renews: true,
                open: None,
            };
            tasks.spawn(member.hold_once(lock.clone(), name));
        }
        let mut ended = Ok(());
        while let Some(held) = tasks.join_next().await {
            // A panic has been told by the hook of the process.
            ended = ended.and(held.unwrap_or(Ok(())));
        }
        ended
    }

    async fn hold_once(mut self, lock: Lock, name: usize) -> Result<()> {
        let asked = self.shared.now();
        let guard = lock.acquire().await?;
        if self.hold(&guard, name, asked).await {
            self.release(guard).await;
        }
        Ok(())
    }

    async fn run_under(&mut self, lock: &Lock, name: usize, asked: u64) -> Result<()> {
        let body = async |held: Held| {
            self.hold(&held, name, asked).await;
            // From here on it is up to `run`, which does not say when it releases, or whether that
            // succeeds.
            if let Some((ended, _)) = &mut self.open {
                self.shared.releasing(ended).await;
            }
        };
        let ran = lock.run(body).await;
        // The body may have been cut short by a loss.
        if let Some((mut ended, held)) = self.open.take() {
            if ran.is_err() {
                ended.lost = ended.lost.or_else(|| Some(self.shared.lost(&held, self.renews)));
            }
            ended.valid_until = held.valid_until().as_nanos();
            self.shared.post.say(Say::Ended(ended));
        }
        ran
    }

    /// Adds to the registers under the lock. Whether there was anything to hold.
    async fn hold(&mut self, held: &Held, name: usize, asked: u64) -> bool {
        let granted = self.shared.now();
        let Ok(fence) = held.token() else {
            self.shared.post.say(Say::Saw(Seen::LostAtOnce));
            return false;
        };
        let hold = self.next_hold.fetch_add(1, Relaxed);
        let valid_until = held.valid_until().as_nanos();
        self.shared.post.say(Say::Granted {
            hold,
            name,
            invoked: asked,
            granted,
            fence: fence.get(),
            valid_until,
        });
        self.work(hold, held, name).await;
        true
    }

    /// Reads, pauses, and writes; the hold is then the open one.
    async fn work(&mut self, hold: u64, held: &Held, name: usize) {
        let ended =
            Ended { hold, valid_until: 0, release_invoked: None, released: None, lost: None };
        self.open = Some((ended, held.clone()));
        // A lock that is lost at once has been told as granted: it ends like any other.
        let Ok(fence) = held.token() else { return };
        let shared = Arc::clone(&self.shared);
        // A task of its own, which hears of a loss while this one waits for the registers.
        let (watching, renews) = (held.clone(), self.renews);
        let mut watch = tokio::spawn(async move {
            watching.lost().wait().await;
            shared.lost(&watching, renews)
        });
        let Some(read) = self.shared.post.read(name, fence).await else {
            watch.abort();
            return;
        };
        if self.shared.halt_before.swap(0, Relaxed) > self.shared.now() {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        let lost = tokio::select! {
            biased;
            lost = &mut watch => lost.ok(),
            () = self.pause() => None,
        };
        watch.abort();
        let lost = match &mut self.open {
            Some((ended, _)) => {
                ended.lost = lost;
                ended.lost.is_some()
            }
            None => false,
        };
        // An attached hold writes once more than it was granted, and each element is new.
        let added = self.next_hold.fetch_add(1, Relaxed);
        // It goes on as a process would that was paused here, and has not asked whether it still
        // holds the lock: sometimes at once, and sometimes when the next one has read.
        if lost && self.chance.below(2) == 0 {
            self.rest(self.hold / 2).await;
        }
        self.shared.post.write(name, fence, read, added).await;
    }

    /// For as long as it holds a lock.
    async fn pause(&mut self) {
        self.shared.clock.sleep(self.least).await;
        self.rest(self.hold).await;
        if self.least > self.shared.brief.ttl {
            self.shared.post.say(Say::Saw(Seen::Outlasted));
        }
    }

    async fn release(&mut self, guard: LockGuard) {
        let Some((mut ended, held)) = self.open.take() else { return };
        ended.valid_until = held.valid_until().as_nanos();
        self.shared.releasing(&mut ended).await;
        match guard.release().await {
            Ok(Released::Freed) => ended.released = Some(self.shared.now()),
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
        self.shared.post.say(Say::Ended(ended));
    }

    async fn detach(&mut self, guard: LockGuard, name: usize) {
        let hold = self.open.as_ref().map_or(0, |(ended, _)| ended.hold);
        match guard.detach().await {
            Ok(token) => {
                self.open = None;
                self.shared.post.say(Say::Detached { hold, name, token: token.to_text() });
            }
            Err(error) => {
                self.failed(error.error());
                self.release(error.into_guard()).await;
            }
        }
    }

    /// Goes on with a hold of another worker.
    pub(super) async fn take_over(&mut self, hold: u64, name: usize, token: &LeaseToken) {
        // Its lease is the business of who has the token.
        self.renews = false;
        let attached = async {
            let lock = self.shared.locks.named(&self.shared.brief.names[name])?;
            lock.attach(token).await
        };
        match attached.await {
            Ok(guard) => {
                self.work(hold, &guard, name).await;
                // Dropping an attached guard leaves the lock to the bearer of the token.
                if self.chance.below(4) > 0 {
                    self.release(guard).await;
                } else if let Some((mut ended, held)) = self.open.take() {
                    ended.valid_until = held.valid_until().as_nanos();
                    self.shared.post.say(Say::Ended(ended));
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    pub(super) fn failed(&self, error: &Error) {
        self.shared.post.say(Say::Saw(match (error.kind(), error.effect()) {
            (distlock::ErrorKind::NotAcquired, _) => Seen::Busy,
            (_, Effect::Unknown) => Seen::Unknown,
            (_, Effect::None) => Seen::Failed,
        }));
    }
}
