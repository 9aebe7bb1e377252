//! The watches of a client: single keys, all on one stream.
//!
//! A watch begins one revision after the look that it follows. From the revision of the look itself
//! the server would answer 90 ms late: it takes such a watch for one that has to catch up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{WatchOptions, WatchRequestSender};
use lock_core::kit::wake::{Slot, Waiter};
use lock_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::streams::{self, IDLE, Streamed};
use crate::wire::News;

/// All watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    cluster: Arc<Cluster>,
    state: Mutex<State>,
    news: Notify,
    /// Whether there is no stream, although one is wanted.
    down: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    served: bool,
    /// How many streams were opened.
    streams: u64,
    last: i64,
    watched: HashMap<i64, Watched>,
    orders: VecDeque<Order>,
}

#[derive(Debug)]
struct Watched {
    key: Vec<u8>,
    /// The revision from which it is watched; moves on with what has been told.
    from: i64,
    slot: Arc<Slot>,
    signs: Arc<Signs>,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Watch(i64),
    Cancel(i64),
}

enum Request {
    Watch(Vec<u8>, WatchOptions),
    Cancel(i64),
}

/// What a watch has shown.
#[derive(Debug, Default)]
struct Signs {
    /// The server has confirmed the watch on the present stream: what happens is told.
    live: AtomicBool,
    deleted: AtomicBool,
    /// The server has ended the watch: it has to begin again, after another look.
    ended: AtomicBool,
}

/// One watched key. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    watches: Arc<Watches>,
    id: i64,
    signs: Arc<Signs>,
}

impl Watch {
    pub(crate) fn is_live(&self) -> bool {
        self.signs.live.load(Relaxed) && !self.has_ended()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.signs.deleted.load(Relaxed)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.signs.ended.load(Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.watches.state();
        if state.watched.remove(&self.id).is_some() {
            state.orders.push_back(Order::Cancel(self.id));
            drop(state);
            self.watches.news.notify_one();
        }
    }
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (state, news, down) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        Self { cluster, state, news, down }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many streams were opened so far. The store is the one of an earlier look, and no older copy of
    /// it, for as long as this stays the same: each member ends its streams when it ends.
    pub(crate) fn streams(&self) -> u64 {
        self.state().streams
    }

    /// Watches `key` from revision `from`, and wakes `slot`.
    pub(crate) fn watch(
        self: &Arc<Self>,
        key: impl Into<Vec<u8>>,
        from: i64,
        slot: &Arc<Slot>,
    ) -> Watch {
        let (key, slot, signs) = (key.into(), Arc::clone(slot), Arc::<Signs>::default());
        let id = {
            let mut state = self.state();
            state.last += 1;
            let id = state.last;
            state.watched.insert(id, Watched { key, from, slot, signs: Arc::clone(&signs) });
            state.orders.push_back(Order::Watch(id));
            id
        };
        self.news.notify_one();
        Watch { watches: Arc::clone(self), id, signs }
    }

    /// Ready when `waiter` was woken. Begins the service of the watches, if nobody serves them (any more).
    ///
    /// # Errors
    ///
    /// If there is no stream, so that nobody would wake it.
    pub(crate) async fn woken(self: &Arc<Self>, waiter: &Waiter<String>) -> Result<()> {
        let is_served = {
            let mut state = self.state();
            state.watched.is_empty() || std::mem::replace(&mut state.served, true)
        };
        if !is_served {
            let service = Service { watches: Arc::clone(self), is_over: false };
            tokio::spawn(streams::serve(Arc::clone(&self.cluster), service));
        }
        let mut down = self.down.subscribe();
        tokio::select! {
            biased;
            () = waiter.woken() => Ok(()),
            _ = down.wait_for(|down| *down) => Err(Error::new(
                ErrorKind::Unavailable,
                "there is no stream for the watches: no member of etcd opens one",
            )),
        }
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.state();
        while let Some(order) = state.orders.front().copied() {
            match order {
                Order::Cancel(id) => return Some(Request::Cancel(id)),
                Order::Watch(id) => {
                    match state.watched.get(&id).filter(|it| mutants::watches(&it.key)) {
                        Some(watched) => return Some(watched.request(id)),
                        // Dropped before it was sent: the order to cancel it is harmless.
                        None => drop(state.orders.pop_front()),
                    }
                }
            }
        }
        None
    }

    fn sent(&self) {
        self.state().orders.pop_front();
    }

    /// What was told is believed.
    fn believe(&self, news: News) -> Result<(), Why> {
        let Some(news) = mutants::news(news) else { return Ok(()) };
        let mut state = self.state();
        match news {
            News::Opened => state.streams += 1,
            News::Stands { id, revision } => {
                tracing::trace!(target: "distlock", id, revision, "a watch stands");
                if let Some(watched) = state.watched.get(&id) {
                    watched.signs.live.store(true, Relaxed);
                }
            }
            News::Told { id, up_to, changed, deleted } => {
                if let Some(watched) = state.watched.get_mut(&id) {
                    watched.told(up_to, changed, deleted);
                }
            }
            News::Ended { id, is_compacted, reason } => {
                // What has happened since is not to be had: the claim looks, and watches again.
                if let Some(watched) = state.watched.remove(&id) {
                    watched.signs.ended.store(true, Relaxed);
                    watched.slot.wake();
                    // Servers before 3.4.22 and 3.5.6 give a refused watch its number, and this one reason.
                    let denied = !is_compacted && reason.contains("permission denied");
                    return if denied { Err(Why::StaleToken) } else { Ok(()) };
                }
                // A watch that was refused has no number, and is no more to be heard of on this stream.
                if id < 0 {
                    return Err(why_refused(&reason));
                }
            }
            News::Unserved => state.watched.values().for_each(|watched| watched.slot.wake()),
        }
        Ok(())
    }

    /// Sends one order; false if the stream takes no more. Cancel-safe: then nothing was sent.
    async fn send(&self, requests: &mut WatchRequestSender, next: Option<Request>) -> bool {
        let sent = match next {
            Some(Request::Watch(key, options)) => requests.watch(key, Some(options)).await.is_ok(),
            Some(Request::Cancel(id)) => requests.cancel(id).await.is_ok(),
            None => return true,
        };
        if sent {
            self.sent();
        }
        sent
    }

    /// Everything is watched again, on a new stream.
    fn start_over(&self) {
        let mut state = self.state();
        state.orders.clear();
        let mut ids: Vec<_> = state.watched.keys().copied().collect();
        ids.sort_unstable();
        state.watched.values().for_each(|watched| watched.signs.live.store(false, Relaxed));
        state.orders.extend(ids.into_iter().map(Order::Watch));
    }
}

/// The task that serves the watches.
struct Service {
    watches: Arc<Watches>,
    /// It was said under the lock that nobody serves.
    is_over: bool,
}

impl Streamed for Service {
    async fn is_needed(&mut self) -> bool {
        let watches = &self.watches;
        while watches.state().watched.is_empty() {
            watches.down.send_replace(false);
            tokio::select! {
                () = watches.news.notified() => {}
                () = watches.cluster.closed() => return false,
                () = tokio::time::sleep(IDLE) => {
                    let mut state = watches.state();
                    if state.watched.is_empty() {
                        // Under the lock: the next watch starts another task.
                        state.served = false;
                        self.is_over = true;
                        return false;
                    }
                }
            }
        }
        true
    }

