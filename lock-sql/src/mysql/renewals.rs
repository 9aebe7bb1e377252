//! Renewing many leases by few statements that skip locked rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{FencingToken, Result};

use crate::engine::store::SqlStore;
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, RenewalOutcome};
use crate::engine::wire::connections::{StatementClass, StatementLimits};
use crate::engine::wire::statement::{SqlValue, StatementReply, Then, Values};
use crate::mysql::server::MySqlServer;

/// What a read says of rows: the key of each hold, and whether its lease is running.
type Holds = HashMap<Vec<u8>, (Vec<u8>, bool)>;

/// Two statements in one transaction: a locking read, which skips rows that others have locked, and an
/// update of the rest while they stay locked for it. An update alone would wait for the first locked row for
/// a second, the shortest lock wait there is, keep the others locked all the while, and then undo what it has
/// done to them.
pub(super) async fn renew_many(
    store: &SqlStore<MySqlServer>,
    dues: &[DueRenewal<'_>],
    limit: Duration,
) -> Result<Vec<RenewalOutcome>> {
    let limits = store.limits(StatementClass::Keep, limit).once();
    // Without its token the key of a hold is not known.
    let first = |due: &DueRenewal<'_>| match due.fence {
        Some(_) => RenewalOutcome::Locked,
        None => RenewalOutcome::Doubtful,
    };
    let mut found: Vec<_> = dues.iter().map(first).collect();
    // Leases of one length are renewed together, as most are.
    let mut lengths: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
    for at in (0..found.len()).filter(|at| found[*at] == RenewalOutcome::Locked) {
        lengths.entry(dues[at].entry.ttl).or_default().push(at);
    }
    let mut missing = Vec::new();
    for (ttl, places) in lengths {
        let group: Vec<_> = places.iter().map(|at| dues[*at]).collect();
        let Some(outcomes) = renew_group(store, limits, ttl, &group).await? else { continue };
        for (at, outcome) in places.into_iter().zip(outcomes) {
            match outcome {
                Some(outcome) => found[at] = outcome,
                None => missing.push(at),
            }
        }
    }
    if !missing.is_empty() {
        // Locked, or not there. A replica that lags behind may have answered: so they are only in
        // doubt, and a statement that finds no row waits for no lock.
        let present = store.dialect.table.sized(StatementName::ReadPresent, missing.len());
        let names = names(missing.iter().map(|at| &dues[*at]));
        let Some(reply) = store.execute(limits, present, &names).await? else { return Ok(found) };
        let present = holds(&reply)?;
        for at in missing.into_iter().filter(|at| !present.contains_key(name(&dues[*at]))) {
            found[at] = RenewalOutcome::Doubtful;
        }
    }
    Ok(found)
}

/// Renews leases of one length: one answer for each, which is `None` if its row is locked, or not there; and
/// `None` if another client was writing.
async fn renew_group(
    store: &SqlStore<MySqlServer>,
    limits: StatementLimits,
    ttl: Duration,
    group: &[DueRenewal<'_>],
) -> Result<Option<Vec<Option<RenewalOutcome>>>> {
    let keys: Vec<_> = group.iter().map(HoldKey::of).collect();
    let read = store.dialect.table.sized(StatementName::ReadUnlocked, group.len());
    let values = names(group.iter()).followed_by(update(store, ttl, keys.clone()));
    let Some(reply) = store.execute(limits, read, &values).await? else { return Ok(None) };
    let unlocked = holds(&reply)?;
    let count = keys.iter().filter(|key| runs(&unlocked, key)).count();
    // The count never exceeds the number of rows, whether the server counts rows found or
    // rows changed. So a full count leaves no doubt.
    let all = usize::try_from(reply.affected) == Ok(count);
    let outcome = |key: &HoldKey| match unlocked.contains_key(key.name.as_bytes()) {
        true if runs(&unlocked, key) && all => Some(RenewalOutcome::Renewed),
        true => Some(RenewalOutcome::Doubtful),
        false => None,
    };
    Ok(Some(keys.iter().map(outcome).collect()))
}

/// The update of those that the read has shown to be alive.
fn update(store: &SqlStore<MySqlServer>, ttl: Duration, group: Vec<HoldKey>) -> Then {
    let server = Arc::clone(&store.dialect);
    Arc::new(move |reply| {
        let unlocked = holds(reply).ok()?;
        let alive = group.iter().filter(|hold| runs(&unlocked, hold));
        let (names, keys): (Vec<SqlValue<'_>>, Vec<SqlValue<'_>>) =
            alive.map(|hold| (hold.name.clone().into(), hold.key.clone().into())).unzip();
        let statement = server.table.sized(StatementName::RenewKeys, names.len());
        let values = Values::default().with("names", names).with("keys", keys).with("ttl", ttl);
        Some(statement.bind(&values))
    })
}

fn names<'d>(dues: impl Iterator<Item = &'d DueRenewal<'d>>) -> Values<'d> {
    let names = dues.map(|due| SqlValue::from(&*due.entry.name));
    Values::default().with("names", names.collect::<Vec<_>>())
}

/// A hold as the statements on many rows name it.
#[derive(Clone)]
struct HoldKey {
    name: String,
    /// Owner and fence, as the statements put them together.
    key: String,
}

impl HoldKey {
    fn of(due: &DueRenewal<'_>) -> Self {
        let fence = due.fence.map_or(0, FencingToken::as_i64);
        Self { name: due.entry.name.clone(), key: format!("{}.{fence}", due.entry.owner.0) }
    }
}

fn name<'d>(due: &DueRenewal<'d>) -> &'d [u8] {
    due.entry.name.as_bytes()
}

/// What is in the rows of a reply.
fn holds(reply: &StatementReply) -> Result<Holds> {
    let mut holds = HashMap::with_capacity(reply.rows.len());
    for row in &reply.rows {
        // The key is NULL if the lock is free.
        let (name, key) = (row.value(0), row.value(1));
        holds.insert(name.as_bytes().to_vec(), (key.as_bytes().to_vec(), row.flag(2)?));
    }
    Ok(holds)
}

fn runs(holds: &Holds, hold: &HoldKey) -> bool {
    holds.get(hold.name.as_bytes()).is_some_and(|(key, runs)| *runs && *key == hold.key.as_bytes())
}
