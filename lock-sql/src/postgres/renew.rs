//! Renewing many leases by one statement that skips locked rows, and single leases whose row is
//! always locked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::Result;
use tokio::sync::Semaphore;

use super::server::PostgresServer;
use super::statements::{GONE, RENEWED};
use crate::engine::entry::{Due, Outcome};
use crate::engine::executor::Executor;
use crate::engine::links::Turn;
use crate::engine::statement::Values;
use crate::engine::value::Value;

/// Renewals that wait for a row.
#[derive(Debug)]
pub(super) struct Waits {
    /// One at a time, since each occupies a connection.
    turn: Semaphore,
    /// How many there were.
    number: AtomicUsize,
}

impl Default for Waits {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), number: AtomicUsize::new(0) }
    }
}

pub(super) async fn renew(
    waits: &Waits,
    executor: &Executor<PostgresServer>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let mut outcomes = renew_unlocked(executor, dues, limit).await?;
    // No caller waits for another outcome, and one statement at a time waits for a row.
    if outcomes.iter().all(|outcome| *outcome == Outcome::Locked)
        && let Ok(_turn) = waits.turn.try_acquire()
    {
        // Each of them in turn.
        let at = waits.number.fetch_add(1, Ordering::Relaxed) % dues.len();
        outcomes[at] = renew_waiting(executor, &dues[at], limit).await?;
    }
    Ok(outcomes)
}

/// Skips rows that another client has locked.
async fn renew_unlocked(
    executor: &Executor<PostgresServer>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let list = |value: fn(&Due<'_>) -> Value| dues.iter().map(value).collect::<Vec<_>>();
    let values = Values::default()
        .with("names", list(|due| (&*due.entry.name).into()))
        .with("owners", list(|due| (&*due.entry.owner.0).into()))
        .with("fences", list(|due| due.fence.into()))
        .with("ttls", list(|due| due.entry.ttl.into()));
    let renew = &executor.own().renew;
    let reply = executor.patiently(Turn::Keep, limit, renew, &values).await?;
    let mut outcomes = HashMap::with_capacity(reply.rows.len());
    for row in &reply.rows {
        let outcome = match row.int(1)? {
            RENEWED => Outcome::Renewed,
            GONE => Outcome::Gone,
            _ => Outcome::Locked,
        };
        outcomes.insert(row.text(0)?, outcome);
    }
    // A lease missing from the reply is retried.
    let of = |due: &Due<'_>| outcomes.get(&*due.entry.name).copied().unwrap_or(Outcome::Locked);
    Ok(dues.iter().map(of).collect())
}

/// Queues for the row, for a short time. If other clients lock it one after the other, statements
/// that skip locked rows might never find it free.
async fn renew_waiting(
    executor: &Executor<PostgresServer>,
    due: &Due<'_>,
    limit: Duration,
) -> Result<Outcome> {
    let want = executor.want(Turn::Keep, limit).once();
    let values = due.entry.values(due.fence);
    let reply = executor.execute(want, &executor.own().renew_waiting, &values).await?;
    Ok(match reply {
        Some(reply) if reply.rows.is_empty() => Outcome::Gone,
        Some(_) => Outcome::Renewed,
        None => Outcome::Locked,
    })
}
