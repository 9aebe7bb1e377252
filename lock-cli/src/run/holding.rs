//! The locks that a command runs under: usually one.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::{Lock, LockGuard, LockState, LostReason};

use super::course::Why;
use super::notes::Notes;
use super::signals::Signals;
use super::waiting::{self, Patience};
use crate::args::RunArgs;
use crate::exit::{Failure, code};
use crate::output::quoted;
use crate::store::Store;

/// Several locks are one hold: it lasts as long as the shortest, and is lost with the first.
pub(super) struct Holding {
    /// In the order in which they were taken.
    guards: Vec<LockGuard>,
}

/// Errors in the names that can be found without the store.
pub(super) fn check(names: &[String]) -> Result<(), Failure> {
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    match twice {
        Some((_, name)) => Err(Failure::usage(format!("{} is named twice", quoted(name)))),
        None => Ok(()),
    }
}

impl Holding {
    /// Takes all locks, or none. In the order of their names, whatever the order in which they were
    /// given: two programs that each have a part of the other's locks would wait forever.
    ///
    /// On an error, `given_up` has what is still held.
    pub(super) async fn take(
        args: &RunArgs,
        store: &Store,
        patience: Patience,
        given_up: &mut Self,
        signals: &mut Signals,
        notes: &Notes,
    ) -> Result<(), Failure> {
        let clock = store.locks.clock();
        let started = clock.now();
        for lock in locks(args, store)? {
            let patience = patience.after(clock.now().since(started));
            let notes = notes.of(lock.key().name());
            let mut waiting =
                pin!(waiting::acquire(&args.want, store, &lock, patience, signals, &notes));
            let guard = tokio::select! {
                biased;
                reason = given_up.lost() => return Err(given_up.lost_meanwhile(reason, &notes)),
                guard = &mut waiting => guard?,
            };
            given_up.guards.push(guard);
        }
        Ok(())
    }

    pub(super) fn none() -> Self {
        Self { guards: Vec::new() }
    }

    /// The hold of each of `names`, in that order.
    pub(super) fn in_order<'a>(
        &'a self,
        names: &'a [String],
    ) -> impl Iterator<Item = &'a LockGuard> {
        names.iter().filter_map(|name| self.guards.iter().find(|guard| guard.key().name() == name))
    }

    /// The last one first.
    pub(super) fn into_reverse(self) -> impl Iterator<Item = LockGuard> {
        self.guards.into_iter().rev()
    }

    pub(super) fn ttl(&self) -> Duration {
        self.guards.iter().map(|guard| guard.ttl()).min().unwrap_or_default()
    }

    pub(super) fn valid_until(&self) -> ClockInstant {
        let ends = self.guards.iter().map(|guard| guard.valid_until());
        ends.min().unwrap_or(ClockInstant::FAR_FUTURE)
    }

    /// The end of the lease; `None` if a lock is lost. Read in this order, since a loss ends the
    /// validity at once.
    pub(super) fn lease(&self) -> Option<ClockInstant> {
        let until = self.valid_until();
        (!matches!(self.state(), LockState::Lost(_))).then_some(until)
    }

    /// That of a lost lock, if there is one.
    pub(super) fn state(&self) -> LockState {
        let states = || self.guards.iter().map(|guard| guard.state());
        let lost = states().find(|state| matches!(state, LockState::Lost(_)));
        let risky = || states().find(|state| *state == LockState::AtRisk);
        lost.or_else(risky).unwrap_or(LockState::Secure)
    }

    /// Resolves when the first one is lost.
    pub(super) async fn lost(&self) -> LostReason {
        let mut signals: Vec<_> =
            self.guards.iter().map(|guard| Box::pin(guard.lost().into_future())).collect();
        std::future::poll_fn(move |context| {
            let reasons = signals.iter_mut().map(|signal| signal.as_mut().poll(context));
            reasons.into_iter().find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Whether the store confirms all of them.
    pub(super) async fn check(&self) -> bool {
        for guard in &self.guards {
            if guard.check().await.is_err() {
                return false;
            }
        }
        true
    }

    /// The lock that ended the hold, or would be the first to: for messages.
    pub(super) fn weakest(&self) -> Option<&str> {
        let lost = |guard: &&LockGuard| matches!(guard.state(), LockState::Lost(_));
        let first = || self.guards.iter().min_by_key(|guard| guard.valid_until());
        let weakest = self.guards.iter().find(lost).or_else(first);
        weakest.map(|guard| guard.key().name())
    }

    fn lost_meanwhile(&self, reason: LostReason, next: &Notes) -> Failure {
        let (lost, why) = (quoted(self.weakest().unwrap_or_default()), Why::Lost(reason));
        let message =
            format!("{lost} was lost while waiting for {}: {}", next.name(), why.sentence());
        Failure::new(code::LOST, why.name(), message)
    }
}

/// All locks that are wanted, in the order in which they are taken. Nothing is sent yet.
fn locks(args: &RunArgs, store: &Store) -> Result<Vec<Lock>, Failure> {
    let mut names: Vec<_> = args.names.iter().collect();
    names.sort_unstable();
    let locks = names.into_iter().map(|name| waiting::lock(name, &args.want, store));
    let mut locks = locks.collect::<Result<Vec<_>, _>>()?;
    if let Some(limit) = args.max_hold
        && let Some(last) = locks.pop()
    {
        // We ask the command to stop at the limit, and the locks are held until it has. The cap
        // applies if we cannot. The others are held for longer, by the time it takes to get this one.
        let cap = limit.saturating_add(args.kill_after).saturating_add(Duration::from_secs(1));
        locks.push(last.max_hold(cap));
    }
    Ok(locks)
}
