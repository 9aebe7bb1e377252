//! Fencing tokens in the database that holds the data: a transaction of a holder that was overtaken is
//! refused, whatever store the lock is in.
//!
//! ```
//! # async fn example(pool: sqlx::PgPool, lock: lock_core::Lock) -> Result<(), Box<dyn std::error::Error>> {
//! # use lock_sql as sql;
//! use sql::fence;
//!
//! fence::create_table(&pool).await?;              // once, when the program starts
//!
//! let guard = lock.acquire().await?;
//! let mut tx = pool.begin().await?;
//! fence::admit(&mut tx, &guard).await?;           // first of all, before the first read
//! sqlx::query("UPDATE stock SET amount = amount - 1").execute(&mut *tx).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! The table [`distlock_fence`](FencedDatabase::CREATE) keeps the greatest token of each lock. [`admit`] compares the
//! holder's token with it and raises it, in the transaction of the caller:
//!
//! - If a later holder has been admitted, the transaction is refused with
//!   [`Lost`](lock_core::ErrorKind::Lost). Roll it back: another holder has the lock.
//! - If it is admitted, no later holder is before the transaction ends: a later holder that comes meanwhile waits
//!   in its own `admit`, and then sees what was committed. Transactions of the same holder do not wait for each
//!   other, but for the first, which raises the token.
//!
//! So reads and writes of a holder come before those of the next holder, or not at all. No clock is involved, and
//! nothing depends on how long the holder was paused.
//!
//! # What to know
//!
//! - **Isolation.** PostgreSQL: READ COMMITTED (its default), or SERIALIZABLE in all transactions on the data.
//!   REPEATABLE READ is refused, since such a transaction can read what was there before the holder before it
//!   committed. MySQL and MariaDB: any level, if `admit` is the *first* statement of the transaction, and it was not
//!   begun `WITH CONSISTENT SNAPSHOT`. SQLite: any transaction; begin it with `BEGIN IMMEDIATE`, or it may have to be
//!   tried again.
//! - **Savepoints.** Rolling back to a savepoint takes back an admission after it.
//! - **A transaction that stays open** keeps the next holder waiting, as it does with any row that it has written.
//!   `idle_in_transaction_session_timeout` (PostgreSQL), `idle_transaction_timeout` (MariaDB) and `wait_timeout` (MySQL)
//!   end that.
//! - **Readers and writers.** Only locks that exclude everybody: the token of a
//!   [reader](lock_core::kinds::ReadGuard) needs [`FenceCheck::admit_reader`](lock_core::FenceCheck::admit_reader).
//! - **Growth.** The table keeps a row for each name. [`forget`] removes those that are old.
//!
//! # Lock and data in one database
//!
//! ```
//! # async fn example(pool: sqlx::PgPool, lock: lock_core::Lock) -> Result<(), Box<dyn std::error::Error>> {
//! # use lock_sql as sql;
//! use sql::fence;
//!
//! let guard = lock.acquire().await?;
//! let mut tx = pool.begin().await?;               // after the lock was acquired
//! sqlx::query("UPDATE stock SET amount = amount - 1").execute(&mut *tx).await?;
//! fence::commit(tx, &guard).await?;               // in place of tx.commit()
//! # Ok(()) }
//! ```
//!
//! Here the row of the lock takes the place of a table of tokens. [`commit()`] sends a check of that row and `COMMIT`
//! in one message. The check keeps the row from being changed, so whoever wants the lock waits for the commit. A
//! transaction that was committed, was committed before anybody else was granted the lock, however long its holder
//! was paused. No clock is asked: a lease that has ended, and that nobody has taken since, is still the holder's.
//!
//! - **Isolation.** MySQL, MariaDB and SQLite: any level. PostgreSQL: READ COMMITTED. At REPEATABLE READ and
//!   SERIALIZABLE the promise is the same, but the transaction has to be tried again if its lock was renewed since
//!   it began, or if another client began to wait for the lock; and it is refused if it began before the lock was
//!   acquired.
//! - **How long the row is locked.** While the server executes the message: the check, constraints that are
//!   deferred, and the commit, with the answer of a synchronous standby. A client that stands still before it has
//!   sent the message has not locked the row, and the next holder gets the lock when the lease ends. What the
//!   transaction has written stays locked, as ever: `idle_in_transaction_session_timeout` (PostgreSQL),
//!   `idle_transaction_timeout` (MariaDB) and `wait_timeout` (MySQL) end that.
//! - **SQLite.** From its first write to its end, a transaction keeps all locks in the file from being acquired,
//!   renewed and released, with `commit` or without: keep it much shorter than the TTL.
//! - **Rights.** PostgreSQL wants `SELECT` and `UPDATE` on the lock table. Whoever may read that can read the owners,
//!   and so release their locks.
//! - **Logs.** With servers, the owner is in the text of the message. The server may log it, and sqlx does: at DEBUG, and
//!   at WARN if it took longer than a second. Switch that off in the options with which the pool connects, by
//!   [`disable_statement_logging`](sqlx::ConnectOptions::disable_statement_logging).
//! - **Which transactions.** Those that [`Pool::begin`](sqlx::Pool::begin) begins. A savepoint in another transaction
//!   cannot be committed alone, and does not compile.
//! - **Which locks.** Only those that exclude everybody, as for `admit`.
//!
//! For other drivers than sqlx, the statements are constants of [`FencedDatabase`].

