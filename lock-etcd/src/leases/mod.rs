//! Leases granted in advance, so that acquiring a lock takes one round trip.
//!
//! Each claim has its own lease, or a clean-up could not tell its entry from others: revoking the
//! lease removes the entry, and a request that arrives later finds no lease. A lease returns to the
//! pool only if it is certain that no key is bound to it, now or later.

pub(crate) mod renewals;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lock_core::ClockInstant;
use lock_kit::tasks::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::error::{EtcdFailure, FailureClass, unexpected};
use crate::leases::renewals::Renewals;
use crate::rules;
use crate::wire::Cluster;
use crate::wire::Era;
use crate::wire::messages::{EtcdRequest, KeepAliveAnswer};

/// The most spare leases of one ttl.
const SPARE: usize = 64;
/// A ttl unused for this long needs no spare leases.
const IDLE: Duration = Duration::from_secs(120);

/// A lease as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EtcdLease {
    pub(crate) id: i64,
    /// The requested ttl, in seconds.
    asked: i64,
    /// The ttl that the server granted.
    ttl: Duration,
    /// When the grant or the last keep-alive was sent.
    counted_from: ClockInstant,
    /// When it was granted. After a restore it may have a key of then again.
    era: Era,
}

impl EtcdLease {
    /// A lease granted to another process. Its remaining time is known after its first keep-alive.
    pub(crate) fn taken_over(id: i64, ttl: Duration, now: ClockInstant) -> Self {
        let (asked, ttl) = (seconds(ttl), Duration::ZERO);
        Self { id, asked, ttl, counted_from: now, era: Era::FIRST }
    }

    /// How long after `now` the server keeps it, at least. If a request was sent after `now`, the
    /// time beyond the ttl is not counted on.
    pub(crate) fn left(&self, now: ClockInstant) -> Duration {
        (self.counted_from + self.ttl).since(now).min(self.ttl)
    }

    /// Notes a keep-alive; false if the server does not know the lease.
    pub(crate) fn renewed(&mut self, renewed: KeepAliveAnswer) -> bool {
        let Some(ttl) = renewed.ttl else { return false };
        (self.counted_from, self.ttl) = (renewed.sent, ttl);
        true
    }
}

/// Whole seconds, rounded up: the server must not end the lease before the promised time.
fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1)
}

/// The leases of a client.
#[derive(Debug)]
pub(crate) struct Leases {
    cluster: Arc<Cluster>,
    renewals: Arc<Renewals>,
    limit: Duration,
    state: Mutex<SparePools>,
    /// The shortest that the server grants.
    shortest: OnceLock<Duration>,
    /// Background requests. Each has its own timeout.
    background: Tasks,
}

#[derive(Debug, Default)]
struct SparePools {
    /// By requested ttl.
    pools: HashMap<i64, SparePool>,
    /// No more spare leases are kept.
    closed: bool,
}

/// The spare leases of one ttl.
#[derive(Debug, Default)]
struct SparePool {
    idle: Vec<EtcdLease>,
    used: Option<ClockInstant>,
    /// Notifies the task that tends the pool, while there is one.
    wanted: Weak<Notify>,
}

impl Leases {
    pub(crate) fn new(cluster: Arc<Cluster>, renewals: Arc<Renewals>, limit: Duration) -> Self {
        let (state, shortest, background) = Default::default();
        Self { cluster, renewals, limit, state, shortest, background }
    }

    /// A lease for one claim: a spare one, or a new one.
    pub(crate) async fn take(
        &self,
        ttl: Duration,
        limit: Duration,
    ) -> Result<EtcdLease, EtcdFailure> {
        let asked = seconds(ttl);
        if let Some(spare) = self.spare(asked) {
            return Ok(spare);
        }
        // A grant whose reply was lost is harmless: at worst a lease expires unused.
        match self.grant(asked, limit / 2).await {
            Err(failed) if failed.is_unknown() => self.grant(asked, limit / 2).await,
            answer => answer,
        }
    }

    /// A spare lease with at least two thirds of its time left.
    fn spare(&self, asked: i64) -> Option<EtcdLease> {
        let now = self.cluster.clock().now();
        let mut state = self.state.lock();
        let idle = &mut state.pools.get_mut(&asked)?.idle;
        idle.retain(|lease| self.is_spare(lease));
        let fresh = idle.iter().rposition(|lease| lease.left(now) >= lease.ttl * 2 / 3)?;
        Some(idle.remove(fresh))
    }

