//! The statements of each database.

use lock_core::async_trait;
#[cfg(not(distlock_mutants))]
use sqlx as driver;
use sqlx::{AssertSqlSafe, Executor, Pool, Transaction};

use super::{FencedDatabase, sealed};
use crate::engine::wire::errors::CodeRule;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::engine::wire::statement::SqlValue;
#[cfg(distlock_mutants)]
use crate::mutants::fence as driver;

/// How each database sends its statements. They differ in what they are given.
macro_rules! statements {
    ($database:ty, $dialect:ident, $quote:literal, $key:expr, look($name:ident, $fence:ident): [$($value:expr),+], $commit:ident) => {
        #[async_trait]
        impl sealed::Statements for $database {
            #[allow(private_interfaces, reason = "nobody else implements it")]
            const RULES: &'static [CodeRule] = crate::$dialect::RULES;
            const QUOTE: char = $quote;

            fn code(error: &sqlx::Error) -> Option<String> {
                crate::$dialect::code(error)
            }

            async fn look(
                tx: &mut Transaction<'_, Self>,
                $name: &str,
                $fence: i64,
            ) -> sqlx::Result<Option<i64>> {
                let look = driver::query_scalar::<_, Option<i64>>(Self::LOOK)$(.bind($value))+;
                look.fetch_optional(&mut **tx).await.map(Option::flatten)
            }

            async fn raise(tx: &mut Transaction<'_, Self>, name: &str, fence: i64) -> sqlx::Result<()> {
                let raise = driver::query(Self::RAISE).bind($key(name)).bind(fence);
                raise.execute(&mut **tx).await.map(drop)
            }

            async fn forget(pool: &Pool<Self>, seconds: i64) -> sqlx::Result<u64> {
                let forget = driver::query(Self::FORGET).bind(seconds);
                forget.execute(pool).await.map(|done| done.rows_affected())
            }

            async fn commit(
                tx: Transaction<'static, Self>,
                check: String,
                (name, owner): (&str, &str),
                fence: i64,
            ) -> sqlx::Result<bool> {
                $commit(tx, check, (name, owner), fence).await
            }

            async fn run(pool: &Pool<Self>, statement: &'static str) -> sqlx::Result<()> {
                pool.execute(sqlx::raw_sql(statement)).await.map(drop)
            }
        }
    };
}

/// The check and the commit in one message: no client can stand still in between and keep the row.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! in_one_message {
    ($commit:ident, $database:ty, $dialect:ident, $is_refusal:ident) => {
        async fn $commit(
            mut tx: Transaction<'static, $database>,
            check: String,
            (name, owner): (&str, &str),
            fence: i64,
        ) -> sqlx::Result<bool> {
            let values: [SqlValue<'_>; 3] = [name.into(), owner.into(), fence.into()];
            let message = format!("{check}; COMMIT AND CHAIN");
            let message = crate::$dialect::statements::inline(&message, &values);
            let sent = tx.fetch_all(driver::raw_sql(AssertSqlSafe(message))).await;
            // The driver has not seen the commit. So there is a transaction for it to end, which is empty, unless
            // the one before has failed.
            let _ = tx.rollback().await;
            match sent {
                Ok(_) => Ok(true),
                Err(error) if $is_refusal(&error) => Ok(false),
                Err(error) => Err(error),
            }
        }
    };
}

#[cfg(feature = "postgres")]
statements!(
    sqlx::Postgres,
    postgres,
    '"',
    std::convert::identity,
    look(name, fence): [name, fence],
    commit_postgres
);

#[cfg(feature = "postgres")]
in_one_message!(commit_postgres, sqlx::Postgres, postgres, is_refusal_of_postgres);

#[cfg(feature = "postgres")]
fn is_refusal_of_postgres(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.message().contains("the lock is not held"))
}

#[cfg(feature = "postgres")]
impl FencedDatabase for sqlx::Postgres {
    const CREATE: &'static str = r#"CREATE TABLE IF NOT EXISTS distlock_fence (
  name   text COLLATE "C" PRIMARY KEY, -- the lock
  fence  bigint NOT NULL,              -- the greatest fencing token of its holders
  raised timestamptz NOT NULL DEFAULT now()
)"#;
    // The update waits for the holder before this one, and then reads the row anew. It does not lock a row that it
    // leaves as it is. The second part does, for share: transactions of one holder do not wait for each other.
    const LOOK: &'static str = "WITH raised AS ( \
           UPDATE distlock_fence SET fence = $2, raised = now() WHERE name = $1 AND fence < $2 RETURNING fence) \
         SELECT CASE WHEN current_setting('transaction_isolation') = 'repeatable read' THEN -1 ELSE coalesce( \
           (SELECT fence FROM raised), \
           (SELECT fence FROM (SELECT fence FROM distlock_fence WHERE name = $1 AND fence >= $2 FOR SHARE) AS seen)) END";
    const RAISE: &'static str =
        "INSERT INTO distlock_fence (name, fence) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
    const FORGET: &'static str =
        "DELETE FROM distlock_fence WHERE raised < now() - $1 * interval '1 second'";
    // Only a text that is not constant is read as a number when the statement runs, and not before.
    const CHECK: &'static str = "SELECT (CASE count(*) WHEN 1 THEN '1' ELSE 'the lock is not held' END)::int FROM ( \
           SELECT FROM distlock WHERE name = $1 AND owner = $2 AND $3 BETWEEN fence + 1 - \
             CASE WHEN strpos(label, chr(31)) > 0 THEN split_part(label, chr(31), 1)::bigint ELSE 1 END AND fence \
           FOR SHARE) AS held";
}

