//! How a waiter is woken, and how a holder learns that its key has gone: watches of single keys, all
//! on one stream.
//!
//! A watch begins one revision after the look that it follows. From the revision of the look itself
//! the server would answer 90 ms late: it takes such a watch for one that has to catch up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    EventType, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use lock_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use crate::backoff::BackOff;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::node::{Link, Node};

/// A stream without watches is closed after this.
const IDLE: Duration = Duration::from_secs(60);

/// One claim's ear. What comes before anybody listens is kept.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    pending: AtomicBool,
    notify: Notify,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.pending.store(true, Relaxed);
        self.notify.notify_one();
    }

    /// Ready when there was something since it was last ready.
    async fn woken(&self) {
        // The permit of `notify` is kept, so nothing is missed between the check and the wait.
        while !self.pending.swap(false, Relaxed) {
            self.notify.notified().await;
        }
    }
}

/// All watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    node: Arc<Node>,
    state: Mutex<State>,
    wake: Notify,
    /// Whether there is no stream, although one is wanted.
    down: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    served: bool,
    last: i64,
    watched: HashMap<i64, Watched>,
    orders: VecDeque<Order>,
}

#[derive(Debug)]
struct Watched {
    key: Vec<u8>,
    /// The revision from which it is watched; moves on with what has been told.
    from: i64,
    waker: Arc<Waker>,
    seen: Arc<Seen>,
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
pub(crate) struct Seen {
    /// The server has confirmed the watch on the present stream: what happens is told.
    live: AtomicBool,
    deleted: AtomicBool,
    /// The server has ended the watch: it has to begin anew, after another look.
    ended: AtomicBool,
}

/// One watched key. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Interest {
    watches: Arc<Watches>,
    id: i64,
    seen: Arc<Seen>,
}

impl Interest {
    pub(crate) fn is_live(&self) -> bool {
        self.seen.live.load(Relaxed) && !self.has_ended()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.seen.deleted.load(Relaxed)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.seen.ended.load(Relaxed)
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut state = self.watches.state();
        if state.watched.remove(&self.id).is_some() {
            state.orders.push_back(Order::Cancel(self.id));
            drop(state);
            self.watches.wake.notify_one();
        }
    }
}

impl Watches {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, state: Mutex::default(), wake: Notify::new(), down: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches `key` from revision `from`.
    pub(crate) fn watch(
        self: &Arc<Self>,
        key: impl Into<Vec<u8>>,
        from: i64,
        waker: &Arc<Waker>,
    ) -> Interest {
        let key = key.into();
        let seen = Arc::<Seen>::default();
        let id = {
            let mut state = self.state();
            state.last += 1;
            let id = state.last;
            let waker = Arc::clone(waker);
            state.watched.insert(id, Watched { key, from, waker, seen: Arc::clone(&seen) });
            state.orders.push_back(Order::Watch(id));
            id
        };
        self.wake.notify_one();
        Interest { watches: Arc::clone(self), id, seen }
    }

