//! The life of a keeper.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::client::Client;
use super::cohort::Pass;
use super::holding::{EndOfKeeper, Holding};
use super::inbox;
use super::life::{Answer, Life, Turn};
use super::terms::Terms;
use super::{Acquired, Granted, Handover, Keeper, Outcome, Start};
use crate::locks::held::Grant;
use crate::{ClaimRequest, Held, Released, Result};

/// Makes the keeper of a new claim, and returns the answer for which its caller waits. The whole life of
/// the claim, from its first attempt to its clean-up, is one span, a child of the caller's.
///
/// # Errors
///
/// If the backend cannot make the claim, the `Locks` is closed, or there is no runtime.
pub(crate) fn begin(
    client: &Arc<Client>,
    request: ClaimRequest,
    terms: Terms,
    start: Start,
) -> Result<(Arc<Life>, Answer<Acquired>)> {
    let (runtime, keeper) = Keeper::new(client, request, terms)?;
    let (answer, receiver) = oneshot::channel();
    let span = tracing::debug_span!(
        target: "distlock",
        "lock",
        lock.name = keeper.key.name(),
        lock.backend = client.backend.name(),
        lock.fence = tracing::field::Empty,
    );
    let life = Life::new(runtime, |turn| {
        client.keepers.track_future(keeper.run(start, answer, turn).instrument(span))
    });
    let answer = life.answer(receiver);
    Ok((life, answer))
}

/// Makes a keeper that only releases the hold that the request resumes.
///
/// # Errors
///
/// As [`begin`].
pub(crate) fn begin_release(
    client: &Arc<Client>,
    request: ClaimRequest,
    terms: Terms,
) -> Result<Answer<Result<Released>>> {
    let (runtime, keeper) = Keeper::new(client, request, terms)?;
    let (answer, receiver) = oneshot::channel();
    let life = Life::new(runtime, |_| client.keepers.track_future(keeper.release(answer)));
    Ok(life.answer(receiver))
}

impl Keeper {
    /// A lock that is held mostly rests, and its task should then be small. So what comes before and
    /// after is boxed, and what need not wait is no future: each would have a place in the task.
    async fn run(mut self, start: Start, mut answer: oneshot::Sender<Acquired>, turn: Arc<Turn>) {
        let outcome = match start {
            Start::Acquire(patience) => Box::pin(self.acquire(patience, &mut answer, &turn)).await,
            Start::Attach(fence, block) | Start::Renew(fence, block) => {
                Box::pin(self.resume((fence, block), &mut answer)).await
            }
        };
        let (keeper, granted) = match outcome {
            Outcome::Granted(granted) => (self, granted),
            Outcome::Passed(pass) => self.replaced(*pass),
            Outcome::Refused { error, clean_up } => {
                let _ = answer.send(Err(self.describe(error, start.operation())));
                if clean_up {
                    Box::pin(self.clean_up()).await;
                }
                return;
            }
        };
        // They are dropped in this order: first the hold.
        let Some((_end, mut holding)) = keeper.hand_over(start, answer, granted) else { return };
        turn.end().await;
        if let Some(leave) = holding.run().await {
            Box::pin(holding.leave(leave)).await;
        }
    }

    /// Another task of this process passes its hold on, with the claim that it has.
    fn replaced(mut self, pass: Pass) -> (Self, Granted) {
        let Pass { mut keeper, cohort, token, until } = pass;
        keeper.claim.passed_on(token);
        // It has sent nothing, so it goes without a release.
        self.claim.passed_on(token);
        let (block, cohort) = (cohort.block, Some(cohort));
        (keeper, Granted { token, block, until, is_fresh: false, cohort })
    }

    /// Hands the lock over to the caller. Returns the hold that is to be kept from now on, if any is.
    fn hand_over(
        self,
        start: Start,
        answer: oneshot::Sender<Acquired>,
        granted: Granted,
    ) -> Option<(EndOfKeeper, Holding)> {
        let (commands, inbox) = inbox::channel();
        let token = granted.token;
        let held = Held::new(
            Arc::clone(&self.client.clock),
            Grant {
                key: self.key.clone(),
                owner: self.owner,
                token,
                ttl: self.terms.ttl,
                until: granted.until,
                max_hold: self.terms.max_hold,
                killed: self.client.killed.clone(),
            },
        );
        let by = start.operation();
        tracing::Span::current().record("lock.fence", token.get());
        tracing::debug!(target: "distlock", key = %self.key, fence = token.get(), %by, "held");
        // If the caller has left, the handover is dropped here, and the closed channel tells the hold.
        let call_timeout = self.terms.call_timeout;
        let handover = Handover { held: held.clone(), commands, call_timeout };
        let _ = answer.send(Ok(handover));
        let is_kept = !matches!(start, Start::Renew(..));
        is_kept.then(|| (EndOfKeeper(held.clone()), self.holding(held, inbox, granted)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Patience;
    use super::*;
    use crate::memory::MemoryBackend;
    use crate::{LockKey, Locks, OwnerId};

    /// The largest task of a lock, in bytes: an application may hold ten thousand.
    const LARGEST: usize = 3 * 1024;

    #[tokio::test]
    async fn the_task_of_a_held_lock_is_small() {
        let locks = Locks::new(MemoryBackend::queued());
        let (owner, terms) = (OwnerId::from_bytes([1; 16]), Terms::for_a_test());
        let request = ClaimRequest::new(LockKey::new("", "a").unwrap(), owner, terms.ttl)
            .with_call_timeout(Duration::from_secs(1));
        let (_, keeper) = Keeper::new(&locks.0, request, terms).unwrap();
        let (answer, _receiver) = oneshot::channel();
        let size = size_of_val(&keeper.run(Start::Acquire(Patience::Try), answer, Arc::default()));
        println!("the task of a lock has {size} bytes");
        assert!(size <= LARGEST, "the task of a lock has {size} bytes");
    }
}
