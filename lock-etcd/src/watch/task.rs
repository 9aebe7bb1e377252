//! The watches of a client: single keys, with one stream for all watches requested on a runtime.
//!
//! A watch begins one revision after the read that it follows. From the revision of the read itself
//! the server would answer 90 ms late: it treats such a watch as one that has to catch up.
//!
//! Each runtime has its own stream, so a runtime that has ended or is not driven does not keep news
//! from waiters on another. Only claims on one runtime share watches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use lock_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::runtime::Id;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio_stream::StreamExt;

use crate::error::{EtcdFailure, FailureClass};
use crate::rules;
use crate::watch::sharing::{SharedWatches, WatchListener, WatchSigns};
use crate::wire::connection::MemberConnection;
use crate::wire::exchange;
use crate::wire::messages::WatchNews;
use crate::wire::streams::{self, IDLE, StreamService};
use crate::wire::{Cluster, Era};

/// What a read stands on: how many watch streams had been opened when it began, and the era. While both stay the
/// same, the store is still that of the read and not an older copy: a member closes its streams when it stops, and
/// its replies show that it went back. A watch restarted on a later stream says nothing about the time between: an
/// older copy may have been restored, and then it waits for revisions far in the future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footing {
    streams: u64,
    era: Era,
}

impl Footing {
    /// Whether there was a stream. Before the first one, the next read stands on something else.
    pub(crate) fn is_watched(self) -> bool {
        self.streams > 0
    }

    /// Whether nothing shows that the store went back between two reads, whatever has become of the streams.
    pub(crate) fn is_of_one_era(self, other: Self) -> bool {
        rules::is_one_era(self.era, other.era)
    }
}

/// All watches of a client.
#[derive(Debug)]
pub(crate) struct ClientWatches {
    cluster: Arc<Cluster>,
    /// How many streams were opened.
    streams: Arc<AtomicU64>,
    last: AtomicI64,
    services: Mutex<HashMap<Id, StreamOrders>>,
}

/// The way to the task that serves the watches of one runtime.
#[derive(Clone, Debug)]
struct StreamOrders {
    to: UnboundedSender<WatchOrder>,
    /// Whether there is no stream although one is needed.
    down: watch::Receiver<bool>,
}

#[derive(Debug)]
enum WatchOrder {
    Watch(i64, Vec<u8>, WatchListener),
    Cancel(i64),
}

/// One watched key, as a claim sees it. Dropping it ends the claim's part in the watch.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    id: i64,
    orders: StreamOrders,
    signs: Arc<WatchSigns>,
}

impl ClientWatches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (streams, last, services) = Default::default();
        Self { cluster, streams, last, services }
    }

    /// What a read stands on that begins now.
    pub(crate) fn footing(&self) -> Footing {
        Footing { streams: self.streams.load(Relaxed), era: self.cluster.era() }
    }

    /// Watches `key` from revision `from`, and notifies `news` when it is deleted, or does not hold `value` any more.
    ///
    /// # Errors
    ///
    /// If the client was closed.
    pub(crate) fn watch(
        &self,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
        from: i64,
        news: &Arc<Notify>,
    ) -> Result<KeyWatch> {
        if self.cluster.connection().is_none() {
            return Err(EtcdFailure::closed().error);
        }
        let (id, signs) = (self.last.fetch_add(1, Relaxed) + 1, Arc::<WatchSigns>::default());
        let orders = self.service();
        let listener =
            WatchListener { from, value, news: Arc::clone(news), signs: Arc::clone(&signs) };
        let order = WatchOrder::Watch(id, key, listener);
        // The service ends right now.
        if let Err(SendError(WatchOrder::Watch(.., listener))) = orders.to.send(order) {
            listener.ended();
        }
        Ok(KeyWatch { id, orders, signs })
    }

    /// The service of this runtime, started if there is none.
    fn service(&self) -> StreamOrders {
        let mut services = self.services.lock();
        services.retain(|_, orders| !orders.to.is_closed());
        let begin = || {
            let (to, orders) = unbounded_channel();
            let (is_down, down) = watch::channel(false);
            let service = Service {
                cluster: Arc::clone(&self.cluster),
                orders,
                is_down,
                streams: Arc::clone(&self.streams),
                watched: SharedWatches::default(),
            };
            tokio::spawn(streams::serve(Arc::clone(&self.cluster), service));
            StreamOrders { to, down }
        };
        services.entry(rules::runtime()).or_insert_with(begin).clone()
    }
}

impl KeyWatch {
    pub(crate) fn is_live(&self) -> bool {
        self.signs.live.load(Relaxed) && !self.has_ended()
    }