    /// Ready when `waker` was woken. Begins the service of the watches, if nobody serves them (any more).
    ///
    /// # Errors
    ///
    /// If there is no stream, so that nobody would wake it.
    pub(crate) async fn woken(self: &Arc<Self>, waker: &Waker) -> Result<()> {
        let is_served = {
            let mut state = self.state();
            state.watched.is_empty() || std::mem::replace(&mut state.served, true)
        };
        if !is_served {
            tokio::spawn(serve(Arc::clone(self)));
        }
        let mut down = self.down.subscribe();
        tokio::select! {
            biased;
            () = waker.woken() => Ok(()),
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
                Order::Watch(id) => match state.watched.get(&id) {
                    Some(watched) => return Some(watched.request(id)),
                    // Dropped before it was sent: the order to cancel it is harmless.
                    None => drop(state.orders.pop_front()),
                },
            }
        }
        None
    }

    fn sent(&self) {
        self.state().orders.pop_front();
    }

    /// Everything is watched anew, on a new stream.
    fn start_over(&self) {
        let mut state = self.state();
        state.orders.clear();
        let mut ids: Vec<_> = state.watched.keys().copied().collect();
        ids.sort_unstable();
        state.watched.values().for_each(|watched| watched.seen.live.store(false, Relaxed));
        state.orders.extend(ids.into_iter().map(Order::Watch));
    }

    fn read(&self, answer: &WatchResponse) -> Result<(), Why> {
        let mut state = self.state();
        let id = answer.watch_id();
        // A watch that was refused has no number, and is no more to be heard of on this stream.
        if answer.canceled() && id < 0 && !mutants::on("ignores_a_refused_watch") {
            return Err(why_refused(answer.cancel_reason()));
        }
        let Some(watched) = state.watched.get_mut(&id) else { return Ok(()) };
        if answer.canceled() {
            let compacted = answer.compact_revision();
            if compacted > 0 && mutants::on("resumes_after_compaction") {
                watched.from = compacted;
                state.orders.push_back(Order::Watch(id));
                return Ok(());
            }
            // What has happened since is not to be had: the claim looks, and watches anew.
            watched.seen.ended.store(true, Relaxed);
            watched.waker.wake();
            state.watched.remove(&id);
            // Servers before 3.4.22 and 3.5.6 give a refused watch its number, and this one reason.
            let denied = answer.cancel_reason().contains("permission denied");
            return if compacted == 0 && denied { Err(Why::StaleToken) } else { Ok(()) };
        }
        watched.seen.live.store(true, Relaxed);
        let revision = answer.header().map_or(0, |header| header.revision());
        let events = answer.events().iter();
        let told = events.filter_map(|event| event.kv()).map(|kv| kv.mod_revision()).max();
        watched.heard(answer.created(), revision, told);
        for event in answer.events() {
            if event.event_type() == EventType::Delete {
                watched.seen.deleted.store(true, Relaxed);
            }
            watched.waker.wake();
        }
        Ok(())
    }
}

/// Why the server has refused a watch, by the `reason` that it gives. The token of a stream is that of
/// its beginning, and may have run out or been overtaken by a change of rights: a new stream has a new
/// one. Where the user really has no right to the key, the claim learns that from its next look.
fn why_refused(reason: &str) -> Why {
    let known = ["auth token", "auth store", "user name", "permission denied"];
    if known.iter().any(|known| reason.contains(known)) { Why::StaleToken } else { Why::Refused }
}

impl Watched {
    /// Moves on to what is still to be told, after an answer at the store's revision `revision` that
    /// has told of changes up to revision `told`.
    ///
    /// An answer with changes carries the revision of the store, which may be that of a change that
    /// comes in the next answer. The answer that the watch was created says nothing of what has
    /// changed since its first revision: that comes later, or never if the stream breaks before. Only
    /// an answer without changes says that there were none.
    fn heard(&mut self, created: bool, revision: i64, told: Option<i64>) {
        let up_to = match told {
            Some(told) => told,
            None if created && !mutants::on("skips_what_was_not_told") => return,
            None => revision,
        };
        self.from = self.from.max(up_to + 1);
    }

    fn request(&self, id: i64) -> Request {
        let options = WatchOptions::new()
            .with_start_revision(self.from)
            .with_watch_id(id)
            .with_progress_notify();
        Request::Watch(self.key.clone(), options)
    }
}

/// Ends the service, in whatever way the task ends.
struct Served<'a>(Option<&'a Watches>);

impl Drop for Served<'_> {
    /// Where the runtime of the task has ended, those who wait on another one are woken: they look, and
    /// begin the service there.
    fn drop(&mut self) {
        if let Some(watches) = self.0 {
            let mut state = watches.state();
            state.served = false;
            if !mutants::on("dies_with_its_runtime") {
                state.watched.values().for_each(|watched| watched.waker.wake());
            }
        }
    }
}