mod commit;
mod dialects;

use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Held, LockKey, LostReason, Result, async_trait};
use sqlx::{Pool, Transaction};

use crate::engine::wire::errors::{ErrorTexts, FailureRemedy, StatementFailure};

pub use commit::{commit, commit_in};

/// How often a token is entered that other transactions keep from being seen.
const TRIES: usize = 10;
/// What [`LOOK`](FencedDatabase::LOOK) answers where the transaction may read what is older.
const OLD_SNAPSHOT: i64 = -1;
const IS_THERE: &str = "SELECT fence FROM distlock_fence LIMIT 0";

/// A database in which [`admit`] works: PostgreSQL, MySQL or MariaDB, and SQLite.
#[async_trait]
pub trait FencedDatabase: sqlx::Database + sealed::Statements {
    /// Creates the table.
    const CREATE: &'static str;
    /// Answers the greatest token of a name, and keeps it from being raised until the transaction ends. Wants the
    /// name as [`LockKey::encode`] writes it. PostgreSQL: also wants the token, and raises that of a row that is
    /// there; answers -1 if the transaction may read what is older than this.
    const LOOK: &'static str;
    /// Enters a token, unless the name has one that is not smaller. Wants name and token. Look again afterwards:
    /// whoever finds its own token is admitted.
    const RAISE: &'static str;
    /// Removes the rows whose token was raised this many seconds ago.
    const FORGET: &'static str;
    /// Fails unless the lock is held, and keeps its row from being changed until the transaction ends. Wants the
    /// name, the [owner](Held::owner) as hexadecimal text, and the token. Send it together with `COMMIT` in one
    /// message, as [`commit()`] does, with the values written into the text. Where the table is not
    /// `distlock`, write its name in place of that. SQLite: answers 1 if the lock is held, and 0 if it is not.
    const CHECK: &'static str;
}

mod sealed {
    use lock_core::async_trait;
    use sqlx::{Pool, Transaction};

    use crate::engine::wire::errors::CodeRule;

    /// How the statements are sent, and what an error of the database means.
    #[async_trait]
    pub trait Statements: Sized + sqlx::Database {
        #[allow(private_interfaces, reason = "nobody else implements it")]
        const RULES: &'static [CodeRule];
        /// What names are put into.
        const QUOTE: char;

