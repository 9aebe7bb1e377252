//! The way from a client to the memory store, with its faults.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::store::Store;
use crate::{Error, ErrorKind, Result};

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    LoseRequest,
    LoseReply,
    DelayReply(Duration),
    HoldRequest(Duration),
}

#[derive(Debug)]
pub(super) struct Link {
    cut: watch::Sender<bool>,
    faults: Mutex<VecDeque<Fault>>,
    requests: AtomicU64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            cut: watch::Sender::new(false),
            faults: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }
}

impl Link {
    pub(super) fn set_cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    pub(super) fn plan(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Ready when the client is not cut off.
    pub(super) async fn open(&self) {
        wait_until_off(&self.cut).await;
    }

    /// Sends one request: the store acts in one step, in the middle of this call.
    pub(super) async fn request<T: Send + 'static>(
        &self,
        store: &Arc<Store>,
        act: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.open().await;
        wait_until_off(&store.frozen).await;
        if store.stepwise {
            tokio::task::yield_now().await;
        }
        let answer = match fault {
            Some(Fault::LoseRequest) => return Err(cut_off()),
            Some(Fault::HoldRequest(delay)) => {
                let (reply, answer) = oneshot::channel();
                let store = Arc::clone(store);
                tokio::spawn(async move {
                    store.clock.sleep(delay).await;
                    // The one who asked may have given up; the store acts all the same.
                    let _ = reply.send(act(&store));
                });
                answer.await.map_err(|_| cut_off())?
            }
            Some(Fault::LoseReply) => {
                act(store);
                return Err(cut_off());
            }
            Some(Fault::DelayReply(delay)) => {
                let answer = act(store);
                store.clock.sleep(delay).await;
                answer
            }
            None => act(store),
        };
        if store.stepwise {
            tokio::task::yield_now().await;
        }
        Ok(answer)
    }
}

async fn wait_until_off(switch: &watch::Sender<bool>) {
    // The common case takes no subscription.
    if *switch.borrow() {
        // The sender is borrowed here, so it cannot be gone.
        let _ = switch.subscribe().wait_for(|on| !on).await;
    }
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was cut").with_unknown_effect()
}