async fn serve(watches: Arc<Watches>) {
    let mut served = Served(Some(&watches));
    let mut back_off = BackOff::default();
    let mut links = watches.node.links();
    loop {
        let Some(link) = links.borrow_and_update().clone() else { break };
        if watches.state().watched.is_empty() {
            watches.down.send_replace(false);
            tokio::select! {
                () = watches.wake.notified() => {}
                () = watches.node.closed() => return,
                () = tokio::time::sleep(IDLE) => {
                    let mut state = watches.state();
                    if state.watched.is_empty() {
                        state.served = false;
                        // Under the lock: the next watch starts another task.
                        served.0 = None;
                        return;
                    }
                }
            }
            continue;
        }
        watches.start_over();
        let clock = watches.node.clock();
        let (token, opened, mut heard) = (link.token(), clock.now(), false);
        let ended = tokio::select! {
            ended = stream(&watches, &link, &mut heard) => ended,
            _ = links.changed() => Ok(()),
        };
        let Err(failed) = ended else { continue };
        let lasted = if heard { clock.now().since(opened) } else { Duration::ZERO };
        tracing::debug!(target: "distlock", error = %failed.error, "the stream of watches has ended");
        match failed.why {
            Why::StaleToken => drop(link.renew_token(token).await),
            _ if failed.is_about_the_member() => watches.node.leave(&link).await,
            _ => {}
        }
        if let Some(pause) = back_off.failed(lasted, watches.node.members()) {
            watches.down.send_replace(true);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = watches.node.closed() => return,
            }
        }
    }
    watches.down.send_replace(true);
}

/// Serves all watches by one stream, until it fails or is not used any more.
async fn stream(watches: &Watches, link: &Link, heard: &mut bool) -> Result<(), Failed> {
    let Some(Request::Watch(key, options)) = watches.next() else { return Ok(()) };
    let mut client = link.client().await?;
    let opened = client.watch(key, Some(options)).await.map_err(|error| link.describe(error))?;
    watches.sent();
    let (mut requests, mut answers): (WatchRequestSender, WatchResponseStream) = opened.split();
    loop {
        let next = watches.next();
        let idle = next.is_none();
        tokio::select! {
            biased;
            answer = answers.message() => match answer.map_err(|error| link.describe(error))? {
                Some(answer) => {
                    watches.read(&answer).map_err(|why| refused(link, why, &answer))?;
                    *heard = true;
                    watches.down.send_if_modified(|down| std::mem::replace(down, false));
                }
                None => return Err(broken(link)),
            },
            sent = send(watches, &mut requests, next), if !idle => {
                if !sent {
                    return Err(broken(link));
                }
            }
            () = watches.wake.notified(), if idle => {}
            () = tokio::time::sleep(IDLE), if idle => {
                if watches.state().watched.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

/// Sends one order; false if the stream takes no more. Cancel-safe: then nothing was sent.
async fn send(watches: &Watches, requests: &mut WatchRequestSender, next: Option<Request>) -> bool {
    let sent = match next {
        Some(Request::Watch(key, options)) => requests.watch(key, Some(options)).await.is_ok(),
        Some(Request::Cancel(id)) => requests.cancel(id).await.is_ok(),
        None => return true,
    };
    if sent {
        watches.sent();
    }
    sent
}

fn broken(link: &Link) -> Failed {
    link.describe(etcd_client::Error::WatchError("the stream has ended".to_owned()))
}

fn refused(link: &Link, why: Why, answer: &WatchResponse) -> Failed {
    let error = Error::new(
        ErrorKind::Denied,
        format!(
            "the etcd member at {} has refused a watch: {}",
            link.endpoint(),
            answer.cancel_reason()
        ),
    );
    Failed { why, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_goes_on_from_what_it_was_told() {
        let (waker, seen) = (Arc::default(), Arc::default());
        let mut watched = Watched { key: b"k".to_vec(), from: 11, waker, seen };
        for (created, revision, told, from) in [
            // The change at 40 comes later.
            (true, 50, None, 11),
            (false, 50, Some(40), 41),
            (false, 45, Some(39), 41),
            (false, 60, None, 61),
            (true, 70, None, 61),
        ] {
            watched.heard(created, revision, told);
            assert_eq!(watched.from, from, "{created} {revision} {told:?}");
        }
    }

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

    #[tokio::test]
    async fn a_push_is_kept_until_somebody_listens() {
        let waker = Waker::default();
        waker.wake();
        tokio::time::timeout(Duration::from_secs(5), waker.woken()).await.unwrap();
        let again = tokio::time::timeout(Duration::from_millis(20), waker.woken()).await;
        assert!(again.is_err(), "one push wakes once");
    }
}
