//! State shared by all claims of one client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, OsRng, Result, Rng, SystemClock};

use super::config::{Pause, RedisConfig};
use super::hand_over::HandOvers;
use super::renewals::Renewals;
use super::scripts::CHANNEL;
use super::wake::Waiters;
use crate::names::Keys;
use crate::node::{Listener, Node, NodeOptions};

/// One client of one server.
pub(super) struct Store {
    pub(super) node: Node,
    /// Marks our waiters and names our channel.
    pub(super) client: Arc<str>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) renewals: Renewals,
    hand_overs: Arc<HandOvers>,
    pub(super) grace: Duration,
    pub(super) may_pause: bool,
    /// The limit for a call that does not belong to a lock.
    pub(super) limit: Duration,
}

impl Store {
    /// Nothing is sent.
    pub(super) fn new(config: &RedisConfig) -> Result<Self> {
        let mut id = [0; 8];
        OsRng.fill(&mut id)?;
        let client: Arc<str> = format!("{:016x}", u64::from_be_bytes(id)).into();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let waiters = Arc::new(Waiters::default());
        let listener = Listener {
            channels: vec![format!("{CHANNEL}{client}")],
            on_event: {
                let (waiters, clock) = (Arc::clone(&waiters), Arc::clone(&clock));
                Box::new(move |event| waiters.on_event(&event, &*clock))
            },
        };
        let options = NodeOptions {
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            clock,
        };
        Ok(Self {
            node: Node::new(&config.client, options, Some(listener))?,
            client,
            waiters,
            renewals: Renewals::default(),
            hand_overs: Arc::default(),
            grace: config.grace,
            may_pause: config.pause == Pause::Auto,
            limit: config.response_timeout + config.connect_timeout,
        })
    }

    /// The channel on which this client receives pushes.
    pub(super) fn channel(&self) -> String {
        format!("{CHANNEL}{}", self.client)
    }

    /// Checks after `ms`, unless negative, whether a lock that was handed over was confirmed.
    pub(super) fn look_after(&self, keys: &Keys, ms: i64) {
        if let Ok(ms) = u64::try_from(ms) {
            let pause = Duration::from_millis(ms);
            self.hand_overs.look_after(&self.node, keys, pause, self.may_pause);
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.node.close();
    }
}
