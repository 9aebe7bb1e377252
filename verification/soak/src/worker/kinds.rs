//! A contender for locks of other kinds.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use distlock::kinds::{Leadership, LockSetGuard, Permit, ReadGuard, WriteGuard};
use distlock::{Released, Result};

use super::contender::Contender;
use super::{WITH_ANOTHER, written};
use crate::parts::PERMITS;
use crate::protocol::{Ended, Say, Seen};

/// What it takes, one after the other.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Permit,
    Read,
    Write,
    Several,
    Lead,
}

const TURNS: [Turn; 5] = [Turn::Permit, Turn::Read, Turn::Write, Turn::Several, Turn::Lead];

/// A hold of any kind.
#[derive(Debug)]
enum Taken {
    Permit(Permit),
    Read(ReadGuard),
    Write(WriteGuard),
    Several(LockSetGuard),
    Leads(Leadership),
}

/// Calls that the guards of all kinds answer.
macro_rules! each {
    ($taken:expr, $guard:ident => $answer:expr) => {
        match $taken {
            Taken::Permit($guard) => $answer,
            Taken::Read($guard) => $answer,
            Taken::Write($guard) => $answer,
            Taken::Several($guard) => $answer,
            Taken::Leads($guard) => $answer,
        }
    };
}

impl Taken {
    fn valid_until(&self) -> u64 {
        each!(self, guard => guard.held().valid_until().as_nanos())
    }

    async fn lost(&self) {
        let signal = each!(self, guard => guard.held().lost().cancellation_token());
        signal.cancelled_owned().await;
    }

    /// Why it is lost, as it is written of the lock of this name.
    fn reason(&self, name: &str) -> String {
        written(match self {
            Self::Several(guard) => match guard.held().lost().loss() {
                Some((lost, _)) if lost.name() != name => return WITH_ANOTHER.to_owned(),
                loss => loss.map(|(_, reason)| reason),
            },
            Self::Permit(guard) => guard.held().lost().reason(),
            Self::Read(guard) => guard.held().lost().reason(),
            Self::Write(guard) => guard.held().lost().reason(),
            Self::Leads(guard) => guard.held().lost().reason(),
        })
    }

    async fn release(self) -> Result<Released> {
        match self {
            Self::Leads(guard) => guard.resign().await,
            Self::Permit(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Several(guard) => guard.release().await,
        }
    }
}

impl Contender {
    pub(super) async fn run_kinds(mut self) {
        for turn in TURNS.into_iter().cycle() {
            if self.shared.finishing.load(Relaxed) {
                return;
            }
            if let Err(error) = self.other_kind(turn).await {
                self.failed(&error);
            }
            self.rest(Duration::from_millis(15)).await;
        }
    }

    async fn other_kind(&mut self, turn: Turn) -> Result<()> {
        let invoked = self.shared.now();
        let taken = self.take_kind(turn).await?;
        let granted = self.shared.now();
        let Ok(fences) = self.fences(&taken) else {
            self.shared.post.say(Say::Saw(Seen::LostAtOnce));
            return Ok(());
        };
        let mut open = Vec::new();
        for (name, fence) in fences {
            let (hold, valid_until) = (self.next_hold.fetch_add(1, Relaxed), taken.valid_until());
            self.shared.post.say(Say::Granted { hold, name, invoked, granted, fence, valid_until });
            let (release_invoked, released, lost) = (None, None, None);
            open.push((name, Ended { hold, valid_until, release_invoked, released, lost }));
        }
        // Shorter than plain ones, so that each kind has its turn soon.
        let is_lost = tokio::select! {
            biased;
            () = taken.lost() => true,
            () = self.rest(self.hold / 4) => false,
        };
        let valid_until = taken.valid_until();
        for (name, ended) in &mut open {
            ended.valid_until = valid_until;
            if is_lost {
                let reason = taken.reason(self.name(*name));
                ended.lost = Some(self.shared.lost_for(reason, valid_until));
            } else {
                self.shared.releasing(ended).await;
            }
        }
        let is_read = matches!(taken, Taken::Read(_));
        match taken.release().await {
            // The slot of a reader may be that of others, too.
            Ok(Released::Freed) if !is_read => {
                let now = self.shared.now();
                open.iter_mut().for_each(|(_, ended)| ended.released = Some(now));
            }
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
        open.into_iter().for_each(|(_, ended)| self.shared.post.say(Say::Ended(ended)));
        Ok(())
    }

    async fn take_kind(&mut self, turn: Turn) -> Result<Taken> {
        let limit = self.shared.brief.ttl;
        let (one, other) = (self.some_name(), self.some_name());
        let (locks, brief) = (&self.shared.locks, &self.shared.brief);
        Ok(match turn {
            Turn::Permit => {
                let permits = locks.semaphore(&brief.parts.permits, PERMITS)?;
                Taken::Permit(permits.acquire_timeout(limit).await?)
            }
            Turn::Read => {
                Taken::Read(locks.rw_lock(&brief.parts.resource)?.read_timeout(limit).await?)
            }
            Turn::Write => {
                Taken::Write(locks.rw_lock(&brief.parts.resource)?.write_timeout(limit).await?)
            }
            Turn::Several => {
                let names = [&brief.names[one], &brief.names[other]];
                Taken::Several(locks.all(names)?.acquire_timeout(limit).await?)
            }
            Turn::Lead => {
                let election = locks.election(&brief.names[one])?;
                Taken::Leads(election.campaign_timeout(brief.number.to_string(), limit).await?)
            }
        })
    }

    /// Where the history has what was taken, and the tokens; an error if it is lost already.
    fn fences(&self, taken: &Taken) -> Result<Vec<(usize, u64)>> {
        let brief = &self.shared.brief;
        let at = |name: &str| brief.names.iter().position(|it| it == name).unwrap_or(0);
        Ok(match taken {
            Taken::Permit(permit) => {
                let slot = brief.parts.plain + permit.slot() as usize;
                vec![(slot, permit.token()?.get())]
            }
            Taken::Read(guard) => vec![(brief.parts.reads(), guard.token()?.get())],
            Taken::Write(guard) => vec![(brief.parts.writes(), guard.token()?.get())],
            Taken::Several(guard) => {
                let tokens = guard.held().tokens()?;
                tokens.map(|(key, token)| (at(key.name()), token.get())).collect()
            }
            Taken::Leads(guard) => vec![(at(guard.key().name()), guard.term()?.get())],
        })
    }

    /// That of a plain lock; of the parts of other kinds none.
    fn name(&self, at: usize) -> &str {
        self.shared.brief.names.get(at).map_or("", String::as_str)
    }

    fn some_name(&mut self) -> usize {
        self.below(self.shared.brief.names.len() as u64)
    }
}
