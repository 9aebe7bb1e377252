//! The state shared by all claims of a backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Clock;

use crate::cluster::Cluster;
use crate::fences::Base;
use crate::leases::Leases;
use crate::mutants;
use crate::neighbours::Neighbours;
use crate::renewals::Renewals;
use crate::rules::Rules;
use crate::watches::Watches;

/// The locks of one folder of one cluster.
pub(crate) struct Store {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) neighbours: Arc<Neighbours>,
    /// The prefix of all lock names.
    pub(crate) folder: String,
    /// The base of the fences; `None` if they count from 0.
    pub(crate) base: Option<Base>,
    pub(crate) rules: Rules,
    /// The timeout of one request.
    pub(crate) limit: Duration,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Store {
    /// The locks in `folder`. Fences are bare revisions with `revision_fences`, or count from a
    /// base.
    pub(crate) fn new(
        cluster: Cluster,
        folder: String,
        revision_fences: bool,
        limit: Duration,
    ) -> Self {
        let (cluster, rules) = (Arc::new(cluster), mutants::rules());
        let renewals = Arc::new(Renewals::new(Arc::clone(&cluster)));
        let leases = Arc::new(Leases::new(Arc::clone(&cluster), Arc::clone(&renewals), limit));
        let watches = Arc::new(Watches::new(Arc::clone(&cluster)));
        let neighbours = Arc::new(Neighbours::new(rules));
        let base = (!revision_fences).then(|| Base::new(&folder, rules));
        Self { cluster, renewals, leases, watches, neighbours, folder, base, rules, limit }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &**self.cluster.clock()
    }
}
