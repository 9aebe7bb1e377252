//! Renewing many leases by few statements that no locked row can stop.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lock_core::Result;

use super::MySql;
use super::statements::Sizes;
use crate::engine::driver::Turn;
use crate::engine::entry::{Due, Outcome};
use crate::engine::limits::{Limits, longest_excess};
use crate::engine::store::{Store, Want};
use crate::engine::value::{Query, fence_or_zero, micros};

/// What a read says of rows: the key of each hold, and whether its lease is running.
type Holds = HashMap<Vec<u8>, (Vec<u8>, bool)>;

/// One lease is one statement. Many are two: a read that locks, which leaves out what others
/// have locked, and an update of the rest. An update alone would wait for the first locked row
/// for a second, the shortest lock wait there is, and then undo all the others.
pub(super) async fn renew(
    store: &Store<MySql>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let limits = Limits::once(store.now(), limit);
    let this = Renewing { store, want: Want { turn: Turn::Keep, limits, owner: None } };
    this.all(dues).await
}

struct Renewing<'a> {
    store: &'a Store<MySql>,
    want: Want<'a>,
}

impl Renewing<'_> {
    async fn all(&self, dues: &[Due<'_>]) -> Result<Vec<Outcome>> {
        let (many, single): (Vec<_>, Vec<_>) = match dues {
            [_] => (Vec::new(), vec![0]),
            // Without its token the key of a hold is not known.
            _ => (0..dues.len()).partition(|at| dues[*at].fence.is_some()),
        };
        let mut found = vec![Outcome::Locked; dues.len()];
        for at in single {
            found[at] = self.renew_one(&dues[at]).await?;
        }
        if !many.is_empty() {
            self.renew_many(dues, &many, &mut found).await?;
        }
        Ok(found)
    }

    async fn renew_one(&self, due: &Due<'_>) -> Result<Outcome> {
        let make = || {
            let lease = (micros(due.entry.ttl), longest_excess(due.entry));
            prolonging(Query::new(&self.store.dialect.statements().renew), lease)
                .bind(due.entry.name.as_bytes())
                .bind(due.entry.owner.0.as_bytes())
                .bind(fence_or_zero(due.fence))
        };
        Ok(match self.store.execute(self.want, make).await? {
            // A row that was found was renewed.
            Some(reply) if reply.rows.is_empty() => Outcome::Gone,
            Some(_) => Outcome::Renewed,
            None => Outcome::Locked,
        })
    }

    async fn renew_many(
        &self,
        dues: &[Due<'_>],
        many: &[usize],
        found: &mut [Outcome],
    ) -> Result<()> {
        let statements = self.store.dialect.statements();
        let Some(unlocked) = self.see(dues, many, &statements.unlocked).await? else {
            return Ok(());
        };
        let missing: Vec<_> =
            many.iter().copied().filter(|at| !unlocked.contains_key(name(&dues[*at]))).collect();
        // What seems to be lost. A read may have been answered by a replica that is behind, so it is
        // renewed all the same: that waits for nobody here, and what it does not find is lost.
        let mut in_doubt = Vec::new();
        if !missing.is_empty() {
            // Locked, or not there at all.
            let Some(present) = self.see(dues, &missing, &statements.present).await? else {
                return Ok(());
            };
            let absent = |at: &usize| !present.contains_key(name(&dues[*at]));
            in_doubt.extend(missing.into_iter().filter(absent));
        }
        // Leases of one length are renewed together, as most are.
        let mut lengths: BTreeMap<(i64, i64), Vec<usize>> = BTreeMap::new();
        for at in many.iter().copied().filter(|at| unlocked.contains_key(name(&dues[*at]))) {
            if runs(&unlocked, &dues[at]) {
                let entry = dues[at].entry;
                lengths.entry((micros(entry.ttl), longest_excess(entry))).or_default().push(at);
            } else {
                in_doubt.push(at);
            }
        }
        for (lease, group) in lengths {
            let keys: Vec<_> = group.iter().map(|at| key(&dues[*at])).collect();
            let make = || {
                let (sql, size) = statements.renew_all.fitting(group.len());
                let query = prolonging(Query::new(sql), lease);
                let query = filled(query, size, group.iter().map(|at| name(&dues[*at])));
                filled(query, size, keys.iter().map(Vec::as_slice))
            };
            let Some(reply) = self.store.execute(self.want, make).await? else { continue };
            // At most as many rows are counted as there are, whether the server counts those that it
            // has found or those that it has changed. So a full count leaves no doubt.
            if usize::try_from(reply.affected) == Ok(group.len()) {
                for at in group {
                    found[at] = Outcome::Renewed;
                }
            } else {
                in_doubt.extend(group);
            }
        }
        for at in in_doubt {
            found[at] = self.renew_one(&dues[at]).await?;
        }
        Ok(())
    }

    /// What is in the rows of these names; `None` if that cannot be seen now.
    async fn see(&self, dues: &[Due<'_>], which: &[usize], sizes: &Sizes) -> Result<Option<Holds>> {
        let make = || {
            let (sql, size) = sizes.fitting(which.len());
            filled(Query::new(sql), size, which.iter().map(|at| name(&dues[*at])))
        };
        let Some(reply) = self.store.execute(self.want, make).await? else { return Ok(None) };
        let mut holds = HashMap::with_capacity(reply.rows.len());
        for row in &reply.rows {
            // The key is NULL where nobody holds the lock.
            let (name, key) = (row.value(0), row.value(1));
            holds.insert(name.as_bytes().to_vec(), (key.as_bytes().to_vec(), row.flag(2)?));
        }
        Ok(Some(holds))
    }
}

/// Binds what the end of a lease is made from: the ttl and the longest excess.
fn prolonging(query: Query, (ttl, excess): (i64, i64)) -> Query {
    query.bind(ttl).bind(excess).bind(ttl).bind(ttl)
}

/// Binds all of `values`, and the last one for the places that are left.
fn filled<'v>(query: Query, size: usize, values: impl Iterator<Item = &'v [u8]>) -> Query {
    let (mut query, mut bound, mut last) = (query, 0, &[][..]);
    for value in values {
        query = query.bind(value);
        (bound, last) = (bound + 1, value);
    }
    (bound..size).fold(query, |query, _| query.bind(last))
}

fn name<'d>(due: &Due<'d>) -> &'d [u8] {
    due.entry.name.as_bytes()
}

/// Owner and fence, as the statements put them together.
fn key(due: &Due<'_>) -> Vec<u8> {
    format!("{}.{}", due.entry.owner.0, fence_or_zero(due.fence)).into_bytes()
}

fn runs(holds: &Holds, due: &Due<'_>) -> bool {
    holds.get(name(due)).is_some_and(|(hold, runs)| *runs && *hold == key(due))
}
