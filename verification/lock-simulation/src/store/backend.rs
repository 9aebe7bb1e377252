//! The backend of one simulated process, which also checks what the core asks of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Binding, Bytes, Capabilities, Claim, ClaimRequest, Error, ErrorKind, Fencing,
    LockBackend, LockKey, Released, Renewal, Result, Seen, Wake,
};
use tokio::sync::Notify;

use crate::property::Variant;
use crate::store::calls::{Call, Calls};
use crate::store::network::Network;
use crate::store::{Kind, Me, Push, Step};
use crate::world::nanos;

#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) network: Network,
    pub(crate) process: usize,
}

#[async_trait]
impl LockBackend for Backend {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let kind = self.network.kind();
        let wake = match kind {
            Kind::Polled => Wake::Poll,
            Kind::Hinting => Wake::Hint,
            Kind::Pushing | Kind::Leased => Wake::Reliable,
        };
        let mut can = Capabilities::new(Binding::Lease, wake);
        can.fair = kind != Kind::Polled;
        can.fencing = Fencing::Durable;
        can.fence_block = true;
        can.detachable = true;
        can.look = true;
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.network.observer().claimed(&request, self.process);
        let (network, process) = (self.network.clone(), self.process);
        let push = Push { notify: Arc::new(Notify::new()), process };
        let calls = Calls::new(network.world(), request.resume.is_some(), request.wait);
        let me = Me::new(&request, push.clone());
        let call_timeout = request.call_timeout;
        Ok(Box::new(SimulatedClaim { network, me, push, calls, call_timeout, known_place: None }))
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.network.look(self.process, keys).await
    }
}

#[derive(Debug)]
struct SimulatedClaim {
    network: Network,
    me: Me,
    push: Push,
    calls: Calls,
    call_timeout: Duration,
    /// The place of which the core has been told how long it lasts.
    known_place: Option<u64>,
}

impl SimulatedClaim {
    async fn ask<T: fmt::Debug + Send + 'static>(
        &self,
        call: Call,
        act: impl FnOnce(&mut Step<'_>, &Me) -> T + Send + 'static,
    ) -> Result<T> {
        if matches!(call, Call::TryAcquire | Call::Renew) {
            self.network.observer().asks(self.me.owner);
        }
        let me = self.me.clone();
        let request = self
            .network
            .request(self.push.process, (&self.me.key, call), move |step| act(step, &me));
        let world = self.network.world();
        // Clause C12, but for a few that break it.
        let hangs = world.fault(200);
        tokio::select! {
            biased;
            answer = request => answer,
            () = world.sleep(self.call_timeout), if !hangs => {
                Err(Error::new(ErrorKind::NoAnswer, "no answer").with_unknown_effect())
            }
        }
    }
}

/// A claim that is dropped may make another task ready.
impl Drop for SimulatedClaim {
    fn drop(&mut self) {
        self.network.world().stir();
    }
}

#[async_trait]
impl Claim for SimulatedClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let call = self.calls.begin(Call::TryAcquire);
        let answer = self.ask(Call::TryAcquire, |step, me| step.try_acquire(me)).await;
        let answer = answer.map(|(mut attempt, entry)| {
            match &mut attempt {
                // The lease is that of the place.
                Attempt::Granted { valid_for, .. } if self.known_place == Some(entry) => {
                    *valid_for = None;
                }
                Attempt::Busy(busy)
                    if self.network.kind() == Kind::Leased && busy.valid_for.is_some() =>
                {
                    self.known_place = Some(entry);
                }
                _ => {}
            }
            attempt
        });
        call.acquired(&answer);
        if let Ok(attempt) = &answer {
            let is_granted = matches!(attempt, Attempt::Granted { .. });
            self.network.observer().answered(self.me.owner, is_granted);
        }
        answer
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let call = self.calls.begin(Call::Renew);
        let answer = self.ask(Call::Renew, |step, me| step.renew(me)).await;
        call.renewed(&answer);
        answer
    }

    async fn check(&mut self) -> Result<Renewal> {
        let call = self.calls.begin(Call::Check);
        let answer = self.ask(Call::Check, |step, me| step.check(me)).await;
        call.renewed(&answer);
        answer
    }

    async fn release(&mut self) -> Result<Released> {
        let call = self.calls.begin(Call::Release);
        let answer = self.ask(Call::Release, |step, me| step.release(me)).await;
        call.released();
        if self.network.world().is_wrong(Variant::RenewsAfterRelease) && answer.is_ok() {
            let _ = self.renew().await;
        }
        answer
    }

    async fn changed(&mut self) -> Result<()> {
        let _call = self.calls.begin(Call::Changed);
        if self.network.kind() == Kind::Polled {
            return std::future::pending().await;
        }
        if self.network.is_cut(self.push.process) || self.network.world().fault(12) {
            return Err(Error::new(ErrorKind::Unavailable, "no pushes"));
        }
        self.push.notify.notified().await;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let call = self.calls.begin(Call::Detach);
        let begun = self.network.world().now();
        let answer = self.ask(Call::Detach, |_, _| Bytes::new()).await;
        // The client's clock may be a little fast.
        let limit = nanos(self.call_timeout) / 100 * 98;
        call.detached(&answer, self.network.world().now() - begun < limit);
        answer
    }
}
