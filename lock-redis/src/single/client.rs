//! One client of one server: the state that all its claims share.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lock_core::{Clock, LockKey, OsRng, Result, Rng, SystemClock};
use lock_kit::batch::Batches;
use lock_kit::wake::Slot;

use super::config::{Pause, RedisConfig};
use super::hand_overs::HandOvers;
use super::renewals::{self, RenewalAnswer, RenewalItem};
use super::waiters::{PushEffect, PushedWaiter, WaiterTable, try_now};
use crate::names::Keys;
use crate::node::{Eviction, Listener, Node, NodeEvent};

/// Channels are this and the id of a client.
const CHANNEL: &str = "distlock:";

/// One client of one server.
pub(super) struct ServerClient {
    pub(super) node: Arc<Node>,
    /// Marks our waiters and names our channel.
    pub(super) id: Arc<str>,
    pub(super) waiters: Arc<WaiterTable>,
    renewals: Batches<RenewalItem, Result<RenewalAnswer>>,
    pub(super) hand_overs: Arc<HandOvers>,
    pub(super) grace: Duration,
    pub(super) may_pause: bool,
    /// What each new connection is asked for, once the first one was, and unless sentinels lead to it.
    pub(super) checked: OnceLock<Eviction>,
    /// The limit for a call that does not belong to a lock.
    pub(super) limit: Duration,
}

impl ServerClient {
    /// Nothing is sent.
    pub(super) fn new(config: &RedisConfig) -> Result<Arc<Self>> {
        let mut id = [0; 8];
        OsRng.fill(&mut id)?;
        let id: Arc<str> = format!("{:016x}", u64::from_be_bytes(id)).into();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let itself = Arc::new(OnceLock::<Weak<Self>>::new());
        let listener = Listener {
            channel: format!("{CHANNEL}{id}"),
            on_event: {
                let client = Arc::clone(&itself);
                Box::new(move |event| {
                    if let Some(client) = client.get().and_then(Weak::upgrade) {
                        client.on_event(&event);
                    }
                })
            },
        };
        let limits = (config.connect_timeout, config.response_timeout);
        let node = Node::new(&config.address, limits, Arc::clone(&clock), Some(listener))?;
        let may_pause = config.pause == Pause::Auto;
        let client = Arc::new(Self {
            id,
            waiters: Arc::new(WaiterTable::new(clock)),
            renewals: Batches::of_at_most(renewals::BATCH),
            hand_overs: Arc::new(HandOvers::new(Arc::clone(&node), may_pause)),
            node,
            grace: config.grace,
            may_pause,
            checked: OnceLock::new(),
            limit: config.response_timeout + config.connect_timeout,
        });
        let _ = itself.set(Arc::downgrade(&client));
        Ok(client)
    }

    fn on_event(&self, event: &NodeEvent<'_>) {
        match event {
            // Messages published while the connection was down are lost.
            NodeEvent::Up => {
                self.ask_for(&self.waiters.missed_messages());
                self.check_again();
            }
            NodeEvent::Message { payload } => match self.waiters.on_message(payload) {
                Some(PushEffect::Done) => {}
                Some(PushEffect::HandedToNobody(owner, lock)) => {
                    if let Ok(key) = LockKey::decode(lock) {
                        self.hand_overs.decline(Keys::new(&key), owner);
                    }
                }
                None => {
                    let text = String::from_utf8_lossy(&payload[..payload.len().min(64)]);
                    tracing::debug!(target: "distlock", %text, "ignoring an unknown message on our channel");
                }
            },
        }
    }

    /// Another server may be at the address by now, or this one have other settings. What is held goes on; but people
    /// are to know.
    fn check_again(&self) {
        let Some(eviction) = self.checked.get().copied() else { return };
        let (node, limit) = (Arc::clone(&self.node), self.limit);
        self.node.spawn(async move {
            // Where this may not be asked, the first connection has said so.
            let Ok(info) = node.command(&redis::cmd("INFO"), limit).await else { return };
            if let Err(error) = super::judge(&info, node.endpoint(), eviction) {
                tracing::warn!(target: "distlock", %error, "connected again to a server that cannot keep locks");
            }
        });
    }

    /// Asks the server about one entry, together with all that is asked at this moment. The request
    /// is always sent after this call, so what it promises counts from this call at least.
    pub(super) async fn renew(&self, item: RenewalItem) -> Result<RenewalAnswer> {
        let (node, id) = (Arc::clone(&self.node), Arc::clone(&self.id));
        let send = move |batch| renewals::send(Arc::clone(&node), Arc::clone(&id), batch);
        let limit = item.limit;
        self.node.within(limit, self.renewals.ask(item, send)).await?
    }

    /// Our client was taken for dead: its waiters for this lock may have lost their places.
    pub(super) fn ask_for_places(&self, lock: &str) {
        self.ask_for(&self.waiters.waiting_for(lock));
    }

    /// Asks for the places of all these at once, and lets only those try for which that is worthwhile:
    /// thousands of tries at the same moment would keep a server busy for seconds.
    fn ask_for(&self, waiting: &[Arc<Slot<PushedWaiter>>]) {
        for batch in waiting.chunks(renewals::BATCH) {
            let (node, id) = (Arc::clone(&self.node), Arc::clone(&self.id));
            let batch = batch.to_vec();
            self.node.spawn(async move {
                let items: Vec<_> = batch.iter().map(|slot| &slot.data().place).collect();
                // Without an answer their renewals will tell, unless a new connection asks before.
                let answers = renewals::answers(&node, &id, &items).await.unwrap_or_default();
                for (slot, answer) in batch.iter().zip(answers) {
                    if !matches!(answer, Ok(RenewalAnswer::Place(_))) {
                        try_now(slot);
                    }
                }
            });
        }
    }

    /// A key of this client, of this kind, that is there only while it is checked what this client may do.
    pub(super) fn probe_key(&self, kind: &str) -> String {
        format!("{{distlock\u{1e}probe:{}}}:{kind}", self.id)
    }

    /// The channel on which this client receives pushes.
    pub(super) fn channel(&self) -> String {
        format!("{CHANNEL}{}", self.id)
    }
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClient").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Drop for ServerClient {
    fn drop(&mut self) {
        self.node.close();
    }
}
