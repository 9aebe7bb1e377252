//! Leases granted ahead, so that to acquire a lock costs one round trip.
//!
//! A claim has a lease of its own, or a clean-up could not tell its entry from others: revoking it
//! removes the entry, and what arrives later finds no lease. A lease comes back to the pool only if it
//! is certain that nothing is bound to it, now or later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::ClockInstant;
use lock_core::kit::tasks::Tasks;

use crate::cluster::Cluster;
use crate::error::{Failed, Why, unexpected};
use crate::renewals::Renewals;
use crate::wire::{Renewed, Request};

/// How many leases of one ttl are kept for later, at most.
const SPARE: usize = 64;
/// A ttl that nobody has used for so long needs no spare leases.
const IDLE: Duration = Duration::from_secs(120);
/// The limits of the pause between two looks at the pool, a twelfth of the ttl.
const TICK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A lease as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// What was asked for, in seconds.
    asked: i64,
    /// What the server keeps.
    ttl: Duration,
    /// When the grant or the last keep-alive was sent.
    counted_from: ClockInstant,
}

impl Lease {
    /// A lease that another process was granted. How long it lasts shows at its first keep-alive.
    pub(crate) fn taken_over(id: i64, ttl: Duration, now: ClockInstant) -> Self {
        Self { id, asked: seconds(ttl), ttl: Duration::ZERO, counted_from: now }
    }

    /// How long after `now` the server keeps it, at least. A request that was sent after `now` promises
    /// more, which nobody counts on.
    pub(crate) fn left(&self, now: ClockInstant) -> Duration {
        (self.counted_from + self.ttl).since(now).min(self.ttl)
    }

    /// Notes a keep-alive; false if the server does not know the lease.
    pub(crate) fn renewed(&mut self, renewed: Renewed) -> bool {
        let Some(ttl) = renewed.ttl else { return false };
        (self.counted_from, self.ttl) = (renewed.sent, ttl);
        true
    }

    /// Whether a claim may begin with it.
    fn is_fresh(&self, now: ClockInstant) -> bool {
        self.left(now) >= self.ttl / 2
    }