    /// At which revision the key was deleted.
    pub(crate) fn deleted(&self) -> Option<i64> {
        Some(self.signs.deleted.load(Relaxed)).filter(|at| *at > 0)
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

impl Drop for KeyWatch {
    fn drop(&mut self) {
        let _ = self.orders.to.send(WatchOrder::Cancel(self.id));
    }
}

/// The task that serves the watches of one runtime.
struct Service {
    cluster: Arc<Cluster>,
    orders: UnboundedReceiver<WatchOrder>,
    is_down: watch::Sender<bool>,
    streams: Arc<AtomicU64>,
    watched: SharedWatches,
}

impl Service {
    fn note(&mut self, order: WatchOrder) {
        match order {
            WatchOrder::Watch(id, key, listener) => self.watched.listen(id, key, listener),
            WatchOrder::Cancel(id) => self.watched.leave(id),
        }
    }

    /// Acts on what the server reported.
    fn on_news(&mut self, news: WatchNews) -> Result<(), FailureClass> {
        match news {
            WatchNews::Stands { id, revision } => {
                tracing::trace!(target: "distlock", id, revision, "a watch stands");
                self.watched.stands(id);
            }
            WatchNews::Progress { id, up_to, change } => {
                self.watched.on_progress(id, up_to, change.as_ref());
            }
            // A refused watch is not mentioned again on this stream, and the numbers of those after it
            // are others than we count.
            WatchNews::Ended { id, reason, .. } if id < 0 => return Err(why_refused(&reason)),
            // The changes since then are not available: the claim reads the key, and watches again.
            WatchNews::Ended { id, .. } => self.watched.ended(id),
            WatchNews::Unserved => self.watched.unserved(),
        }
        Ok(())
    }
}

impl StreamService for Service {
    async fn is_needed(&mut self) -> bool {
        self.watched.over();
        while self.watched.is_unused() {
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
    async fn stream(
        &mut self,
        connection: &MemberConnection,
        heard: &mut bool,
    ) -> Result<(), EtcdFailure> {
        self.watched.begin();
        let Some(first) = self.watched.next() else { return Ok(()) };
        let (requests, mut answers) = connection.open(first).await?;
        self.watched.sent();
        // A read that began earlier may have seen another copy of the store.
        self.streams.fetch_add(1, Relaxed);
        loop {
            let next = self.watched.next();
            let idle = next.is_none();
            tokio::select! {
                biased;
                answer = answers.try_next() => {
                    let answer = answer.map_err(|status| connection.describe(status))?;
                    let answer = answer.ok_or_else(|| connection.hung_up())?;
                    let reason = answer.cancel_reason.clone();
                    let noted = self.on_news(exchange::watch_news(answer));
                    noted.map_err(|why| refused(connection, why, &reason))?;
                    *heard = true;
                    self.is_down.send_if_modified(|down| std::mem::replace(down, false));
                }
                sent = streams::send(&requests, next), if !idle => {
                    if !sent {
                        return Err(connection.hung_up());
                    }
                    self.watched.sent();
                }
                order = self.orders.recv(), if idle => match order {
                    Some(order) => self.note(order),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(IDLE), if idle && self.watched.is_unused() => return Ok(()),
            }
        }
    }

    fn failed(&mut self, _: &EtcdFailure, is_down: bool) {
        self.watched.over();
        if is_down {
            self.is_down.send_replace(true);
        }
    }
}

impl Drop for Service {
    /// If the runtime of the task has ended, a claim that continues on another one is notified: it
    /// reads the key, and watches there.
    fn drop(&mut self) {
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            self.note(order);
        }
        let _ = self.on_news(exchange::end_of_the_news());
    }
}

/// Why the server refused a watch, from the `reason` it gives. A stream keeps the auth token it was
/// opened with, which may have expired or be outdated after a change of rights: a new stream has a
/// new one. If the user really has no right to the key, the claim learns that from its next read.
fn why_refused(reason: &str) -> FailureClass {
    let known = ["auth token", "auth store", "user name", "permission denied"];
    if known.iter().any(|known| reason.contains(known)) {
        FailureClass::StaleToken
    } else {
        FailureClass::Refused
    }
}

fn refused(connection: &MemberConnection, why: FailureClass, reason: &str) -> EtcdFailure {
    let endpoint = connection.endpoint();
    let text = format!("the etcd member at {endpoint} refused a watch: {reason}");
    EtcdFailure { why, error: Error::new(ErrorKind::Denied, text) }
}
