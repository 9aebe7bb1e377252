//! The state shared by all claims of a backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Clock;

use crate::leases::Leases;
use crate::leases::renewals::Renewals;
use crate::queue::fences::Base;
use crate::watch::handover::LocalHandover;
use crate::watch::task::ClientWatches;
use crate::wire::Cluster;

/// The locks of one folder of one cluster.
pub(crate) struct SharedState {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) watches: Arc<ClientWatches>,
    pub(crate) handover: Arc<LocalHandover>,
    /// The prefix of all lock names.
    pub(crate) folder: String,
    /// The base of the fences; `None` if they count from 0.
    pub(crate) base: Option<Base>,
    /// The timeout of one request.
    pub(crate) limit: Duration,
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl SharedState {
    /// The locks in `folder`. Fences are bare revisions with `revision_fences`, or count from a
    /// base.
    pub(crate) fn new(
        cluster: Cluster,
        folder: String,
        revision_fences: bool,
        limit: Duration,
    ) -> Self {
        let cluster = Arc::new(cluster);
        let renewals = Arc::new(Renewals::new(Arc::clone(&cluster)));
        let leases = Leases::new(Arc::clone(&cluster), Arc::clone(&renewals), limit);
        let leases = Arc::new(leases);
        let watches = Arc::new(ClientWatches::new(Arc::clone(&cluster)));
        let handover = Arc::new(LocalHandover::default());
        let base = (!revision_fences).then(|| Base::new(&folder));
        Self { cluster, renewals, leases, watches, handover, folder, base, limit }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &**self.cluster.clock()
    }
}
