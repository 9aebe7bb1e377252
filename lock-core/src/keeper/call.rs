//! One call of a claim.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::client::Client;
use crate::{Claim, ClaimRequest, Error, ErrorKind, LockEvent, Operation, Result};

/// A keeper's claim; `None` after a call that did not end.
pub(super) type ClaimSlot = Option<Box<dyn Claim>>;

/// A call of a claim.
pub(super) type Call<T> =
    for<'a> fn(&'a mut dyn Claim) -> Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// How long after its limit a call may still end (clause C12): a store may have bounded two requests of one call
/// each by the whole limit, and on a busy machine its timer comes late.
pub(crate) fn overrun_grace(call_timeout: Duration) -> Duration {
    call_timeout.max(Duration::from_secs(1))
}

/// Makes one call and lets it end (clause C8): whoever waits for it is answered by `meanwhile`, which is ready at
/// the call's limit, or sooner. A call that overruns its limit by the grace costs the claim, for nobody knows what
/// it will do. The grace begins when the limit is seen to be over: after a pause of the process, or of the machine,
/// a store that ends its calls by a timer of its own gets to see that one. The timers are armed only if the call is
/// not ready at once.
pub(super) async fn to_its_end<T>(
    claim: &mut ClaimSlot,
    (client, request): (&Client, &ClaimRequest),
    operation: Operation,
    call: Call<T>,
    meanwhile: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> Result<T> {
    let (clock, call_timeout) = (&client.clock, request.call_timeout);
    let Some(kept) = claim else { return Err(no_answer(call_timeout)) };
    let meanwhile = async {
        meanwhile.await;
        std::future::pending().await
    };
    let overrun = async {
        clock.sleep(call_timeout).await;
        clock.sleep(overrun_grace(call_timeout)).await;
    };
    let answer = tokio::select! {
        biased;
        answer = call(&mut **kept) => Some(answer),
        () = meanwhile => None,
        () = overrun => None,
    };
    let answer = answer.unwrap_or_else(|| {
        *claim = None;
        Err(no_answer(call_timeout))
    });
    let failed = |error: &Error| {
        client.tell(Some(&request.key), LockEvent::CallFailed { operation, error });
    };
    answer.inspect_err(failed)
}

/// What the store pushes; nothing without a claim.
pub(super) async fn changed(claim: &mut ClaimSlot) -> Result<()> {
    match claim {
        Some(claim) => claim.changed().await,
        None => std::future::pending().await,
    }
}

pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::new(ErrorKind::NoAnswer, format!("the store did not answer within {limit:?}"))
}

/// The store broke clause C4: it is unknown how long this lock lasts.
pub(super) fn no_end(what: &str) -> Error {
    Error::new(ErrorKind::Store, format!("the store did not say how long {what} is valid"))
        .with_unknown_effect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::testing::{ManualClock, MemoryBackend};
    use crate::{LockKey, Locks, OwnerId};

    const SECOND: Duration = Duration::from_secs(1);

    type Called<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

    /// A claim of a request with a call timeout of one second, and who makes it.
    fn claim() -> (ManualClock, Locks, ClaimRequest, ClaimSlot) {
        let clock = ManualClock::default();
        let locks = Locks::builder(MemoryBackend::queued()).clock(clock.clone()).build().unwrap();
        let (key, owner) = (LockKey::new("", "a").unwrap(), OwnerId::from_bytes([7; 16]));
        let request = ClaimRequest::new(key, owner, 30 * SECOND).with_call_timeout(SECOND);
        let claim = Some(locks.0.backend.claim(request.clone()).unwrap());
        (clock, locks, request, claim)
    }

    /// A store that ends its call by Tokio's timer, which stands still while the machine sleeps.
    fn without_an_answer(_: &mut dyn Claim) -> Called<'_> {
        Box::pin(async {
            let answer = std::future::pending();
            tokio::time::timeout(SECOND, answer).await.map_err(|_| no_answer(SECOND))
        })
    }

    fn for_ever(_: &mut dyn Claim) -> Called<'_> {
        Box::pin(std::future::pending())
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_does_not_cost_the_claim() {
        let (clock, locks, request, mut claim) = claim();
        let by = (&*locks.0, &request);
        let meanwhile = pin!(async {});
        let call = to_its_end(&mut claim, by, Operation::Renew, without_an_answer, meanwhile);
        let call = async {
            let mut call = pin!(call);
            tokio::select! {
                biased;
                _ = &mut call => panic!("the store has not answered"),
                () = std::future::ready(()) => clock.advance(20 * SECOND),
            }
            call.await
        };
        call.await.unwrap_err();
        assert!(claim.is_some());
    }

    #[tokio::test]
    async fn a_call_that_does_not_end_costs_the_claim_after_the_grace() {
        let (clock, locks, request, mut claim) = claim();
        let by = (&*locks.0, &request);
        let moves = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
                clock.advance(SECOND);
            }
            std::future::pending::<()>().await
        };
        let meanwhile = pin!(async {});
        tokio::select! {
            biased;
            ended = to_its_end(&mut claim, by, Operation::Renew, for_ever, meanwhile) => {
                ended.unwrap_err()
            }
            () = moves => unreachable!(),
        };
        assert!(claim.is_none());
    }
}
