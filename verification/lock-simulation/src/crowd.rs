//! More than a thousand tasks that want one lock.

use std::time::Duration;

use lock_core::{Lock, Result};

use crate::choices::Scenario;
use crate::property::{Property, Violation};
use crate::store::network::{LONG_TTL, LONGEST_TTL};
use crate::user::User;
use crate::world::Time;

/// How many they are.
pub(crate) const CROWD: usize = 1_100;

/// Within what time all of them have a turn when there are no faults.
pub(crate) const ALL_TURNS: Duration = Duration::from_secs(120);

/// The longest work of one of them.
const WORK: Duration = Duration::from_millis(5);

impl User {
    /// Waits among many while there are faults, until all give up at once. From calm on all of them wait
    /// again, and each has its turn.
    pub(crate) async fn run_in_crowd(self, heals_at: Time) {
        let world = self.world();
        self.pause(Duration::from_secs(1)).await;
        tokio::select! {
            biased;
            // Without its turn, if there is a fault.
            _ = self.turn() => {}
            () = world.sleep_until(heals_at) => {}
        }
        world.sleep_until(self.calm_at).await;
        self.pause(Duration::from_millis(20)).await;
        if let Err(error) = self.turn().await {
            let what = format!("a waiter was sent away: {error}");
            world.violated(Violation::new(Property::NoStarvation, what));
        }
    }

    async fn turn(&self) -> Result<()> {
        let (lock, observer) = (self.lock_of_all()?, self.network.observer());
        observer.waits(lock.key());
        let guard = lock.acquire().await;
        observer.waits_no_longer(lock.key());
        let guard = guard?;
        let fence = guard.token()?;
        observer.acquired(&guard, fence);
        self.pause(WORK).await;
        observer.left(lock.key(), fence);
        guard.release().await?;
        Ok(())
    }

    fn lock_of_all(&self) -> Result<Lock> {
        let is_long = self.world().has(Scenario::LONG_TTL);
        let lock = self.process.locks().named("a")?.cohort(self.cohort);
        Ok(lock.ttl(if is_long { LONG_TTL } else { LONGEST_TTL }))
    }
}