    /// Whether a lease without a key may be used again. If the store has gone back since it was
    /// granted, it may have the key of a lock that was released.
    fn is_spare(&self, lease: &EtcdLease) -> bool {
        rules::is_spare(lease.era, self.cluster.era())
    }

    async fn grant(&self, asked: i64, limit: Duration) -> Result<EtcdLease, EtcdFailure> {
        let (counted_from, era) = (self.cluster.clock().now(), self.cluster.era());
        let reply = self.cluster.ask(limit, EtcdRequest::Grant { seconds: asked }).await?;
        match reply.ttl {
            Some(ttl) if reply.lease > 0 => {
                Ok(EtcdLease { id: reply.lease, asked, ttl, counted_from, era })
            }
            _ => Err(unexpected("a request for a lease with none")),
        }
    }

    /// One lease of the pool is gone, so none is trusted. Those that still exist expire.
    pub(crate) fn forget_idle(&self) {
        self.state.lock().pools.values_mut().for_each(|pool| pool.idle.clear());
    }

    /// Finds out the shortest lease that the server grants.
    pub(crate) async fn ask_for_the_shortest(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<(), EtcdFailure> {
        let lease = self.grant(1, limit).await?;
        self.shortest.get_or_init(|| lease.ttl);
        self.discard(lease);
        Ok(())
    }

    /// The ttl that the server grants when asked for `ttl`.
    pub(crate) fn granted_for(&self, ttl: Duration) -> Duration {
        let asked = Duration::from_secs(seconds(ttl).unsigned_abs());
        self.shortest.get().map_or(asked, |shortest| asked.max(*shortest))
    }

    /// The ttl of a lease as granted; `None` if the server does not know it. Does not renew it.
    pub(crate) async fn ttl_of(
        &self,
        id: i64,
        limit: Duration,
    ) -> Result<Option<Duration>, EtcdFailure> {
        let reply = self.cluster.ask(limit, EtcdRequest::TimeToLive { lease: id }).await?;
        Ok(reply.granted)
    }

    /// Takes back a lease with no key bound to it. Also works outside a runtime.
    pub(crate) fn give_back(self: &Arc<Self>, lease: EtcdLease) {
        let is_kept = {
            let mut state = self.state.lock();
            let is_open = !state.closed;
            let idle = &mut state.pools.entry(lease.asked).or_default().idle;
            let is_kept = is_open && idle.len() < SPARE && self.is_spare(&lease);
            if is_kept {
                idle.push(lease);
            }
            is_kept
        };
        if is_kept {
            self.tend(lease.asked);
        } else {
            self.discard(lease);
        }
    }

    /// Has one lease of this ttl ready for the next claim.
    pub(crate) fn refill(self: &Arc<Self>, ttl: Duration) {
        self.tend(seconds(ttl));
    }

    /// Makes sure that a task tends the pool while it is used.
    fn tend(self: &Arc<Self>, asked: i64) {
        let wanted = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            let pool = state.pools.entry(asked).or_default();
            pool.used = Some(self.cluster.clock().now());
            if let Some(wanted) = pool.wanted.upgrade() {
                wanted.notify_one();
                return;
            }
            let wanted = Arc::new(Notify::new());
            pool.wanted = Arc::downgrade(&wanted);
            wanted
        };
        self.background.spawn(Arc::clone(self).tending(asked, wanted));
    }

    /// Keeps at least one spare lease in the pool, and all of them alive, until the pool has been
    /// idle for long.
    async fn tending(self: Arc<Self>, asked: i64, wanted: Arc<Notify>) {
        let pause = (Duration::from_secs(asked.unsigned_abs()) / 4).min(IDLE / 4);
        let mut ages = interval_at(Instant::now() + pause, pause);
        ages.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some(is_empty) = self.is_empty(asked) {
            // If none can be granted now, the next claim asks for its own.
            if is_empty && let Ok(lease) = self.grant(asked, self.limit).await {
                self.give_back(lease);
            }
            tokio::select! {
                () = wanted.notified() => {}
                _ = ages.tick() => {
                    if !self.renew_spares(asked).await {
                        return;
                    }
                }
            }
        }
    }

    /// Whether the pool has no lease; `None` if it was closed.
    fn is_empty(&self, asked: i64) -> Option<bool> {
        let state = self.state.lock();
        (!state.closed).then(|| state.pools.get(&asked).is_none_or(|pool| pool.idle.is_empty()))
    }

