//! Renewing many leases by one statement that no locked row can stop, and one whose row is locked all the
//! time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::Result;
use tokio::sync::Semaphore;

use super::Postgres;
use super::statements::{GONE, RENEWED};
use crate::engine::driver::Turn;
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::limits::Limits;
use crate::engine::store::{Store, Want};
use crate::engine::value::{Query, Value, fence_or_zero, micros};

/// Renewals that wait for a row.
#[derive(Debug)]
pub(super) struct Waits {
    /// One at a time, since each has a connection meanwhile.
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
    store: &Store<Postgres>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let mut outcomes = renew_unlocked(store, dues, limit).await?;
    let waits = &store.dialect.waits;
    // Nobody waits for another answer, and one statement at a time waits for a row.
    if outcomes.iter().all(|outcome| *outcome == Outcome::Locked)
        && let Ok(_turn) = waits.turn.try_acquire()
    {
        // Each of them in its turn.
        let at = waits.number.fetch_add(1, Ordering::Relaxed) % dues.len();
        outcomes[at] = renew_waiting(store, &dues[at], limit).await?;
    }
    Ok(outcomes)
}

/// Passes over the rows that somebody else has locked.
async fn renew_unlocked(
    store: &Store<Postgres>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let make = || {
        let texts = |text: fn(&Entry) -> &str| {
            Value::Texts(dues.iter().map(|due| text(due.entry).to_owned()).collect())
        };
        Query::new(&store.dialect.statements.renew)
            .bind(texts(|entry| &entry.name))
            .bind(texts(|entry| &entry.owner.0))
            .bind(Value::Ints(dues.iter().map(|due| fence_or_zero(due.fence)).collect()))
            .bind(Value::Ints(dues.iter().map(|due| micros(due.entry.ttl)).collect()))
    };
    let reply = store.patiently(Turn::Keep, limit, make).await?;
    let mut outcomes = HashMap::with_capacity(reply.rows.len());
    for row in &reply.rows {
        let outcome = match row.int(1)? {
            RENEWED => Outcome::Renewed,
            GONE => Outcome::Gone,
            _ => Outcome::Locked,
        };
        outcomes.insert(row.text(0)?, outcome);
    }
    // One that is not answered for would be asked for again.
    let of = |due: &Due<'_>| outcomes.get(&*due.entry.name).copied().unwrap_or(Outcome::Locked);
    Ok(dues.iter().map(of).collect())
}

/// Queues for the row, for a short time. Where others lock it one after the other, none of the looks
/// that pass over locked rows might ever find it free.
async fn renew_waiting(store: &Store<Postgres>, due: &Due<'_>, limit: Duration) -> Result<Outcome> {
    let make = || {
        Query::new(&store.dialect.statements.renew_waiting)
            .bind(&*due.entry.name)
            .bind(&*due.entry.owner.0)
            .bind(fence_or_zero(due.fence))
            .bind(micros(due.entry.ttl))
    };
    let limits = Limits::once(store.now(), limit);
    let reply = store.execute(Want { turn: Turn::Keep, limits, owner: None }, make).await?;
    Ok(match reply {
        Some(reply) if reply.rows.is_empty() => Outcome::Gone,
        Some(_) => Outcome::Renewed,
        None => Outcome::Locked,
    })
}
