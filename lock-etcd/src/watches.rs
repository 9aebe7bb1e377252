//! The watches of a client: single keys, with one stream for all watches requested on a runtime.
//!
//! A watch begins one revision after the read that it follows. From the revision of the read itself
//! the server would answer 90 ms late: it treats such a watch as one that has to catch up.
//!
//! Each runtime has its own stream, so a runtime that has ended or is not driven does not keep news
//! from waiters on another. Only claims on one runtime share watches.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::streams::{self, IDLE, Streamed};
use crate::wake::Look;
use crate::watched::{Listener, Signs, Watched};
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
    Watch(i64, Vec<u8>, Listener),
    Cancel(i64),
}

/// One watched key, as a claim sees it. Dropping it ends the claim's part in the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    orders: Orders,
    signs: Arc<Signs>,
}

impl Watches {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (streams, last, services) = Default::default();
        Self { cluster, streams, last, services }
    }

    /// A read that is about to begin: how many streams were opened so far. While this stays the
    /// same, the store is still that of an earlier read and not an older copy: a member closes its
    /// streams when it stops.
    pub(crate) fn look(&self) -> Look {
        Look(self.streams.load(Relaxed))
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
            let order = Order::Watch(id, key, Listener { from, news, signs });
            // The service ends right now.
            if let Err(SendError(Order::Watch(.., listener))) = orders.to.send(order) {
                listener.ended();
            }
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
                watched: Watched::new(mutants::rules()),
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
    watched: Watched,
}

impl Service {
    fn note(&mut self, order: Order) {
        match order {
            Order::Watch(id, key, listener) => self.watched.listen(id, key, listener),
            Order::Cancel(id) => self.watched.leave(id),
        }
    }

    /// Acts on what the server reported.
    fn believe(&mut self, news: News) -> Result<(), Why> {
        let Some(news) = mutants::news(news) else { return Ok(()) };
        match news {
            News::Opened => drop(self.streams.fetch_add(1, Relaxed)),
            News::Stands { id, revision } => {
                tracing::trace!(target: "distlock", id, revision, "a watch stands");
                self.watched.stands(id);
            }
            News::Told { id, up_to, changed, deleted } => {
                self.watched.told(id, up_to, changed, deleted);
            }
            News::Ended { id, is_compacted, reason } => {
                // The changes since then are not available: the claim reads the key, and watches
                // again.
                if self.watched.ended(id) {
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
            News::Unserved => self.watched.unserved(),
        }
        Ok(())
    }
}

impl Streamed for Service {
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
    async fn stream(&mut self, connection: &Connection, heard: &mut bool) -> Result<(), Failed> {
        self.watched.begin();
        let Some(first) = self.watched.next() else { return Ok(()) };
        let (requests, mut answers) = connection.open(first).await?;
        self.watched.sent();
        // A read that began earlier may have seen another copy of the store.
        self.believe(News::Opened).map_err(|why| refused(connection, why, ""))?;
        loop {
            let next = self.watched.next();
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

    fn failed(&mut self, _: &Failed, is_down: bool) {
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
        let _ = self.believe(News::Unserved);
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
