//! The watches of a client: single keys, all that are asked for on one runtime on one stream.
//!
//! A watch begins one revision after the look that it follows. From the revision of the look itself
//! the server would answer 90 ms late: it takes such a watch for one that has to catch up.
//!
//! Each runtime has a stream of its own, so that one that has ended, or that nobody drives at the moment,
//! keeps no news from those who wait on another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{WatchOptions, WatchRequestSender};
use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
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
    /// How many streams were opened.
    streams: Arc<AtomicU64>,
    last: AtomicI64,
    services: Mutex<HashMap<Id, Orders>>,
}

/// The way to the task that serves the watches of one runtime.
#[derive(Clone, Debug)]
struct Orders {
    to: UnboundedSender<Order>,
    /// Whether there is no stream, although one is wanted.
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

/// What a watch has shown.
#[derive(Debug, Default)]
struct Signs {
    /// The server has confirmed the watch on the present stream: what happens is told.
    live: AtomicBool,
    deleted: AtomicBool,
    /// The watch is over: it has to begin again, after another look.
    ended: AtomicBool,
}

/// A watched key, as its service knows it.
#[derive(Debug)]
struct Watched {
    key: Vec<u8>,
    /// The revision from which it is watched; moves on with what has been told.
    from: i64,
    news: Arc<Notify>,
    signs: Arc<Signs>,
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (streams, last, services) = Default::default();
        Self { cluster, streams, last, services }
    }

    /// How many streams were opened so far. The store is the one of an earlier look, and no older copy of
    /// it, for as long as this stays the same: each member ends its streams when it ends.
    pub(crate) fn streams(&self) -> u64 {
        self.streams.load(Relaxed)
    }

    /// Watches `key` from revision `from`, and tells `news`.
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
            // A service that ends right now tells of nothing: the core looks by itself.
            let _ = orders.to.send(Order::Watch(id, Watched { key, from, news, signs }));
        }
        Ok(Watch { id, orders, signs })
    }

    /// The service of this runtime, which is begun if there is none (any more).
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

    /// Ready with an error when there is no stream, so that nobody would tell of anything.
    pub(crate) async fn down(&self) -> Error {
        let _ = self.orders.down.clone().wait_for(|is_down| *is_down).await;
        Error::new(
            ErrorKind::Unavailable,
            "there is no stream for the watches: no member of etcd opens one",
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
    /// What the server is still to be told on the present stream: to watch what is watched, and to cancel
    /// what is not.
    unsent: VecDeque<i64>,
}

enum Request {
    Watch(Vec<u8>, WatchOptions),
    Cancel(i64),
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

    fn next(&self) -> Option<Request> {
        let id = *self.unsent.front()?;
        Some(self.watched.get(&id).map_or(Request::Cancel(id), |watched| watched.request(id)))
    }

    /// What was told is believed.
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
                // What has happened since is not to be had: the claim looks, and watches again.
                if let Some(watched) = self.watched.remove(&id) {
                    watched.ended();
                    // Servers before 3.4.22 and 3.5.6 give a refused watch its number, and this one reason.
                    let denied = !is_compacted && reason.contains("permission denied");
                    return if denied { Err(Why::StaleToken) } else { Ok(()) };
                }
                // A watch that was refused has no number, and is no more to be heard of on this stream.
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
        let Some(Request::Watch(key, options)) = self.next() else { return Ok(()) };
        let mut client = connection.client().await?;
        let opened = client.watch(key, Some(options)).await;
        let (mut requests, mut answers) =
            opened.map_err(|error| connection.describe(error))?.split();
        self.unsent.pop_front();
        // A look that began before may have been at another copy of the store.
        self.believe(News::Opened).map_err(|why| refused(connection, why, ""))?;
        loop {
            let next = self.next();
            let idle = next.is_none();
            tokio::select! {
                biased;
                answer = answers.message() => {
                    let answer = answer.map_err(|error| connection.describe(error))?;
                    let answer = answer.ok_or_else(|| broken(connection))?;
                    let believed = self.believe(News::read(&answer));
                    believed.map_err(|why| refused(connection, why, answer.cancel_reason()))?;
                    *heard = true;
                    self.is_down.send_if_modified(|down| std::mem::replace(down, false));
                }
                sent = send(&mut requests, next), if !idle => {
                    if !sent {
                        return Err(broken(connection));
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
    /// Where the runtime of the task has ended, a claim that goes on elsewhere is told: it looks, and
    /// watches there.
    fn drop(&mut self) {
        let _ = self.believe(News::Unserved);
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
            self.news.notify_one();
        }
    }

    fn ended(&self) {
        self.signs.ended.store(true, Relaxed);
        self.news.notify_one();
    }

    fn request(&self, id: i64) -> Request {
        let options = WatchOptions::new()
            .with_start_revision(self.from)
            .with_watch_id(id)
            .with_progress_notify();
        Request::Watch(self.key.clone(), options)
    }
}

/// Sends one request; false if the stream takes no more. Cancel-safe: then nothing was sent.
async fn send(requests: &mut WatchRequestSender, next: Option<Request>) -> bool {
    match next {
        Some(Request::Watch(key, options)) => requests.watch(key, Some(options)).await.is_ok(),
        Some(Request::Cancel(id)) => requests.cancel(id).await.is_ok(),
        None => true,
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
