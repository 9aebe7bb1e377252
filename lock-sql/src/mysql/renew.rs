//! Renewing many leases by few statements that no locked row can stop.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lock_core::{FencingToken, Result};

use super::inner::{Inner, micros};
use super::pool::{Query, Turn, Want};
use crate::engine::limits::{Limits, longest_excess};
use crate::engine::operations::{Due, Outcome};
use crate::statements::mysql::{SIZES, Sql};

/// What a read says of a row: the key of the hold, and whether its lease is running.
type Seen = HashMap<Vec<u8>, (Vec<u8>, bool)>;

impl Inner {
    /// One lease is one statement. Many are two: a read that locks, which leaves out what others
    /// have locked, and an update of the rest. An update alone would wait for the first locked row
    /// for a second, the shortest lock wait there is, and then undo all the others.
    pub(super) async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        let limits = Limits::once(self.now(), limit);
        let (many, single): (Vec<_>, Vec<_>) = match dues {
            [_] => (Vec::new(), vec![0]),
            // Without its token the key of a hold is not known.
            _ => (0..dues.len()).partition(|at| dues[*at].fence.is_some()),
        };
        let mut found = vec![Outcome::Locked; dues.len()];
        for at in single {
            found[at] = self.renew_one(&dues[at], limits).await?;
        }
        if !many.is_empty() {
            self.renew_many(dues, &many, limits, &mut found).await?;
        }
        Ok(found)
    }

    async fn renew_one(&self, due: &Due<'_>, limits: Limits) -> Result<Outcome> {
        let answer = self
            .execute(Turn::Keep, Want::Number, limits, || {
                let lease = (micros(due.entry.ttl), longest_excess(due.entry));
                prolonging(self.query(&self.site.statements.renew), lease)
                    .bind(due.entry.name.as_bytes().to_vec())
                    .bind(due.entry.owner.0.as_bytes().to_vec())
                    .bind(due.fence.map_or(0, FencingToken::as_i64))
            })
            .await?;
        Ok(match answer {
            // A row that was found was renewed.
            Some(answer) if answer.told() == Some(0) => Outcome::Gone,
            Some(_) => Outcome::Renewed,
            None => Outcome::Locked,
        })
    }

    async fn renew_many(
        &self,
        dues: &[Due<'_>],
        many: &[usize],
        limits: Limits,
        found: &mut [Outcome],
    ) -> Result<()> {
        let statements = &self.site.statements;
        let Some(unlocked) = self.see(dues, many, &statements.unlocked, limits).await? else {
            return Ok(());
        };
        let missing: Vec<_> =
            many.iter().copied().filter(|at| !unlocked.contains_key(name(&dues[*at]))).collect();
        // What seems to be lost. A read may have been answered by a replica that is behind, so it is
        // renewed all the same: that waits for nobody here, and what it does not find is lost.
        let mut in_doubt = Vec::new();
        if !missing.is_empty() {
            // Locked, or not there at all.
            let Some(present) = self.see(dues, &missing, &statements.present, limits).await? else {
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
            let answer = self
                .execute(Turn::Keep, Want::Number, limits, || {
                    let (sql, size) = fitting(&statements.renew_all, group.len());
                    let query = prolonging(self.query(sql), lease);
                    let query = filled(query, size, group.iter().map(|at| name(&dues[*at])));
                    filled(query, size, keys.iter().map(Vec::as_slice))
                })
                .await?;
            let Some(answer) = answer else { continue };
            // At most as many rows are counted as there are, whether the server counts those that it
            // has found or those that it has changed. So a full count leaves no doubt.
            if usize::try_from(answer.affected) == Ok(group.len()) {
                for at in group {
                    found[at] = Outcome::Renewed;
                }
            } else {
                in_doubt.extend(group);
            }
        }
        for at in in_doubt {
            found[at] = self.renew_one(&dues[at], limits).await?;
        }
        Ok(())
    }

    /// What is in the rows of these names; `None` if that cannot be seen now.
    async fn see(
        &self,
        dues: &[Due<'_>],
        which: &[usize],
        sizes: &[Sql; SIZES.len()],
        limits: Limits,
    ) -> Result<Option<Seen>> {
        let answer = self
            .execute(Turn::Keep, Want::Rows, limits, || {
                let (sql, size) = fitting(sizes, which.len());
                filled(self.query(sql), size, which.iter().map(|at| name(&dues[*at])))
            })
            .await?;
        let Some(answer) = answer else { return Ok(None) };
        let mut seen = HashMap::with_capacity(answer.rows.len());
        for row in &answer.rows {
            let name: Vec<u8> = self.get(row, 0)?;
            // NULL where nobody holds the lock.
            let key: Option<Vec<u8>> = self.get(row, 1)?;
            let runs: i64 = self.get(row, 2)?;
            seen.insert(name, (key.unwrap_or_default(), runs != 0));
        }
        Ok(Some(seen))
    }
}

/// Binds what the end of a lease is made from: the ttl and the longest excess.
fn prolonging(query: Query, (ttl, excess): (i64, i64)) -> Query {
    query.bind(ttl).bind(excess).bind(ttl).bind(ttl)
}

/// The statement for so many names, and how many places it has.
fn fitting(sizes: &[Sql; SIZES.len()], count: usize) -> (&Sql, usize) {
    let at = SIZES.iter().position(|size| *size >= count).unwrap_or(SIZES.len() - 1);
    (&sizes[at], SIZES[at])
}

/// Binds all of `values`, and the last one for the places that are left.
fn filled<'v>(query: Query, size: usize, values: impl Iterator<Item = &'v [u8]>) -> Query {
    let (mut query, mut bound, mut last) = (query, 0, &[][..]);
    for value in values {
        query = query.bind(value.to_vec());
        (bound, last) = (bound + 1, value);
    }
    (bound..size).fold(query, |query, _| query.bind(last.to_vec()))
}

fn name<'d>(due: &Due<'d>) -> &'d [u8] {
    due.entry.name.as_bytes()
}

/// Owner and fence, as the statements put them together.
fn key(due: &Due<'_>) -> Vec<u8> {
    let fence = due.fence.map_or(0, FencingToken::as_i64);
    format!("{}.{fence}", due.entry.owner.0).into_bytes()
}

fn runs(seen: &Seen, due: &Due<'_>) -> bool {
    seen.get(name(due)).is_some_and(|(hold, runs)| *runs && *hold == key(due))
}
