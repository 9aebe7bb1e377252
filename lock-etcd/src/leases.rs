//! Leases granted ahead, so that to acquire a lock costs one round trip.
//!
//! A claim has a lease of its own, or a clean-up could not tell its entry from others: revoking it
//! removes the entry, and what arrives later finds no lease. A lease comes back to the pool only if it
//! is certain that nothing is bound to it, now or later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::ClockInstant;
use tokio::sync::watch;

use crate::error::{Failed, Why, unexpected};
use crate::keepalive::KeepAlives;
use crate::mutants;
use crate::node::Node;

/// How many leases of one ttl are kept for later, at most.
const SPARE: usize = 64;
/// A lease that nobody has used for so long is given up.
const IDLE: Duration = Duration::from_secs(120);
/// The pause between two looks at the pool.
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

    pub(crate) fn kept(&mut self, sent: ClockInstant, ttl: Duration) {
        (self.counted_from, self.ttl) = (sent, ttl);
    }

    /// Whether it was granted or renewed so long ago that its next claim had better renew it.
    pub(crate) fn is_aged(&self, now: ClockInstant) -> bool {
        self.left(now) < self.ttl * 19 / 20
    }

    fn is_fresh(&self, now: ClockInstant) -> bool {
        self.left(now) >= self.ttl * 3 / 4
    }
}

/// Whole seconds, rounded up: the server must not end the lease before the promised time.
pub(crate) fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1)
}

