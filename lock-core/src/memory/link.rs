//! The link from a client to a memory store, with its faults.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{Clock, Error, ErrorKind, Result};

/// The network between one client and a memory store, for test doubles: it can be cut, and it can
/// delay or lose a request or its answer.
///
/// Each client of a [`MemoryBackend`](super::MemoryBackend) has one, whose methods are called on the
/// backend; a fake store can use it too.
#[derive(Debug)]
pub struct FaultLink {
    state: watch::Sender<LinkState>,
    faults: Mutex<VecDeque<RequestFault>>,
    requests: AtomicU64,
    stepwise: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Open,
    Cut,
    Refused,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
enum RequestFault {
    None,
    LoseRequest,
    LoseReply,
    DelayReply(Duration),
    HoldRequest(Duration),
}

impl FaultLink {
    /// A link without faults. If it is `stepwise`, every request yields before and after the store
    /// acts, as one to a real server does.
    pub fn new(stepwise: bool) -> Self {
        Self {
            state: watch::Sender::new(LinkState::Open),
            faults: Mutex::default(),
            requests: AtomicU64::new(0),
            stepwise,
        }
    }

    /// Cuts the client off: requests wait until [`heal`](Self::heal), and reach the store only
    /// then. One whose time is over before then never reaches it.
    pub fn partition(&self) {
        self.state.send_replace(LinkState::Cut);
    }

    /// Refuses the client, like a server that is down: its requests fail at once until
    /// [`heal`](Self::heal), and the store does not act on them.
    pub fn refuse(&self) {
        self.state.send_replace(LinkState::Refused);
    }

    /// Ends a [`partition`](Self::partition), or a [refusal](Self::refuse).
    pub fn heal(&self) {
        self.state.send_replace(LinkState::Open);
    }

    /// This many requests pass, and what is arranged next happens to the one after them.
    pub fn skip_requests(&self, requests: u32) {
        for _ in 0..requests {
            self.plan(RequestFault::None);
        }
    }

    /// The store acts on the next request at once, but the answer takes `delay`.
    pub fn delay_next(&self, delay: Duration) {
        self.plan(RequestFault::DelayReply(delay));
    }

    /// The next request reaches the store only after `delay`, even if the caller has given up by
    /// then: the late request that any real network can produce.
    pub fn hold_next_request(&self, delay: Duration) {
        self.plan(RequestFault::HoldRequest(delay));
    }

    /// The next request fails and never reaches the store.
    pub fn lose_next_request(&self) {
        self.plan(RequestFault::LoseRequest);
    }

    /// The next request fails although the store acts on it.
    pub fn lose_next_reply(&self) {
        self.plan(RequestFault::LoseReply);
    }

    /// How many requests were made.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether the client is currently cut off or refused.
    pub fn is_cut(&self) -> bool {
        *self.state.borrow() != LinkState::Open
    }

    /// Ready when the client is neither cut off nor refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn open(&self) {
        wait_until(&self.state, |state| *state == LinkState::Open).await;
    }

    /// Sends one request: `act` is what the store does, in one step, during this call.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable), where a fault demands it: with an unknown effect,
    /// unless the client is refused.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the store may or may not have acted.
    pub async fn request<T: Send + 'static>(
        &self,
        clock: &Arc<dyn Clock>,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = self.faults.lock().pop_front();
        wait_until(&self.state, |state| *state != LinkState::Cut).await;
        self.step().await;
        if *self.state.borrow() == LinkState::Refused {
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        let answer = match fault {
            Some(RequestFault::LoseRequest) => return Err(cut_off()),
            Some(RequestFault::HoldRequest(delay)) => {
                let (reply, answer) = oneshot::channel();
                let late = clock.sleep(delay);
                tokio::spawn(async move {
                    late.await;
                    // The caller may have given up; the store acts anyway.
                    let _ = reply.send(act());
                });
                answer.await.map_err(|_| cut_off())?
            }
            Some(RequestFault::LoseReply) => {
                act();
                return Err(cut_off());
            }
            Some(RequestFault::DelayReply(delay)) => {
                let answer = act();
                clock.sleep(delay).await;
                answer
            }
            Some(RequestFault::None) | None => act(),
        };
        self.step().await;
        Ok(answer)
    }

    fn plan(&self, fault: RequestFault) {
        self.faults.lock().push_back(fault);
    }

    async fn step(&self) {
        if self.stepwise {
            tokio::task::yield_now().await;
        }
    }
}

pub(super) async fn wait_until<T>(value: &watch::Sender<T>, is_so: impl Fn(&T) -> bool) {
    // The common case takes no subscription.
    if !is_so(&value.borrow()) {
        // The sender is borrowed here, so it cannot be gone.
        let _ = value.subscribe().wait_for(|value| is_so(value)).await;
    }
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was cut").with_unknown_effect()
}
