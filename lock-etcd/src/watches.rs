//! The watches of a client: single keys, with one stream for all watches requested on a runtime.
//!
//! A watch begins one revision after the read that it follows. From the revision of the read itself
//! the server would answer 90 ms late: it treats such a watch as one that has to catch up.
//!
//! Each runtime has its own stream, so a runtime that has ended or is not driven does not keep news
//! from waiters on another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::proto::{WatchCreateRequest, WatchRequest};
use crate::streams::{self, IDLE, Streamed};
use crate::wire::News;

/// All watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    cluster: Arc<Cluster>,
    /// How many streams were opened.
    streams: Arc<AtomicU64>,
    last: AtomicI64,
    services: Mutex<HashMap<Id, Orders>>,
}

/// The way to the task that serves the watches of one runtime.
#[derive(Clone, Debug)]
struct Orders {
    to: UnboundedSender<Order>,
    /// Whether there is no stream although one is needed.
    down: watch::Receiver<bool>,
}

#[derive(Debug)]
enum Order {
    Watch(i64, Watched),
    Cancel(i64),
}

/// One watched key. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    orders: Orders,
    signs: Arc<Signs>,
}

/// What a watch has reported.
#[derive(Debug, Default)]
struct Signs {
    /// The server has confirmed the watch on the current stream: changes are reported.
    live: AtomicBool,
    deleted: AtomicBool,
    /// The watch is over: it has to be started again, after another read.
    ended: AtomicBool,
}

/// A watched key, as its service knows it.
#[derive(Debug)]
struct Watched {
    key: Vec<u8>,
    /// The revision from which it is watched; advances with what was reported.
    from: i64,
    news: Arc<Notify>,
    signs: Arc<Signs>,
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (streams, last, services) = Default::default();
        Self { cluster, streams, last, services }
    }

    /// How many streams were opened so far. While this stays the same, the store is still that of
    /// an earlier read and not an older copy: a member closes its streams when it stops.
    pub(crate) fn streams(&self) -> u64 {
        self.streams.load(Relaxed)
    }

    /// Watches `key` from revision `from`, and notifies `news`.
    ///
    /// # Errors
    ///
    /// If the client was closed.
    pub(crate) fn watch(&self, key: Vec<u8>, from: i64, news: &Arc<Notify>) -> Result<Watch> {
        if self.cluster.connection().is_none() {
            return Err(Failed::closed().error);
        }
        let (id, signs) = (self.last.fetch_add(1, Relaxed) + 1, Arc::<Signs>::default());
        let orders = self.service();
        if mutants::watches(&key) {
            let (news, signs) = (Arc::clone(news), Arc::clone(&signs));
            // A service that ends right now reports nothing: the core polls anyway.
            let _ = orders.to.send(Order::Watch(id, Watched { key, from, news, signs }));
        }
        Ok(Watch { id, orders, signs })
    }

    /// The service of this runtime, started if there is none.
    fn service(&self) -> Orders {
        let runtime = Handle::current().id();
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.retain(|_, orders| !orders.to.is_closed());
        let begin = || {
            let (to, orders) = unbounded_channel();
            let (is_down, down) = watch::channel(false);
            let service = Service {
                cluster: Arc::clone(&self.cluster),
                orders,
                is_down,
                streams: Arc::clone(&self.streams),
                watched: BTreeMap::new(),
                unsent: VecDeque::new(),
            };
            tokio::spawn(streams::serve(Arc::clone(&self.cluster), service));
            Orders { to, down }
        };
        services.entry(mutants::served_by(runtime)).or_insert_with(begin).clone()
    }
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

    /// Resolves with an error when there is no stream, so no change would be reported.
    pub(crate) async fn down(&self) -> Error {
        let _ = self.orders.down.clone().wait_for(|is_down| *is_down).await;
        Error::new(
            ErrorKind::Unavailable,
            "no etcd member can be watched: none opens a watch stream",
        )
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.orders.to.send(Order::Cancel(self.id));
    }
}

/// The task that serves the watches of one runtime.
struct Service {
    cluster: Arc<Cluster>,
    orders: UnboundedReceiver<Order>,
    is_down: watch::Sender<bool>,
    streams: Arc<AtomicU64>,
    watched: BTreeMap<i64, Watched>,
    /// Watches still to be sent on the current stream: requested if they are watched, cancelled if
    /// not.
    unsent: VecDeque<i64>,
}

impl Service {
    fn note(&mut self, order: Order) {
        let id = match order {
            Order::Watch(id, watched) => {
                self.watched.insert(id, watched);
                id
            }
            Order::Cancel(id) if self.watched.remove(&id).is_some() => id,
            Order::Cancel(_) => return,
        };
        self.unsent.push_back(id);
    }

    fn next(&self) -> Option<WatchRequest> {
        let id = *self.unsent.front()?;
        let watched = self.watched.get(&id);
        Some(watched.map_or_else(|| WatchRequest::cancel(id), |watched| watched.request(id)))
    }

