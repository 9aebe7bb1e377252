//! What the tasks of the simulated processes do with several locks that they take together.

use std::time::Duration;

use lock_core::kinds::{LockSet, LockSetGuard};
use lock_core::{LockState, Result};

use crate::choices::Scenario;
use crate::observer::View;
use crate::property::{Property, Violation};
use crate::store::network::{LONG_TTL, LONGEST_TTL};
use crate::user::User;

/// The longest work under one of them when there are no faults.
const BRIEF: Duration = Duration::from_millis(200);

impl User {
    /// Takes several locks, and gives them up, each in one of the ways that there are.
    pub(crate) async fn take_set(&self) {
        let Ok(set) = self.set() else { return };
        let Some(guard) = self.taken(&set).await else { return };
        let (held, observer) = (guard.held().clone(), self.network.observer());
        let Ok(tokens) = held.tokens() else { return };
        let tokens: Vec<_> = tokens.map(|(key, token)| (key.clone(), token)).collect();
        self.world().tell(|| format!("a task has {tokens:?}"));
        for (key, token) in &tokens {
            observer.acquired_in(View::Set(held.clone()), key, *token);
        }
        self.work_under(&guard).await;
        match self.world().below(8) {
            4 => drop(guard),
            5 => drop(self.dropped(LONGEST_TTL, guard.release()).await),
            6 if !self.world().is_healed() => {
                drop(guard.run(async |_| self.pause(LONGEST_TTL).await).await);
            }
            _ => drop(guard.release().await),
        }
        if !matches!(held.state(), LockState::Lost(_)) {
            let what = format!("{tokens:?} are believed after their release");
            self.world().violated(Violation::new(Property::OneHolder, what));
        }
        for (key, token) in &tokens {
            observer.left(key, *token);
        }
        self.world().tell(|| format!("a task has given up {tokens:?}"));
    }

    /// Some of three names, in any order, and some twice.
    fn set(&self) -> Result<LockSet> {
        let world = self.world();
        let names = (0..2 + world.below(2)).map(|_| ["x", "y", "z"][world.below(3)]);
        let names: Vec<_> = names.collect();
        let is_long = world.has(Scenario::LONG_TTL);
        let ttl = if is_long { LONG_TTL } else { LONGEST_TTL / [1, 2, 6][world.below(3)] };
        Ok(self.process.locks().all(names)?.ttl(ttl))
    }

    async fn taken(&self, set: &LockSet) -> Option<LockSetGuard> {
        let world = self.world();
        match world.below(8) {
            4 => set.try_acquire().await.ok()?,
            5 => set.acquire_timeout(world.duration(LONGEST_TTL)).await.ok(),
            6 | 7 => self.dropped(LONGEST_TTL, set.acquire()).await?.ok(),
            _ => set.acquire().await.ok(),
        }
    }

    async fn work_under(&self, guard: &LockSetGuard) {
        let world = self.world();
        for _ in 0..world.below(3) {
            match world.below(8) {
                5 => drop(guard.renew().await),
                6 => drop(guard.check().await),
                _ if world.is_healed() => self.pause(BRIEF).await,
                _ => self.pause(LONGEST_TTL).await,
            }
        }
    }
}
