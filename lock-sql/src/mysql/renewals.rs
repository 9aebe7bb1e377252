//! Renewing many leases by few statements that skip locked rows.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lock_core::{FencingToken, Result};

use crate::engine::store::SqlStore;
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, OwnRow, RenewalOutcome};
use crate::engine::wire::connections::{StatementClass, StatementLimits};
use crate::engine::wire::driver::SqlDriver as _;
use crate::engine::wire::statement::{SqlValue, Values};
use crate::mysql::server::MySqlServer;

/// One statement for the leases of each length, and a second one if it has not renewed them all, to see which.
///
/// The statement [reads and updates](StatementName::RenewUnlocked). An update alone would wait for the first locked
/// row for a second, the shortest lock wait there is, keep the others locked all the while, and then undo what it has
/// done to them. Two statements in one transaction would keep the rows locked from one message to the next, and for
/// hours if the client vanishes in between: until the server closes its connection.
pub(super) async fn renew_many(
    store: &SqlStore<MySqlServer>,
    dues: &[DueRenewal<'_>],
    limit: Duration,
) -> Result<Vec<RenewalOutcome>> {
    let limits = store.limits(StatementClass::Keep, limit).once();
    // Without its token the key of a hold is not known.
    let mut found = vec![RenewalOutcome::Doubtful; dues.len()];
    let mut lengths: BTreeMap<Duration, Vec<(usize, HoldKey<'_>)>> = BTreeMap::new();
    for (at, due) in dues.iter().enumerate() {
        if let Some(fence) = due.fence {
            let hold = HoldKey::of(due.entry, fence);
            lengths.entry(due.entry.ttl).or_default().push((at, hold));
        }
    }
    for (ttl, group) in lengths {
        let (places, holds): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        for (at, outcome) in places.into_iter().zip(renew_group(store, limits, ttl, &holds).await?)
        {
            found[at] = outcome;
        }
    }
    Ok(found)
}

/// Renews leases of one length: one answer for each.
async fn renew_group(
    store: &SqlStore<MySqlServer>,
    limits: StatementLimits,
    ttl: Duration,
    holds: &[HoldKey<'_>],
) -> Result<Vec<RenewalOutcome>> {
    let (server, all) = (&store.dialect, |outcome| Ok(vec![outcome; holds.len()]));
    let names: Vec<_> = holds.iter().map(|hold| SqlValue::from(hold.name)).collect();
    let keys: Vec<_> = holds.iter().map(|hold| SqlValue::from(&*hold.key)).collect();
    let values = Values::default().with("names", names).with("keys", keys).with("ttl", ttl);
    let renew = server.table.sized(StatementName::RenewUnlocked, holds.len());
    let Some(reply) = store.execute(limits, renew, &values).await? else {
        return all(RenewalOutcome::Locked);
    };
    // The count never exceeds the number of rows, whether the server counts rows found or
    // rows changed. So a full count leaves no doubt.
    if usize::try_from(reply.affected) == Ok(holds.len()) {
        return all(RenewalOutcome::Renewed);
    }
    let affected = reply.affected;
    let end = reply.rows.first().map(|row| server.outcome_number(row)).transpose()?;
    let values = values.with("end", end.unwrap_or(i64::MAX));
    let read = server.table.sized(StatementName::ReadRenewed, holds.len());
    let Some(reply) = store.execute(limits, read, &values).await? else {
        return all(RenewalOutcome::Locked);
    };
    let mut present = HashMap::with_capacity(reply.rows.len());
    for row in &reply.rows {
        present.insert(row.value(0).as_bytes(), (row.value(1).as_bytes(), row.int(2)?));
    }
    let shown = |hold: &HoldKey<'_>| match present.get(hold.name.as_bytes()) {
        Some((key, state)) if *key == hold.key.as_bytes() => *state,
        _ => 0,
    };
    let renewed = holds.iter().filter(|hold| shown(hold) == 2).count();
    // A read from a replica that lags behind does not tell which rows are locked.
    let is_present = usize::try_from(affected).is_ok_and(|affected| affected <= renewed);
    let outcome = |hold: &HoldKey<'_>| match shown(hold) {
        2 => RenewalOutcome::Renewed,
        1 if is_present => RenewalOutcome::Locked,
        // A read is no proof of a loss; and a statement that finds no row waits for no lock.
        _ => RenewalOutcome::Doubtful,
    };
    Ok(holds.iter().map(outcome).collect())
}

/// A hold as the statements on many rows name it.
struct HoldKey<'d> {
    name: &'d str,
    /// Owner and fence, as the statements put them together.
    key: String,
}

impl<'d> HoldKey<'d> {
    fn of(entry: &'d OwnRow, fence: FencingToken) -> Self {
        Self { name: &entry.name, key: format!("{}.{}", entry.owner.0, fence.as_i64()) }
    }
}