#[derive(Debug)]
pub(crate) struct Leases {
    node: Arc<Node>,
    keeps: Arc<KeepAlives>,
    limit: Duration,
    state: Mutex<State>,
    /// The shortest that the server grants.
    shortest: OnceLock<Duration>,
    /// How many requests are under way in the background.
    background: watch::Sender<usize>,
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
    pub(crate) fn new(node: Arc<Node>, keeps: Arc<KeepAlives>, limit: Duration) -> Self {
        let background = watch::Sender::new(0);
        let (state, shortest) = (Mutex::default(), OnceLock::new());
        Self { node, keeps, limit, state, shortest, background }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease for one claim: one that was granted ahead, or a new one.
    pub(crate) async fn take(&self, ttl: Duration, limit: Duration) -> Result<Lease, Failed> {
        let (asked, now) = (seconds(ttl), self.node.clock().now());
        let found = {
            let mut state = self.state();
            let pool = state.pools.entry(asked).or_default();
            pool.used = Some(now);
            // One that is too old ends by itself.
            pool.idle.retain(|lease| lease.left(now) >= lease.ttl / 2);
            if mutants::on("shares_a_lease") { pool.idle.last().copied() } else { pool.idle.pop() }
        };
        match found {
            Some(lease) => Ok(lease),
            // A grant of which nothing was heard binds nothing: at worst a lease ends unused.
            None => match self.grant(asked, limit / 2).await {
                Err(failed) if failed.is_unknown() => self.grant(asked, limit / 2).await,
                answer => answer,
            },
        }
    }

    async fn grant(&self, asked: i64, limit: Duration) -> Result<Lease, Failed> {
        let counted_from = self.node.clock().now();
        let answer = self
            .node
            .call(limit, |mut client| async move { client.lease_grant(asked, None).await })
            .await?;
        let ttl = u64::try_from(answer.ttl()).unwrap_or(0);
        if answer.id() <= 0 || ttl == 0 {
            return Err(unexpected("a request for a lease with none"));
        }
        Ok(Lease { id: answer.id(), asked, ttl: Duration::from_secs(ttl), counted_from })
    }

    /// One lease of the pool is gone, so none is trusted. Those that are there all the same end by
    /// themselves.
    pub(crate) fn forget_idle(&self) {
        if mutants::on("keeps_its_pool") {
            return;
        }
        self.state().pools.values_mut().for_each(|pool| pool.idle.clear());
    }

    /// The shortest lease that the server grants.
    pub(crate) async fn shortest(self: &Arc<Self>, limit: Duration) -> Result<Duration, Failed> {
        let lease = self.grant(1, limit).await?;
        self.discard(lease);
        Ok(*self.shortest.get_or_init(|| lease.ttl))
    }

    /// What the server grants to those who ask for `ttl`.
    pub(crate) fn granted_for(&self, ttl: Duration) -> Duration {
        let asked = Duration::from_secs(seconds(ttl).unsigned_abs());
        self.shortest.get().map_or(asked, |shortest| asked.max(*shortest))
    }

    /// For how long a lease was granted; zero if it is not known. It is not renewed by this.
    pub(crate) async fn ttl_of(&self, id: i64, limit: Duration) -> Result<Duration, Failed> {
        let answer = self
            .node
            .call(limit, |mut client| async move { client.lease_time_to_live(id, None).await })
            .await?;
        Ok(Duration::from_secs(u64::try_from(answer.granted_ttl()).unwrap_or(0)))
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
        self.spawn(move |leases| async move {
            let coming = Coming { leases: &leases, asked };
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
        if mutants::on("shares_a_lease") {
            return;
        }
        let now = self.node.clock().now();
        if lease.is_fresh(now) {
            self.add(lease);
        } else if lease.left(now) > Duration::ZERO {
            self.refresh(lease);
        }
    }

    /// As [`give_back`](Self::give_back), without a request: for whoever may be outside of a runtime.
    pub(crate) fn put_back(self: &Arc<Self>, lease: Lease) {
        let fresh = lease.is_fresh(self.node.clock().now());
        if fresh && !mutants::on("shares_a_lease") && tokio::runtime::Handle::try_current().is_ok()
        {
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
            tokio::spawn(tend(Arc::clone(self)));
        }
    }

    /// Keeps a lease alive that nobody uses, and puts it into the pool.
    fn refresh(self: &Arc<Self>, mut lease: Lease) {
        self.spawn(move |leases| async move {
            if let Ok(kept) = leases.keeps.renew(lease.id, leases.limit).await
                && let Some(ttl) = kept.ttl
            {
                lease.kept(kept.sent, ttl);
                leases.add(lease);
            }
        });
    }

    /// Gives up a lease, with what may be bound to it. If the server does not hear it, the lease ends
    /// by itself.
    pub(crate) fn discard(self: &Arc<Self>, lease: Lease) {
        self.spawn(move |leases| async move {
            let _ = leases.revoke(lease.id, leases.limit).await;
        });
    }

    /// Makes a request in the background, which has a limit of its own.
    fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (underway, task) = (Underway::new(Arc::clone(self)), task(Arc::clone(self)));
        tokio::spawn(async move {
            let _underway = underway;
            task.await;
        });
    }

    /// Revokes a lease, and what is bound to it; false if the server did not know it (any more).
    pub(crate) async fn revoke(&self, id: i64, limit: Duration) -> Result<bool, Failed> {
        let answer =
            self.node.call(limit, |mut client| async move { client.lease_revoke(id).await }).await;
        match answer {
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
        // Each of them has a limit, and what it brings is given up at once.
        let mut background = self.background.subscribe();
        let _ = background.wait_for(|underway| *underway == 0).await;
        outcome
    }

    /// What is too old to be kept, and what is old enough to be refreshed; the pause until the next
    /// look, `None` if the pool is empty.
    fn sort_out(&self) -> (Vec<Lease>, Vec<Lease>, Option<Duration>) {
        let now = self.node.clock().now();
        let mut state = self.state();
        let (mut old, mut stale) = (Vec::new(), Vec::new());
        for pool in state.pools.values_mut() {
            let unused = pool.used.is_none_or(|used| now.since(used) > IDLE);
            let out = if unused { &mut old } else { &mut stale };
            pool.idle.retain(|lease| {
                let stays = !unused && lease.is_fresh(now);
                if !stays {
                    out.push(*lease);
                }
                stays
            });
        }
        state
            .pools
            .retain(|_, pool| pool.coming > 0 || pool.used.is_some_and(|u| now.since(u) <= IDLE));
        let shortest = state.pools.keys().min().copied();
        if shortest.is_none() {
            state.tended = false;
        }
        let pause = shortest.map(|asked| {
            let ttl = Duration::from_secs(u64::try_from(asked).unwrap_or(1));
            (ttl / 12).clamp(TICK.0, TICK.1)
        });
        (old, stale, pause)
    }
}

/// A request that is under way in the background.
struct Underway(Arc<Leases>);

impl Underway {
    fn new(leases: Arc<Leases>) -> Self {
        leases.background.send_modify(|underway| *underway += 1);
        Self(leases)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.background.send_modify(|underway| *underway -= 1);
    }
}

/// A grant that is under way to fill the pool.
struct Coming<'a> {
    leases: &'a Leases,
    asked: i64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.leases.state().pools.get_mut(&self.asked) {
            pool.coming = pool.coming.saturating_sub(1);
        }
    }
}

/// Ends the tending, in whatever way its task ends.
struct Tended<'a>(Option<&'a Leases>);

impl Drop for Tended<'_> {
    fn drop(&mut self) {
        if let Some(leases) = self.0 {
            leases.state().tended = false;
        }
    }
}

/// Keeps the leases of the pool alive, until there are none.
async fn tend(leases: Arc<Leases>) {
    let mut tended = Tended(Some(&leases));
    loop {
        let (old, stale, pause) = leases.sort_out();
        old.into_iter().for_each(|lease| leases.discard(lease));
        stale.into_iter().for_each(|lease| leases.refresh(lease));
        let Some(pause) = pause else {
            // It is said already, under the lock.
            tended.0 = None;
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = leases.node.closed() => return,
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
        lease.kept(at(6), Duration::from_secs(10));
        assert_eq!(lease.left(at(9)), Duration::from_secs(7));
        assert!(!lease.is_fresh(at(9)) && lease.is_fresh(at(8)));
        assert_eq!(lease.left(at(17)), Duration::ZERO);
    }
}
