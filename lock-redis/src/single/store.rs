//! What all claims of one client share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, OsRng, Result, Rng, SystemClock};

use super::config::{Pause, RedisConfig};
use super::hand_over::HandOvers;
use super::renewals::Renewals;
use super::scripts::CHANNEL;
use super::wake::Wakers;
use crate::names::Keys;
use crate::node::{Listener, Node, NodeOptions};

/// One client of one server.
pub(super) struct Store {
    pub(super) node: Node,
    /// Marks our waiters and names our channel.
    pub(super) client: Arc<str>,
    pub(super) wakers: Arc<Wakers>,
    pub(super) renewals: Renewals,
    hand_overs: Arc<HandOvers>,
    pub(super) grace: Duration,
    pub(super) may_pause: bool,
    /// The limit for a call that is made for no lock.
    pub(super) limit: Duration,
}

impl Store {
    /// Nothing is sent.
    pub(super) fn new(config: &RedisConfig) -> Result<Self> {
        let mut id = [0; 8];
        OsRng.fill(&mut id)?;
        let client: Arc<str> = format!("{:016x}", u64::from_be_bytes(id)).into();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let wakers = Arc::new(Wakers::default());
        let listener = Listener {
            channels: vec![format!("{CHANNEL}{client}")],
            on_event: {
                let (wakers, clock) = (Arc::clone(&wakers), Arc::clone(&clock));
                Box::new(move |event| wakers.on_event(&event, &*clock))
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
            wakers,
            renewals: Renewals::default(),
            hand_overs: Arc::default(),
            grace: config.grace,
            may_pause: config.pause == Pause::Auto,
            limit: config.response_timeout + config.connect_timeout,
        })
    }

    /// On which this client hears pushes.
    pub(super) fn channel(&self) -> String {
        format!("{CHANNEL}{}", self.client)
    }

    /// Looks again after `ms`, if there are any, whether a lock that was handed over was taken up.
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
