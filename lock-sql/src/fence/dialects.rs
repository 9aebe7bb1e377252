//! The statements of each database.

use lock_core::async_trait;
use sqlx::{Executor, Pool, Transaction};

use super::{FencedDatabase, sealed};
use crate::engine::wire::errors::CodeRule;

/// How each database sends its statements. They differ in what they are given.
macro_rules! statements {
    ($database:ty, $dialect:ident, $key:expr, look($name:ident, $fence:ident): [$($value:expr),+]) => {
        #[async_trait]
        impl sealed::Statements for $database {
            #[allow(private_interfaces, reason = "nobody else implements it")]
            const RULES: &'static [CodeRule] = crate::$dialect::RULES;

            fn code(error: &sqlx::Error) -> Option<String> {
                crate::$dialect::code(error)
            }

            async fn look(
                tx: &mut Transaction<'_, Self>,
                $name: &str,
                $fence: i64,
            ) -> sqlx::Result<Option<i64>> {
                let look = sqlx::query_scalar::<_, Option<i64>>(Self::LOOK)$(.bind($value))+;
                look.fetch_optional(&mut **tx).await.map(Option::flatten)
            }

            async fn raise(tx: &mut Transaction<'_, Self>, name: &str, fence: i64) -> sqlx::Result<()> {
                let raise = sqlx::query(Self::RAISE).bind($key(name)).bind(fence);
                raise.execute(&mut **tx).await.map(drop)
            }

            async fn forget(pool: &Pool<Self>, seconds: i64) -> sqlx::Result<u64> {
                let forget = sqlx::query(Self::FORGET).bind(seconds);
                forget.execute(pool).await.map(|done| done.rows_affected())
            }

            async fn run(pool: &Pool<Self>, statement: &'static str) -> sqlx::Result<()> {
                pool.execute(sqlx::raw_sql(statement)).await.map(drop)
            }
        }
    };
}

#[cfg(feature = "postgres")]
statements!(sqlx::Postgres, postgres, std::convert::identity, look(name, fence): [name, fence]);

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
}

#[cfg(feature = "mysql")]
statements!(sqlx::MySql, mysql, str::as_bytes, look(name, _fence): [name.as_bytes()]);

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
}

#[cfg(feature = "sqlite")]
statements!(sqlx::Sqlite, sqlite, std::convert::identity, look(name, _fence): [name]);

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
}
