//! Renewing many leases by one statement that no locked row can stop, and one whose row is locked all the
//! time.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::Result;

use super::inner::{Inner, Want, fence_or_zero, micros};
use super::pool::Turn;
use super::value::Value;
use crate::engine::operations::{Due, Entry, Outcome};
use crate::statements::postgres::{GONE, RENEWED};

impl Inner {
    /// Passes over the rows that somebody else has locked.
    pub(super) async fn renew_unlocked(
        &self,
        dues: &[Due<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>> {
        let texts = |text: fn(&Entry) -> &str| {
            Value::Texts(dues.iter().map(|due| text(due.entry).to_owned()).collect())
        };
        let values = [
            texts(|entry| &entry.name),
            texts(|entry| &entry.owner.0),
            Value::Ints(dues.iter().map(|due| fence_or_zero(due.fence)).collect()),
            Value::Ints(dues.iter().map(|due| micros(due.entry.ttl)).collect()),
        ];
        let rows = self.keep(limit, &self.statements.renew, &values).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let name: String = self.get(row, 0)?;
            let what = match self.get(row, 1)? {
                RENEWED => Outcome::Renewed,
                GONE => Outcome::Gone,
                _ => Outcome::Locked,
            };
            found.insert(name, what);
        }
        // One that is not answered for would be asked for again.
        let answer = |due: &Due<'_>| found.get(&due.entry.name).copied().unwrap_or(Outcome::Locked);
        Ok(dues.iter().map(answer).collect())
    }

    /// Queues for the row, for a short time. Where others lock it one after the other, none of the looks
    /// that pass over locked rows might ever find it free.
    pub(super) async fn renew_waiting(&self, due: &Due<'_>, limit: Duration) -> Result<Outcome> {
        let values = [
            Value::from(&*due.entry.name),
            Value::from(&*due.entry.owner.0),
            Value::from(fence_or_zero(due.fence)),
            Value::from(micros(due.entry.ttl)),
        ];
        let want = Want { patience: Duration::ZERO, ..Want::new(Turn::Keep, limit) };
        let answer = self.execute(want, &self.statements.renew_waiting, &values).await?;
        Ok(match answer {
            Some(answer) if answer.rows.is_empty() => Outcome::Gone,
            Some(_) => Outcome::Renewed,
            None => Outcome::Locked,
        })
    }

    /// Each of `number` in its turn.
    pub(super) fn next_of(&self, number: usize) -> usize {
        self.waited.fetch_add(1, Ordering::Relaxed) % number
    }
}
