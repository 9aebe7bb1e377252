//! What the tasks of the simulated processes do as candidates, and as those who watch who leads.

use std::time::Duration;

use lock_core::kinds::{Election, Leader, Leadership, Observation};
use lock_core::{FencingToken, Held, LockKey, LockState, Result};

use crate::choices::Scenario;
use crate::property::{Property, Violation};
use crate::store::network::{LONG_TTL, LONGEST_TTL};
use crate::user::User;
use crate::world::Time;

/// The longest work in one term when there are no faults.
const BRIEF: Duration = Duration::from_millis(200);

/// How long a change is waited for at most, when there are none.
const WATCH: Duration = Duration::from_millis(500);

impl User {
    /// Campaigns and leads, or watches who leads.
    pub(crate) async fn take_part(&self) {
        let Ok(election) = self.election() else { return };
        match self.world().below(4) {
            2 => self.run_elected(&election).await,
            3 => self.watch(&election).await,
            _ => {
                // The second time it lets others go first.
                for _ in 0..1 + self.world().below(2) {
                    self.campaign(&election).await;
                }
            }
        }
    }

    fn election(&self) -> Result<Election> {
        let world = self.world();
        let is_long = world.has(Scenario::LONG_TTL);
        let ttl = if is_long { LONG_TTL } else { LONGEST_TTL / [1, 2, 6][world.below(3)] };
        let election = self.process.locks().election("a")?.ttl(ttl);
        let is_capped = world.one_in(8);
        let limit = LONGEST_TTL / 2 + world.duration(LONGEST_TTL);
        Ok(if is_capped { election.max_hold(limit) } else { election })
    }

    /// Who campaigns, and when.
    fn value(&self) -> String {
        format!("task {} at {}", self.world().task().unwrap_or_default(), self.world().now())
    }

    async fn campaign(&self, election: &Election) {
        let (observer, value) = (self.network.observer(), self.value());
        observer.waits(election.key());
        let leadership = self.elected(election, &value).await;
        observer.waits_no_longer(election.key());
        let Some(leadership) = leadership else { return };
        let held = leadership.held().clone();
        let (Ok(fence), Ok(term)) = (held.token(), leadership.term()) else { return };
        observer.acquired(&held, fence);
        self.leads(term, &value);
        self.work_in_term(&leadership).await;
        observer.left(held.key(), fence);
        self.step_down(leadership).await;
        self.world().tell(|| format!("{value} does not lead any more"));
        if !matches!(held.state(), LockState::Lost(_)) {
            let what = format!("{value} believes to lead after its resignation");
            self.world().violated(Violation::new(Property::OneHolder, what));
        }
    }

    fn leads(&self, term: FencingToken, value: &str) {
        self.world().tell(|| format!("{value} leads in term {term}"));
        self.network.observer().leads(term, value);
    }

    async fn elected(&self, election: &Election, value: &str) -> Option<Leadership> {
        let world = self.world();
        match world.below(8) {
            4 => election.try_campaign(value).await.ok()?,
            5 => {
                let limit = Duration::from_millis(1) + world.duration(LONGEST_TTL);
                self.in_time(limit, election.campaign_timeout(value, limit)).await.ok()
            }
            6 | 7 => self.dropped(LONGEST_TTL, election.campaign(value)).await?.ok(),
            _ => election.campaign(value).await.ok(),
        }
    }

    async fn work_in_term(&self, leadership: &Leadership) {
        let world = self.world();
        for _ in 0..world.below(3) {
            match world.below(8) {
                5 => drop(leadership.renew().await),
                6 => drop(leadership.check().await),
                _ if world.is_healed() => self.pause(BRIEF).await,
                _ => self.pause(LONGEST_TTL).await,
            }
        }
    }

    async fn step_down(&self, leadership: Leadership) {
        match self.world().below(8) {
            4 => drop(leadership),
            5 => drop(self.dropped(LONGEST_TTL, leadership.resign()).await),
            _ => drop(leadership.resign().await),
        }
    }

    /// Campaigns until its work is done in one term.
    async fn run_elected(&self, election: &Election) {
        let (observer, value) = (self.network.observer(), self.value());
        let work = async |held: Held| {
            let Ok(term) = held.token() else { return };
            observer.acquired(&held, term);
            self.leads(term, &value);
            if self.world().is_healed() {
                self.pause(BRIEF).await;
            } else {
                self.watched(held.clone()).await;
            }
            observer.left(held.key(), term);
        };
        let run = election.run(&value, work);
        if self.world().is_healed() {
            drop(run.await);
        } else {
            drop(self.dropped(2 * LONGEST_TTL, run).await);
        }
    }

    async fn watch(&self, election: &Election) {
        let Ok(mut watcher) = election.observe() else { return };
        let (world, observer) = (self.world(), self.network.observer());
        let (mut last, mut first_asked) = (None, None);
        for _ in 0..1 + world.below(4) {
            // The look of a call that is dropped goes on.
            let asked = *first_asked.get_or_insert_with(|| world.now());
            let longest = if world.is_healed() { WATCH } else { LONGEST_TTL };
            let Some(answer) = self.dropped(longest, watcher.next()).await else { continue };
            first_asked = None;
            let Ok(shown) = answer else { continue };
            world.tell(|| format!("a task sees {shown:?}"));
            observer.observes();
            if let Some(what) = self.mistake_in(&shown, (election.key(), asked), last) {
                world.violated(Violation::new(Property::Terms, what));
            }
            if let Observation::Leader(Leader { term, value, .. }) = shown {
                last = last.max(term);
                if let Some((term, value)) = term.zip(value) {
                    observer.leads(term, &value);
                }
            }
        }
    }

    /// What is wrong with what is shown to whoever has asked then, and has seen this term last.
    fn mistake_in(
        &self,
        shown: &Observation,
        (key, asked): (&LockKey, Time),
        last: Option<FencingToken>,
    ) -> Option<String> {
        match shown {
            Observation::Leader(leader) if leader.term.is_some() && leader.term < last => {
                Some(format!("{leader:?} is shown after term {last:?}"))
            }
            Observation::Vacant { last_term } if *last_term < last => {
                Some(format!("nobody is shown since term {last_term:?}, after term {last:?}"))
            }
            Observation::Vacant { .. } if self.network.observer().is_held_since(key, asked) => {
                Some("nobody is shown, and somebody leads all the time".into())
            }
            Observation::Unknown { .. } if asked >= self.calm_at => {
                Some("the store answers, and nobody is shown to know who leads".into())
            }
            _ => None,
        }
    }
}