    /// Renews the leases of a pool. False if it has been idle for long: then all of them are given
    /// up.
    async fn renew_spares(self: &Arc<Self>, asked: i64) -> bool {
        let now = self.cluster.clock().now();
        let (idle, is_used) = {
            let mut state = self.state.lock();
            let Some(pool) = state.pools.get_mut(&asked) else { return false };
            pool.idle.retain(|lease| self.is_spare(lease));
            let is_used = pool.used.is_some_and(|used| now.since(used) <= IDLE);
            let idle = pool.idle.clone();
            if !is_used {
                state.pools.remove(&asked);
            }
            (idle, is_used)
        };
        if !is_used {
            idle.into_iter().for_each(|lease| self.discard(lease));
            return false;
        }
        let renewals = idle.into_iter().map(|lease| Arc::clone(self).renew_spare(lease));
        let mut renewals: JoinSet<_> = renewals.collect();
        // Tasks dropped because a runtime ended do not matter.
        while renewals.join_next().await.is_some() {}
        true
    }

    /// A renewal that fails is retried later; a lease that gets too old is not used.
    async fn renew_spare(self: Arc<Self>, lease: EtcdLease) {
        let Ok(renewed) = self.renewals.renew(lease.id, self.limit).await else { return };
        let mut state = self.state.lock();
        let Some(pool) = state.pools.get_mut(&lease.asked) else { return };
        // A claim may have taken it by now.
        let at = pool.idle.iter().position(|idle| idle.id == lease.id);
        if let Some(at) = at
            && !pool.idle[at].renewed(renewed)
        {
            pool.idle.remove(at);
        }
    }

    /// Gives up a lease, with any keys bound to it. If the request does not reach the server, the
    /// lease expires.
    pub(crate) fn discard(self: &Arc<Self>, lease: EtcdLease) {
        let leases = Arc::clone(self);
        self.background.spawn(async move {
            let _ = leases.revoke(lease.id, leases.limit).await;
        });
    }

    /// Revokes a lease and the keys bound to it; false if the server did not know it.
    pub(crate) async fn revoke(&self, id: i64, limit: Duration) -> Result<bool, EtcdFailure> {
        match self.cluster.ask(limit, EtcdRequest::Revoke { lease: id }).await {
            Ok(_) => Ok(true),
            Err(failed) if failed.why == FailureClass::LeaseGone => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Gives up all unused leases, including those still being granted.
    pub(crate) async fn close(&self) -> Result<(), EtcdFailure> {
        let pools: Vec<_> = {
            let mut state = self.state.lock();
            state.closed = true;
            state.pools.drain().map(|(_, pool)| pool).collect()
        };
        for wanted in pools.iter().filter_map(|pool| pool.wanted.upgrade()) {
            wanted.notify_one();
        }
        let (mut outcome, mut is_silent) = (Ok(()), false);
        for lease in pools.into_iter().flat_map(|pool| pool.idle) {
            if let Err(failed) = self.revoke(lease.id, self.limit).await {
                is_silent = failed.is_unknown();
                outcome = Err(failed);
                // The others expire anyway.
                break;
            }
        }
        // A lease granted from now on is given up at once, by another request. But where the store is
        // silent, or the runtime of its connection stands still, nothing is granted any more.
        if !is_silent {
            self.background.idle(self.limit * 3).await;
        }
        self.background.close(Duration::ZERO).await;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_seconds() {
        for (ms, s) in [(1, 1), (1000, 1), (1001, 2), (30_000, 30)] {
            assert_eq!(seconds(Duration::from_millis(ms)), s);
        }
    }

    #[test]
    fn validity_counts_from_the_sending() {
        let at = |s: u64| ClockInstant::from_nanos(s * 1_000_000_000);
        let mut lease = EtcdLease::taken_over(7, Duration::from_secs(10), at(5));
        assert_eq!(lease.left(at(5)), Duration::ZERO);
        let renewed = |ttl| KeepAliveAnswer { sent: at(6), ttl };
        assert!(!lease.renewed(renewed(None)));
        assert!(lease.renewed(renewed(Some(Duration::from_secs(10)))));
        assert_eq!(lease.left(at(9)), Duration::from_secs(7));
        assert_eq!(lease.left(at(17)), Duration::ZERO);
    }
}