    /// Whether a spare lease is to be renewed.
    fn is_due(&self, now: ClockInstant) -> bool {
        self.left(now) < self.ttl * 3 / 4
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
    state: Mutex<State>,
    /// The shortest that the server grants.
    shortest: OnceLock<Duration>,
    /// The requests for which nobody waits. Each has a limit of its own.
    background: Tasks,
}

#[derive(Debug, Default)]
struct State {
    /// By what was asked for.
    pools: HashMap<i64, Pool>,
    tended: bool,
    /// Nothing is kept for later any more.
    closed: bool,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Lease>,
    /// Grants that are under way to fill the pool.
    coming: usize,
    used: Option<ClockInstant>,
}

impl Leases {
    pub(crate) fn new(cluster: Arc<Cluster>, renewals: Arc<Renewals>, limit: Duration) -> Self {
        let (state, shortest, background) = Default::default();
        Self { cluster, renewals, limit, state, shortest, background }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease for one claim: one that was granted ahead, or a new one.
    pub(crate) async fn take(&self, ttl: Duration, limit: Duration) -> Result<Lease, Failed> {
        let (asked, now) = (seconds(ttl), self.cluster.clock().now());
        let spare = {
            let mut state = self.state();
            let pool = state.pools.entry(asked).or_default();
            pool.used = Some(now);
            let fresh = pool.idle.iter().rposition(|lease| lease.is_fresh(now));
            fresh.map(|at| pool.idle.remove(at))
        };
        match spare {
            Some(lease) => Ok(lease),
            // A grant of which nothing was heard binds nothing: at worst a lease ends unused.
            None => match self.grant(asked, limit / 2).await {
                Err(failed) if failed.is_unknown() => self.grant(asked, limit / 2).await,
                answer => answer,
            },
        }
    }

    async fn grant(&self, asked: i64, limit: Duration) -> Result<Lease, Failed> {
        let counted_from = self.cluster.clock().now();
        let reply = self.cluster.ask(limit, Request::Grant { seconds: asked }).await?;
        match reply.ttl {
            Some(ttl) if reply.lease > 0 => Ok(Lease { id: reply.lease, asked, ttl, counted_from }),
            _ => Err(unexpected("a request for a lease with none")),
        }
    }

    /// One lease of the pool is gone, so none is trusted. Those that are there all the same end by
    /// themselves.
    pub(crate) fn forget_idle(&self) {
        self.state().pools.values_mut().for_each(|pool| pool.idle.clear());
    }

    /// The shortest lease that the server grants.
    pub(crate) async fn shortest(self: &Arc<Self>, limit: Duration) -> Result<Duration, Failed> {
        let lease = self.grant(1, limit).await?;
        self.discard(lease);
        Ok(*self.shortest.get_or_init(|| lease.ttl))
    }

    /// What the server grants where `ttl` is asked for.
    pub(crate) fn granted_for(&self, ttl: Duration) -> Duration {
        let asked = Duration::from_secs(seconds(ttl).unsigned_abs());
        self.shortest.get().map_or(asked, |shortest| asked.max(*shortest))
    }

    /// For how long a lease was granted; zero if it is not known. It is not renewed by this.
    pub(crate) async fn ttl_of(&self, id: i64, limit: Duration) -> Result<Duration, Failed> {
        let reply = self.cluster.ask(limit, Request::TimeToLive { lease: id }).await?;
        Ok(reply.granted)
    }

    /// Has one lease of this ttl ready for the next claim.
    pub(crate) fn refill(self: &Arc<Self>, ttl: Duration) {
        let asked = seconds(ttl);
        {
            let mut state = self.state();
            if state.closed {
                return;
            }
            let pool = state.pools.entry(asked).or_default();
            if !pool.idle.is_empty() || pool.coming > 0 {
                return;
            }
            pool.coming += 1;
        }
        let coming = Coming { leases: Arc::clone(self), asked };
        self.background.spawn(async move {
            let leases = Arc::clone(&coming.leases);
            let granted = leases.grant(asked, leases.limit).await;
            drop(coming);
            // If none is to be had now, the next claim asks by itself.
            if let Ok(lease) = granted {
                leases.add(lease);
            }
        });
    }

    /// Takes back a lease to which nothing is bound.
    pub(crate) fn give_back(self: &Arc<Self>, lease: Lease) {
        if lease.is_due(self.cluster.clock().now()) {
            self.refresh(lease);
        } else {
            self.add(lease);
        }
    }

    /// As [`give_back`](Self::give_back), without a request: for callers that may be outside of a runtime.
    pub(crate) fn put_back(self: &Arc<Self>, lease: Lease) {
        let is_due = lease.is_due(self.cluster.clock().now());
        if !is_due && tokio::runtime::Handle::try_current().is_ok() {
            self.add(lease);
        }
    }

    fn add(self: &Arc<Self>, lease: Lease) {
        let (unwanted, start_task) = {
            let mut state = self.state();
            let closed = state.closed;
            let idle = &mut state.pools.entry(lease.asked).or_default().idle;
            let unwanted = closed || idle.len() >= SPARE;
            if !unwanted {
                idle.push(lease);
            }
            (unwanted, !unwanted && !std::mem::replace(&mut state.tended, true))
        };
        if unwanted {
            self.discard(lease);
        }
        if start_task {
            tokio::spawn(tend(Tended { leases: Arc::clone(self), is_over: false }));
        }
    }

    /// Keeps a lease alive that nobody uses, and puts it into the pool.
    fn refresh(self: &Arc<Self>, mut lease: Lease) {
        let leases = Arc::clone(self);
        self.background.spawn(async move {
            match leases.renewals.renew(lease.id, leases.limit).await {
                Ok(renewed) if lease.renewed(renewed) => leases.add(lease),
                // It is tried again for as long as the lease lasts.
                Err(_) if lease.left(leases.cluster.clock().now()) > Duration::ZERO => {
                    leases.add(lease);
                }
                _ => {}
            }
        });
    }

    /// Gives up a lease, with what may be bound to it. If the server does not hear it, the lease ends
    /// by itself.
    pub(crate) fn discard(self: &Arc<Self>, lease: Lease) {
        let leases = Arc::clone(self);
        self.background.spawn(async move {
            let _ = leases.revoke(lease.id, leases.limit).await;
        });
    }

    /// Revokes a lease, and what is bound to it; false if the server did not know it (any more).
    pub(crate) async fn revoke(&self, id: i64, limit: Duration) -> Result<bool, Failed> {
        match self.cluster.ask(limit, Request::Revoke { lease: id }).await {
            Ok(_) => Ok(true),
            Err(failed) if failed.why == Why::LeaseGone => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Gives up all leases that nobody uses, also those that are still coming.
    pub(crate) async fn close(&self) -> Result<(), Failed> {
        let idle: Vec<_> = {
            let mut state = self.state();
            state.closed = true;
            state.pools.drain().flat_map(|(_, pool)| pool.idle).collect()
        };
        let mut outcome = Ok(());
        for lease in idle {
            if let Err(failed) = self.revoke(lease.id, self.limit).await {
                outcome = Err(failed);
                // The others end by themselves, too.
                break;
            }
        }
        // What comes now is given up at once, by another request.
        self.background.idle(self.limit * 3).await;
        self.background.close(Duration::ZERO).await;
        outcome
    }

    /// What nobody needs any more, and what is to be renewed; the pause until the next look, `None` if
    /// the pool is empty.
    fn sort_out(&self) -> (Vec<Lease>, Vec<Lease>, Option<Duration>) {
        let now = self.cluster.clock().now();
        let mut state = self.state();
        let (mut unused, mut due) = (Vec::new(), Vec::new());
        state.pools.retain(|_, pool| {
            if pool.used.is_none_or(|used| now.since(used) > IDLE) {
                unused.append(&mut pool.idle);
                return pool.coming > 0;
            }
            due.extend(pool.idle.extract_if(.., |lease| lease.is_due(now)));
            true
        });
        let shortest = state.pools.keys().min().copied();
        state.tended = shortest.is_some();
        let pause = shortest.map(|asked| {
            let ttl = Duration::from_secs(asked.unsigned_abs());
            (ttl / 12).clamp(TICK.0, TICK.1)
        });
        (unused, due, pause)
    }
}

/// A grant that is under way to fill the pool.
struct Coming {
    leases: Arc<Leases>,
    asked: i64,
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(pool) = self.leases.state().pools.get_mut(&self.asked) {
            pool.coming = pool.coming.saturating_sub(1);
        }
    }
}

/// The task that keeps the pool alive. It ends the tending in whatever way it ends.
struct Tended {
    leases: Arc<Leases>,
    /// It was said under the lock that nobody tends.
    is_over: bool,
}

impl Drop for Tended {
    fn drop(&mut self) {
        if !self.is_over {
            self.leases.state().tended = false;
        }
    }
}

/// Keeps the leases of the pool alive, until there are none.
async fn tend(mut tended: Tended) {
    let leases = Arc::clone(&tended.leases);
    loop {
        let (unused, due, pause) = leases.sort_out();
        unused.into_iter().for_each(|lease| leases.discard(lease));
        due.into_iter().for_each(|lease| leases.refresh(lease));
        let Some(pause) = pause else {
            tended.is_over = true;
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = leases.cluster.closed() => return,
        }
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
        let mut lease = Lease::taken_over(7, Duration::from_secs(10), at(5));
        assert_eq!(lease.left(at(5)), Duration::ZERO);
        let renewed = |ttl| Renewed { sent: at(6), ttl };
        assert!(!lease.renewed(renewed(None)));
        assert!(lease.renewed(renewed(Some(Duration::from_secs(10)))));
        assert_eq!(lease.left(at(9)), Duration::from_secs(7));
        assert!(lease.is_due(at(9)) && !lease.is_due(at(8)));
        assert!(!lease.is_fresh(at(12)) && lease.is_fresh(at(11)));
        assert_eq!(lease.left(at(17)), Duration::ZERO);
    }
}
