//! The commit of a holder whose lock is in the database of its data.

use lock_core::{Effect, Error, ErrorKind, FencingToken, Held, LockKey, LostReason, Result};
use sqlx::Transaction;

use super::{FencedDatabase, described};
use crate::engine::table::settings::{TableName, schema_name};
use crate::engine::wire::errors::FailureRemedy;

/// The table in [`CHECK`](FencedDatabase::CHECK).
const TABLE: &str = "distlock";

/// Commits the transaction if the lock is still the holder's, and rolls it back otherwise. The locks are in the
/// table `distlock` of the same database, as the search path of the connection finds it; for another one, use
/// [`commit_in`].
///
/// ```
/// # async fn example(pool: sqlx::PgPool, lock: lock_core::Lock) -> Result<(), Box<dyn std::error::Error>> {
/// # use lock_sql as sql;
/// use sql::fence;
///
/// let guard = lock.acquire().await?;
/// let mut tx = pool.begin().await?;
/// sqlx::query("UPDATE stock SET amount = amount - 1").execute(&mut *tx).await?;
/// fence::commit(tx, &guard).await?;               // in place of tx.commit()
/// # Ok(()) }
/// ```
///
/// What was committed, was committed before anybody else was granted the lock: the
/// [page of the module](super#lock-and-data-in-one-database) says how, and what to know about it.
///
/// # Errors
///
/// The transaction was rolled back after each of them, unless its [effect](Error::effect) is unknown, as after a
/// connection was lost.
///
/// - [`Lost`](ErrorKind::Lost) if the lock is not the holder's any more, or is not in this table.
/// - One that [`is_retryable`](Error::is_retryable), without an effect, if other transactions were in the way (a
///   serialization failure, a deadlock). Try the whole transaction again.
/// - [`Config`](ErrorKind::Config) if there is no such table, [`Denied`](ErrorKind::Denied) if the role lacks rights
///   on it.
/// - Otherwise the database's own, as for a constraint that is checked at the commit.
///
/// # Cancel safety
///
/// After a dropped call the transaction may be committed, or may still be: then, before anybody else is granted the
/// lock. In a [cohort](lock_core::Lock::cohort), the next holder in this process may be before it: await the call to
/// its end there.
pub async fn commit<D: FencedDatabase>(tx: Transaction<'static, D>, held: &Held) -> Result<()> {
    commit_in(tx, TABLE, held).await
}

/// As [`commit`], for locks in a table of another name, or in a schema: `app_locks` or `app.locks`.
///
/// # Errors
///
/// Those of [`commit`], and [`Config`](ErrorKind::Config) for what is no name of a table.
///
/// # Cancel safety
///
/// As [`commit`].
pub async fn commit_in<D: FencedDatabase>(
    tx: Transaction<'static, D>,
    table: &str,
    held: &Held,
) -> Result<()> {
    let (key, token) = (held.key(), held.token()?);
    let check = D::CHECK.replace(TABLE, &quoted(table, D::QUOTE)?);
    let (name, owner) = (key.encode(), held.owner().to_hex());
    match D::commit(tx, check, (&name, &owner), token.as_i64()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(not_held(key, token, table)),
        Err(error) => Err(not_committed::<D>(error, table).for_key(key)),
    }
}

fn quoted(table: &str, quote: char) -> Result<String> {
    let (schema, name) = match table.split_once('.') {
        Some((schema, name)) => (Some(schema_name(schema)?), name),
        None => (None, table),
    };
    let name = TableName::new(name)?;
    let name = format!("{quote}{}{quote}", name.as_str());
    Ok(schema.map_or(name.clone(), |schema| format!("{quote}{schema}{quote}.{name}")))
}

fn not_held(key: &LockKey, token: FencingToken, table: &str) -> Error {
    let text = format!(
        "{key} is not held with the fencing token {token} in the table {table} of this database: the transaction was rolled back"
    );
    Error::new(ErrorKind::Lost(LostReason::Taken), text).for_key(key)
}

fn not_committed<D: FencedDatabase>(error: sqlx::Error, table: &str) -> Error {
    let failure = described::<D>(error, table, "SELECT, UPDATE");
    match (failure.remedy, failure.error.kind()) {
        (FailureRemedy::NoTable, _) => Error::config(format!(
            "there is no table {table}: `commit` needs the locks in the database of the data; name their table with `commit_in`, or use `admit`"
        ))
        .with_source(failure.error),
        (_, ErrorKind::Store) => {
            let is_unknown = failure.error.effect() == Effect::Unknown;
            let text = format!("the database refused to commit, or to look at the table {table}");
            let error = Error::new(ErrorKind::Store, text).with_source(failure.error);
            if is_unknown { error.with_unknown_effect() } else { error }
        }
        _ => failure.error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_may_be_in_a_schema() {
        assert_eq!(quoted("distlock", '"').unwrap(), "\"distlock\"");
        assert_eq!(quoted("my-app.Locks", '`').unwrap(), "`my-app`.`Locks`");
        for bad in ["", "a b", "a.b.c", "a\"", ".x", "x."] {
            assert_eq!(quoted(bad, '"').unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }

    /// Its name is put into the place of this one.
    #[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    #[test]
    fn the_table_is_named_once() {
        for check in [sqlx::Postgres::CHECK, sqlx::MySql::CHECK, sqlx::Sqlite::CHECK] {
            assert_eq!(check.matches(TABLE).count(), 1, "{check}");
        }
    }
}
