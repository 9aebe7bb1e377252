//! The locks that a command runs under: usually one.

use std::pin::pin;
use std::time::Duration;

use distlock::clock::ClockInstant;
use distlock::kinds::HeldSet;
use distlock::{Held, LostReason};

use super::hold_machine::StopReason;
use super::waiting::{self, StoreSession};
use super::wanted::{Hold, Wanted as _, Wish};
use crate::args::RunArgs;
use crate::exit::{ExitError, code};
use crate::output::quoted;
use crate::store::OpenStore;

/// Several locks are one hold: it lasts as long as the shortest, and is lost with the first. They are of any
/// kind, each is waited for and told by its own name, so they are no [`LockSet`](distlock::kinds::LockSet).
#[derive(Default)]
pub(super) struct HeldLocks {
    /// In the order in which they were taken.
    guards: Vec<Hold>,
}

/// Errors in the names that can be found without the store.
pub(super) fn check(names: &[String]) -> Result<(), ExitError> {
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    match twice {
        Some((_, name)) => Err(ExitError::usage(format!("{} is named twice", quoted(name)))),
        None => Ok(()),
    }
}

impl HeldLocks {
    /// Takes all locks, or none. In the order of their names, whatever the order in which they were
    /// given: two programs that each have a part of the other's locks would wait forever.
    ///
    /// On an error, `given_up` has what is still held.
    pub(super) async fn take(
        args: &RunArgs,
        session: &mut StoreSession,
        given_up: &mut Self,
    ) -> Result<(), ExitError> {
        for wish in wishes(args, &session.store)? {
            let mut waiting = pin!(waiting::acquire(&args.want, session, &wish));
            let guard = tokio::select! {
                biased;
                reason = given_up.lost() => {
                    return Err(given_up.lost_meanwhile(reason, wish.name()));
                }
                guard = &mut waiting => guard?,
            };
            given_up.guards.push(guard);
        }
        Ok(())
    }

    /// The hold of each of `names`, in that order.
    pub(super) fn in_order<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a Hold> {
        names.iter().filter_map(|name| self.guards.iter().find(|guard| guard.key().name() == name))
    }

    /// The last one first.
    pub(super) fn into_reverse(self) -> impl Iterator<Item = Hold> {
        self.guards.into_iter().rev()
    }

    /// What all of them are together.
    fn held(&self) -> HeldSet {
        self.guards.iter().map(|guard| Held::clone(guard)).collect()
    }

    pub(super) fn ttl(&self) -> Duration {
        self.held().ttl()
    }

    pub(super) fn valid_until(&self) -> ClockInstant {
        self.held().valid_until()
    }

    /// Keeps each of them from others for this long at least, whatever becomes of this process's hold.
    pub(super) fn set_min_hold(&self, least: Duration) {
        self.guards.iter().for_each(|guard| guard.set_min_hold(least));
    }

    /// When all of them may be free, if a release would not be at once.
    pub(super) fn kept_until(&self, now: ClockInstant) -> Option<ClockInstant> {
        let ends = self.guards.iter().map(|guard| guard.free_at());
        ends.max().filter(|end| now < *end)
    }

    /// The end of the lease; `None` if a lock is lost. Read in this order, since a loss ends the
    /// validity at once.
    pub(super) fn lease(&self) -> Option<ClockInstant> {
        let until = self.valid_until();
        self.loss().is_none().then_some(until)
    }

    /// The reason of a lost lock, if there is one.
    pub(super) fn loss(&self) -> Option<LostReason> {
        self.held().lost().loss().map(|(_, reason)| reason)
    }

    /// Resolves when the first one is lost.
    pub(super) async fn lost(&self) -> LostReason {
        self.held().lost().wait().await.1
    }

    /// The lock that ended the hold, or would be the first to: for messages.
    pub(super) fn weakest(&self) -> String {
        let lost = self.held().lost().loss().map(|(key, _)| key);
        let first = || self.guards.iter().min_by_key(|guard| guard.valid_until());
        let weakest = lost.or_else(|| first().map(|guard| guard.key().clone()));
        weakest.map(|key| key.name().to_owned()).unwrap_or_default()
    }

    fn lost_meanwhile(&self, reason: LostReason, next: &str) -> ExitError {
        let (lost, why) = (quoted(&self.weakest()), StopReason::Lost(reason));
        let (next, sentence) = (quoted(next), why.sentence());
        let message = format!("{lost} was lost while waiting for {next}: {sentence}");
        ExitError::new(code::LOST, why.name(), message)
    }
}

/// All locks that are wanted, in the order in which they are taken. Nothing is sent yet.
fn wishes(args: &RunArgs, store: &OpenStore) -> Result<Vec<Wish>, ExitError> {
    let mut names: Vec<_> = args.names.iter().collect();
    names.sort_unstable();
    let wishes = names.into_iter().map(|name| Wish::new(name, args, store));
    let mut wishes = wishes.collect::<Result<Vec<_>, _>>()?;
    if let Some(limit) = args.max_hold
        && let Some(last) = wishes.pop()
    {
        // We ask the command to stop at the limit, and the locks are held until it has. The cap
        // applies if we cannot; a writer has none. The others are held for longer, by the time it takes to get this one.
        let cap = limit.saturating_add(args.kill_after).saturating_add(Duration::from_secs(1));
        wishes.push(last.max_hold(cap));
    }
    Ok(wishes)
}
