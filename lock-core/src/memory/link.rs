//! The link from a client to a memory store, with its faults.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::{Clock, Error, ErrorKind, Result};

/// The network between one client and a memory store, for test doubles: it can be cut, and it can
/// delay or lose a request or its answer.
///
/// Each client of a [`MemoryBackend`](super::MemoryBackend) has one, whose methods are called on the
/// backend; a fake store can use it too.
#[derive(Debug)]
pub struct FaultLink {
    cut: watch::Sender<bool>,
    faults: Mutex<VecDeque<Fault>>,
    requests: AtomicU64,
    stepwise: bool,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
enum Fault {
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
            cut: watch::Sender::new(false),
            faults: Mutex::default(),
            requests: AtomicU64::new(0),
            stepwise,
        }
    }

    /// Cuts the client off: requests wait until [`heal`](Self::heal), and reach the store only
    /// then. One that is dropped before then never reaches it.
    pub fn partition(&self) {
        self.cut.send_replace(true);
    }

    /// Ends a [`partition`](Self::partition).
    pub fn heal(&self) {
        self.cut.send_replace(false);
    }

    /// The store acts on the next request at once, but the answer takes `delay`.
    pub fn delay_next(&self, delay: Duration) {
        self.plan(Fault::DelayReply(delay));
    }

    /// The next request reaches the store only after `delay`, even if the caller has given up by
    /// then: the late request that any real network can produce.
    pub fn hold_next_request(&self, delay: Duration) {
        self.plan(Fault::HoldRequest(delay));
    }

    /// The next request fails and never reaches the store.
    pub fn lose_next_request(&self) {
        self.plan(Fault::LoseRequest);
    }

    /// The next request fails although the store acts on it.
    pub fn lose_next_reply(&self) {
        self.plan(Fault::LoseReply);
    }

    /// How many requests were made.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether the client is currently cut off.
    pub fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    /// Ready when the client is not cut off.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn open(&self) {
        wait_until_off(&self.cut).await;
    }

    /// Sends one request: `act` is what the store does, in one step, during this call.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) with an unknown effect, where a fault demands it.
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
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.open().await;
        self.step().await;
        let answer = match fault {
            Some(Fault::LoseRequest) => return Err(cut_off()),
            Some(Fault::HoldRequest(delay)) => {
                let (reply, answer) = oneshot::channel();
                let late = clock.sleep(delay);
                tokio::spawn(async move {
                    late.await;
                    // The caller may have given up; the store acts anyway.
                    let _ = reply.send(act());
                });
                answer.await.map_err(|_| cut_off())?
            }
            Some(Fault::LoseReply) => {
                act();
                return Err(cut_off());
            }
            Some(Fault::DelayReply(delay)) => {
                let answer = act();
                clock.sleep(delay).await;
                answer
            }
            None => act(),
        };
        self.step().await;
        Ok(answer)
    }

    fn plan(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    async fn step(&self) {
        if self.stepwise {
            tokio::task::yield_now().await;
        }
    }
}

pub(super) async fn wait_until_off(switch: &watch::Sender<bool>) {
    // The common case takes no subscription.
    if *switch.borrow() {
        // The sender is borrowed here, so it cannot be gone.
        let _ = switch.subscribe().wait_for(|on| !on).await;
    }
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was cut").with_unknown_effect()
}