        fn code(error: &sqlx::Error) -> Option<String>;
        async fn look(
            tx: &mut Transaction<'_, Self>,
            name: &str,
            fence: i64,
        ) -> sqlx::Result<Option<i64>>;
        async fn raise(tx: &mut Transaction<'_, Self>, name: &str, fence: i64) -> sqlx::Result<()>;
        async fn forget(pool: &Pool<Self>, seconds: i64) -> sqlx::Result<u64>;
        /// Ends the transaction: commits it, or rolls it back if the check does not find the hold.
        async fn commit(
            tx: Transaction<'static, Self>,
            check: String,
            hold: (&str, &str),
            fence: i64,
        ) -> sqlx::Result<bool>;
        async fn run(pool: &Pool<Self>, statement: &'static str) -> sqlx::Result<()>;
    }
}

/// Admits the transaction of a holder, or refuses it since a later holder was admitted. Call it before the first read:
/// the [page of the module](self) says why.
///
/// # Errors
///
/// - [`Lost`](ErrorKind::Lost) if a later holder was admitted, or if the lock is known to be lost.
/// - One that [`is_retryable`](Error::is_retryable) if other transactions were in the way (a deadlock, a serialization
///   failure, a lock that was waited for in vain). Roll back, and try the whole transaction again.
/// - [`Config`](ErrorKind::Config) if there is no table, or if the isolation level does not allow it.
/// - Otherwise the database's own. The transaction has to be rolled back after each of them.
///
/// # Cancel safety
///
/// A dropped call leaves the transaction in an unknown state. Drop it, too: nothing is admitted then.
pub async fn admit<D: FencedDatabase>(tx: &mut Transaction<'_, D>, held: &Held) -> Result<()> {
    admit_token(tx, held.key(), held.token()?).await
}

/// As [`admit`], for a service that was sent the token: the holder is in another process.
///
/// # Errors
///
/// Those of [`admit`].
///
/// # Cancel safety
///
/// As [`admit`].
pub async fn admit_token<D: FencedDatabase>(
    tx: &mut Transaction<'_, D>,
    key: &LockKey,
    token: FencingToken,
) -> Result<()> {
    let (name, fence) = (key.encode(), token.as_i64());
    for _ in 0..TRIES {
        match D::look(tx, &name, fence).await.map_err(failure::<D>)? {
            Some(seen) if seen == fence => return Ok(()),
            Some(seen) if seen > fence => return Err(stale(key, token, seen)),
            Some(OLD_SNAPSHOT) => {
                let text = "a fencing token cannot be checked at REPEATABLE READ, where a transaction may read what is older than its admission: use READ COMMITTED, or SERIALIZABLE in all transactions";
                return Err(Error::config(text).for_key(key));
            }
            _ => D::raise(tx, &name, fence).await.map_err(failure::<D>)?,
        }
    }
    let text =
        "other transactions kept writing to this name in distlock_fence: roll back, and try again";
    Err(Error::new(ErrorKind::Unavailable, text).for_key(key))
}

fn stale(key: &LockKey, token: FencingToken, seen: i64) -> Error {
    let text =
        format!("fencing token {token} of {key} is stale: a holder with {seen} was admitted");
    Error::new(ErrorKind::Lost(LostReason::Taken), text).for_key(key)
}

/// Creates the table `distlock_fence` if it is missing: in the schema or the database in which the connections of
/// `pool` create tables. Call it when the program starts, or create the table by hand: see
/// [`CREATE`](FencedDatabase::CREATE).
///
/// The role that calls [`admit`] needs `SELECT`, `INSERT` and `UPDATE` on the table.
///
/// # Errors
///
/// Those of the database.
///
/// # Cancel safety
///
/// A dropped call may have created the table.
pub async fn create_table<D: FencedDatabase>(pool: &Pool<D>) -> Result<()> {
    // The right to create tables is needed even for one that exists.
    if D::run(pool, IS_THERE).await.is_ok() {
        return Ok(());
    }
    let Err(error) = D::run(pool, D::CREATE).await else { return Ok(()) };
    // Another client may have created it at the same time: IF NOT EXISTS does not cover that.
    D::run(pool, IS_THERE).await.map_err(|_| failure::<D>(error))
}

/// Removes the rows whose token was last raised before `longest`, by the clock of the database, and answers how many
/// they were. `longest` has to be longer than any holder of a lock works, pauses included: one that has
/// held its lock for longer than that, without knowing that it has lost it, would be admitted again.
///
/// # Errors
///
/// Those of the database; [`InvalidInput`](ErrorKind::InvalidInput) if `longest` is shorter than a minute.
///
/// # Cancel safety
///
/// A dropped call may have removed them.
pub async fn forget<D: FencedDatabase>(pool: &Pool<D>, longest: Duration) -> Result<u64> {
    if longest < Duration::from_secs(60) {
        return Err(Error::invalid(format!(
            "fencing tokens cannot be forgotten after {longest:?}: the time must be longer than the longest hold, and a minute at least"
        )));
    }
    // No database has a clock that goes back so far.
    let seconds = i64::from(u32::try_from(longest.as_secs()).unwrap_or(u32::MAX));
    D::forget(pool, seconds).await.map_err(failure::<D>)
}

fn failure<D: FencedDatabase>(error: sqlx::Error) -> Error {
    let failure = described::<D>(error, "distlock_fence", "SELECT, INSERT, UPDATE");
    match (failure.remedy, failure.error.kind()) {
        (FailureRemedy::Contended, _) => failure.error,
        (FailureRemedy::NoTable, _) => Error::config(format!(
            "there is no table distlock_fence: call fence::create_table when the program starts, or execute\n{};",
            D::CREATE
        ))
        .with_source(failure.error),
        (_, ErrorKind::Store) => {
            let text = format!("distlock_fence refused the statement: its form is\n{};", D::CREATE);
            Error::new(ErrorKind::Store, text).with_source(failure.error)
        }
        _ => failure.error,
    }
}

/// What an error means for a statement on `table`, which needs these rights.
fn described<D: FencedDatabase>(error: sqlx::Error, table: &str, rights: &str) -> StatementFailure {
    let texts = ErrorTexts {
        at: "the database".to_owned(),
        table: table.to_owned(),
        grant: format!("GRANT {rights} ON {table} TO …"),
        create: D::CREATE.to_owned(),
        rules: D::RULES,
        hints: ["check its certificate", "check the options of the pool"],
    };
    texts.failure(D::code(&error).as_deref(), error, true)
}