    async fn stream(&mut self, connection: &Connection, heard: &mut bool) -> Result<(), Failed> {
        let watches = &self.watches;
        watches.start_over();
        let Some(Request::Watch(key, options)) = watches.next() else { return Ok(()) };
        let mut client = connection.client().await?;
        let opened = client.watch(key, Some(options)).await;
        let (mut requests, mut answers) =
            opened.map_err(|error| connection.describe(error))?.split();
        watches.sent();
        // A look that began before may have been at another copy of the store.
        watches.believe(News::Opened).map_err(|why| refused(connection, why, ""))?;
        loop {
            let next = watches.next();
            let idle = next.is_none();
            tokio::select! {
                biased;
                answer = answers.message() => {
                    let answer = answer.map_err(|error| connection.describe(error))?;
                    let answer = answer.ok_or_else(|| broken(connection))?;
                    let believed = watches.believe(News::read(&answer));
                    believed.map_err(|why| refused(connection, why, answer.cancel_reason()))?;
                    *heard = true;
                    watches.down.send_if_modified(|down| std::mem::replace(down, false));
                }
                sent = watches.send(&mut requests, next), if !idle => {
                    if !sent {
                        return Err(broken(connection));
                    }
                }
                () = watches.news.notified(), if idle => {}
                () = tokio::time::sleep(IDLE), if idle => {
                    if watches.state().watched.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn failed(&mut self, _: &Failed, is_down: bool) {
        if is_down {
            self.watches.down.send_replace(true);
        }
    }
}

impl Drop for Service {
    /// Where the runtime of the task has ended, those who wait on another one are woken: they look, and
    /// begin the service there.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.watches.state().served = false;
        let _ = self.watches.believe(News::Unserved);
        if self.watches.cluster.connection().is_none() {
            self.watches.down.send_replace(true);
        }
    }
}

impl Watched {
    /// All changes up to `up_to` have been told.
    fn told(&mut self, up_to: i64, changed: bool, deleted: bool) {
        self.signs.live.store(true, Relaxed);
        self.from = self.from.max(up_to + 1);
        if deleted {
            self.signs.deleted.store(true, Relaxed);
        }
        if changed {
            self.slot.wake();
        }
    }

    fn request(&self, id: i64) -> Request {
        let options = WatchOptions::new()
            .with_start_revision(self.from)
            .with_watch_id(id)
            .with_progress_notify();
        Request::Watch(self.key.clone(), options)
    }
}

/// Why the server has refused a watch, by the `reason` that it gives. The token of a stream is that of
/// its beginning, and may have run out or been overtaken by a change of rights: a new stream has a new
/// one. Where the user really has no right to the key, the claim learns that from its next look.
fn why_refused(reason: &str) -> Why {
    let known = ["auth token", "auth store", "user name", "permission denied"];
    if known.iter().any(|known| reason.contains(known)) { Why::StaleToken } else { Why::Refused }
}

fn broken(connection: &Connection) -> Failed {
    connection.describe(etcd_client::Error::WatchError("the stream has ended".to_owned()))
}

fn refused(connection: &Connection, why: Why, reason: &str) -> Failed {
    let endpoint = connection.endpoint();
    let text = format!("the etcd member at {endpoint} has refused a watch: {reason}");
    Failed { why, error: Error::new(ErrorKind::Denied, text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_stream_helps_against_a_token_that_has_run_out() {
        for (reason, why) in [
            ("etcdserver: invalid auth token", Why::StaleToken),
            ("etcdserver: revision of auth store is old", Why::StaleToken),
            ("etcdserver: user name is empty", Why::StaleToken),
            ("etcdserver: permission denied", Why::StaleToken),
            ("mvcc: the given watch ID is already used", Why::Refused),
        ] {
            assert_eq!(why_refused(reason), why, "{reason}");
        }
    }
}