#[cfg(feature = "mysql")]
statements!(
    sqlx::MySql,
    mysql,
    '`',
    str::as_bytes,
    look(name, _fence): [name.as_bytes()],
    commit_mysql
);

#[cfg(feature = "mysql")]
in_one_message!(commit_mysql, sqlx::MySql, mysql, is_refusal_of_mysql);

#[cfg(feature = "mysql")]
fn is_refusal_of_mysql(error: &sqlx::Error) -> bool {
    crate::mysql::code(error).as_deref() == Some("1690")
}

#[cfg(feature = "mysql")]
impl FencedDatabase for sqlx::MySql {
    const CREATE: &'static str = "CREATE TABLE IF NOT EXISTS distlock_fence (
  name   VARBINARY(1025) NOT NULL PRIMARY KEY, -- the lock
  fence  BIGINT NOT NULL,                      -- the greatest fencing token of its holders
  raised TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC";
    // A locking read sees the newest row and makes no snapshot, so what the transaction reads after it is as new.
    const LOOK: &'static str = "SELECT fence FROM distlock_fence WHERE name = ? LOCK IN SHARE MODE";
    // Assigned from left to right: the time first, by the fence that was there.
    const RAISE: &'static str = "INSERT INTO distlock_fence (name, fence) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE raised = IF(fence < VALUES(fence), CURRENT_TIMESTAMP, raised), \
           fence = GREATEST(fence, VALUES(fence))";
    const FORGET: &'static str =
        "DELETE FROM distlock_fence WHERE raised < CURRENT_TIMESTAMP - INTERVAL ? SECOND";
    // A number out of range is the only error that a SELECT can be made to end with on both servers.
    const CHECK: &'static str = "SELECT 9223372036854775807 + (1 - COUNT(*)) FROM distlock \
         WHERE name = ? AND owner = ? AND ? BETWEEN fence + 1 - \
           IF(LOCATE(x'1F', label) > 0, CAST(SUBSTRING_INDEX(label, x'1F', 1) AS SIGNED), 1) AND fence \
         LOCK IN SHARE MODE";
}

#[cfg(feature = "sqlite")]
statements!(
    sqlx::Sqlite,
    sqlite,
    '"',
    std::convert::identity,
    look(name, _fence): [name],
    commit_sqlite
);

/// In two steps: a transaction that has written keeps everybody from writing, with or without the check.
#[cfg(feature = "sqlite")]
async fn commit_sqlite(
    mut tx: Transaction<'static, sqlx::Sqlite>,
    check: String,
    (name, owner): (&str, &str),
    fence: i64,
) -> sqlx::Result<bool> {
    let check = driver::query_scalar::<_, i64>(AssertSqlSafe(check)).bind(name).bind(owner);
    let is_held = check.bind(fence).fetch_one(&mut *tx).await? == 1;
    match is_held {
        true => tx.commit().await?,
        false => tx.rollback().await?,
    }
    Ok(is_held)
}

#[cfg(feature = "sqlite")]
impl FencedDatabase for sqlx::Sqlite {
    const CREATE: &'static str = "CREATE TABLE IF NOT EXISTS distlock_fence (
  name   TEXT    NOT NULL PRIMARY KEY, -- the lock
  fence  INTEGER NOT NULL,             -- the greatest fencing token of its holders
  raised INTEGER NOT NULL DEFAULT (unixepoch())
) STRICT, WITHOUT ROWID";
    // A transaction that has read can write only if nobody has written since.
    const LOOK: &'static str = "SELECT fence FROM distlock_fence WHERE name = ?1";
    const RAISE: &'static str = "INSERT INTO distlock_fence (name, fence) VALUES (?1, ?2) \
         ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, raised = excluded.raised \
         WHERE fence < excluded.fence";
    const FORGET: &'static str = "DELETE FROM distlock_fence WHERE raised < unixepoch() - ?1";
    const CHECK: &'static str = "SELECT count(*) FROM distlock \
         WHERE name = ?1 AND owner = ?2 AND ?3 BETWEEN fence + 1 - \
           CASE WHEN instr(label, char(31)) > 0 THEN CAST(substr(label, 1, instr(label, char(31)) - 1) AS INTEGER) ELSE 1 END AND fence";
}
