//! Renewing many leases by few statements that skip locked rows.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lock_core::{FencingToken, Result};

use super::server::MySqlServer;
use super::statements::Sizes;
use crate::engine::entry::{Due, Outcome};
use crate::engine::executor::Executor;
use crate::engine::links::{Turn, Want};
use crate::engine::statement::Values;
use crate::engine::value::Value;

/// What a read says of rows: the key of each hold, and whether its lease is running.
type Holds = HashMap<Vec<u8>, (Vec<u8>, bool)>;

/// One lease is one statement. Many are two: a locking read, which skips rows that others
/// have locked, and an update of the rest. An update alone would wait for the first locked row
/// for a second, the shortest lock wait there is, and then undo all the others.
pub(super) async fn renew(
    executor: &Executor<MySqlServer>,
    dues: &[Due<'_>],
    limit: Duration,
) -> Result<Vec<Outcome>> {
    let this = Renewing { executor, want: executor.want(Turn::Keep, limit).once() };
    this.all(dues).await
}

struct Renewing<'a> {
    executor: &'a Executor<MySqlServer>,
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
        let values = due.entry.values(due.fence);
        Ok(match self.executor.execute(self.want, &self.executor.own().renew, &values).await? {
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
        let statements = self.executor.own();
        let Some(unlocked) = self.see(dues, many, &statements.unlocked).await? else {
            return Ok(());
        };
        let missing: Vec<_> =
            many.iter().copied().filter(|at| !unlocked.contains_key(name(&dues[*at]))).collect();
        // Leases that seem lost. A replica that lags behind may have answered the read, so they are
        // renewed anyway: that waits for no lock here, and a lease that it does not find is lost.
        let mut in_doubt = Vec::new();
        if !missing.is_empty() {
            // Locked, or missing.
            let Some(present) = self.see(dues, &missing, &statements.present).await? else {
                return Ok(());
            };
            let absent = |at: &usize| !present.contains_key(name(&dues[*at]));
            in_doubt.extend(missing.into_iter().filter(absent));
        }
        // Leases of one length are renewed together, as most are.
        let mut lengths: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
        for at in many.iter().copied().filter(|at| unlocked.contains_key(name(&dues[*at]))) {
            if runs(&unlocked, &dues[at]) {
                lengths.entry(dues[at].entry.ttl).or_default().push(at);
            } else {
                in_doubt.push(at);
            }
        }
        for (ttl, group) in lengths {
            let values = names(dues, &group)
                .with("keys", group.iter().map(|at| key(&dues[*at]).into()).collect::<Vec<Value>>())
                .with("ttl", ttl);
            let statement = statements.renew_all.fitting(group.len());
            let reply = self.executor.execute(self.want, statement, &values).await?;
            let Some(reply) = reply else { continue };
            // The count never exceeds the number of rows, whether the server counts rows found or
            // rows changed. So a full count leaves no doubt.
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
        let statement = sizes.fitting(which.len());
        let reply = self.executor.execute(self.want, statement, &names(dues, which)).await?;
        let Some(reply) = reply else { return Ok(None) };
        let mut holds = HashMap::with_capacity(reply.rows.len());
        for row in &reply.rows {
            // The key is NULL if the lock is free.
            let (name, key) = (row.value(0), row.value(1));
            holds.insert(name.as_bytes().to_vec(), (key.as_bytes().to_vec(), row.flag(2)?));
        }
        Ok(Some(holds))
    }
}

fn names(dues: &[Due<'_>], which: &[usize]) -> Values {
    let names = which.iter().map(|at| Value::from(&*dues[*at].entry.name));
    Values::default().with("names", names.collect::<Vec<_>>())
}

fn name<'d>(due: &Due<'d>) -> &'d [u8] {
    due.entry.name.as_bytes()
}

/// Owner and fence, as the statements put them together.
fn key(due: &Due<'_>) -> String {
    format!("{}.{}", due.entry.owner.0, due.fence.map_or(0, FencingToken::as_i64))
}

fn runs(holds: &Holds, due: &Due<'_>) -> bool {
    holds.get(name(due)).is_some_and(|(hold, runs)| *runs && *hold == key(due).as_bytes())
}