    /// Acts on what the server reported.
    fn believe(&mut self, news: News) -> Result<(), Why> {
        let Some(news) = mutants::news(news) else { return Ok(()) };
        match news {
            News::Opened => drop(self.streams.fetch_add(1, Relaxed)),
            News::Stands { id, revision } => {
                tracing::trace!(target: "distlock", id, revision, "a watch stands");
                if let Some(watched) = self.watched.get(&id) {
                    watched.signs.live.store(true, Relaxed);
                }
            }
            News::Told { id, up_to, changed, deleted } => {
                if let Some(watched) = self.watched.get_mut(&id) {
                    watched.told(up_to, changed, deleted);
                }
            }
            News::Ended { id, is_compacted, reason } => {
                // The changes since then are not available: the claim reads the key, and watches
                // again.
                if let Some(watched) = self.watched.remove(&id) {
                    watched.ended();
                    // Servers before 3.4.22 and 3.5.6 give a refused watch its id, and only this
                    // reason.
                    let denied = !is_compacted && reason.contains("permission denied");
                    return if denied { Err(Why::StaleToken) } else { Ok(()) };
                }
                // A refused watch has no id, and is not mentioned again on this stream.
                if id < 0 {
                    return Err(why_refused(&reason));
                }
            }
            News::Unserved => self.watched.values().for_each(Watched::ended),
        }
        Ok(())
    }
}

impl Streamed for Service {
    async fn is_needed(&mut self) -> bool {
        while self.watched.is_empty() {
            self.is_down.send_replace(false);
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.note(order),
                    None => return false,
                },
                () = self.cluster.closed() => return false,
            }
        }
        true
    }

    /// Everything is watched (again), on a new stream.
    async fn stream(&mut self, connection: &Connection, heard: &mut bool) -> Result<(), Failed> {
        self.unsent = self.watched.keys().copied().collect();
        let Some(first) = self.next() else { return Ok(()) };
        let (requests, mut answers) = connection.open(first).await?;
        self.unsent.pop_front();
        // A read that began earlier may have seen another copy of the store.
        self.believe(News::Opened).map_err(|why| refused(connection, why, ""))?;
        loop {
            let next = self.next();
            let idle = next.is_none();
            tokio::select! {
                biased;
                answer = answers.message() => {
                    let answer = answer.map_err(|status| connection.describe(status))?;
                    let answer = answer.ok_or_else(|| connection.hung_up())?;
                    let reason = answer.cancel_reason.clone();
                    let believed = self.believe(News::read(answer));
                    believed.map_err(|why| refused(connection, why, &reason))?;
                    *heard = true;
                    self.is_down.send_if_modified(|down| std::mem::replace(down, false));
                }
                sent = streams::send(&requests, next), if !idle => {
                    if !sent {
                        return Err(connection.hung_up());
                    }
                    self.unsent.pop_front();
                }
                order = self.orders.recv(), if idle => match order {
                    Some(order) => self.note(order),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(IDLE), if idle && self.watched.is_empty() => return Ok(()),
            }
        }
    }

    fn failed(&mut self, _: &Failed, is_down: bool) {
        self.watched.values().for_each(|watched| watched.signs.live.store(false, Relaxed));
        if is_down {
            self.is_down.send_replace(true);
        }
    }
}

impl Drop for Service {
    /// If the runtime of the task has ended, a claim that continues on another one is notified: it
    /// reads the key, and watches there.
    fn drop(&mut self) {
        let _ = self.believe(News::Unserved);
    }
}

impl Watched {
    /// All changes up to `up_to` have been reported.
    fn told(&mut self, up_to: i64, changed: bool, deleted: bool) {
        self.signs.live.store(true, Relaxed);
        self.from = self.from.max(up_to + 1);
        if deleted {
            self.signs.deleted.store(true, Relaxed);
        }
        if changed {
            self.news.notify_one();
        }
    }

    fn ended(&self) {
        self.signs.ended.store(true, Relaxed);
        self.news.notify_one();
    }

    fn request(&self, watch_id: i64) -> WatchRequest {
        let (key, start_revision) = (self.key.clone(), self.from);
        WatchCreateRequest { key, start_revision, progress_notify: true, watch_id }.into()
    }
}

/// Why the server refused a watch, from the `reason` it gives. A stream keeps the auth token it was
/// opened with, which may have expired or be outdated after a change of rights: a new stream has a
/// new one. If the user really has no right to the key, the claim learns that from its next read.
fn why_refused(reason: &str) -> Why {
    let known = ["auth token", "auth store", "user name", "permission denied"];
    if known.iter().any(|known| reason.contains(known)) { Why::StaleToken } else { Why::Refused }
}

fn refused(connection: &Connection, why: Why, reason: &str) -> Failed {
    let endpoint = connection.endpoint();
    let text = format!("the etcd member at {endpoint} refused a watch: {reason}");
    Failed { why, error: Error::new(ErrorKind::Denied, text) }
}
