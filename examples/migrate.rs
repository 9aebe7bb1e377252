//! Migrations of a database when many replicas start at once.
//!
//! Each replica takes the same lock before it serves. The first one makes the steps that are
//! missing; the others wait, find nothing missing, and go on.
//!
//! **What the lock gives:** one replica migrates at a time, also through a pooler of PostgreSQL,
//! where advisory locks do not work, and on databases that have no such locks. **What it does not
//! give:** it does not make a step atomic, and cannot stop a replica that was paused in the middle
//! of one. So each step is a transaction that also raises the version and compares the fence: a
//! replica that is killed leaves whole steps behind, and one that was overtaken changes nothing.
//!
//! ```sh
//! cargo run -p distlock-examples --bin migrate -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' replica-1
//! ```

use std::error::Error;
use std::time::Duration;

use distlock::Held;
use sqlx::AnyPool;

/// The steps in their order. Add to the end, and never change one that was shipped.
const STEPS: &[&str] = &[
    "CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT NOT NULL)",
    "ALTER TABLE customers ADD COLUMN city TEXT",
    "CREATE INDEX customers_by_city ON customers (city)",
];

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, replica] = &arguments[..] else {
        return Err("usage: migrate STORE DATABASE REPLICA".into());
    };
    let locks = distlock::builder(store).label(replica).connect().await?;
    sqlx::any::install_default_drivers();
    let database = AnyPool::connect(database).await?;

    let lock = locks.named("migrate")?;
    let version = lock.run(async |held| migrate(held, &database, replica).await).await??;
    println!("{replica} serves with version {version}");
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}

/// Makes the steps that are missing, and returns the version of the database.
async fn migrate(held: Held, database: &AnyPool, replica: &str) -> Result<i64> {
    let fence = held.token()?.as_i64();
    for step in [
        "CREATE TABLE IF NOT EXISTS schema_version (
            id BIGINT PRIMARY KEY, version BIGINT NOT NULL, fence BIGINT NOT NULL)",
        "INSERT INTO schema_version VALUES (1, 0, 0) ON CONFLICT (id) DO NOTHING",
    ] {
        sqlx::query(step).execute(database).await?;
    }
    // The first look at the version presents the fence: an earlier holder makes no step after it.
    let version = "UPDATE schema_version SET fence = $1 WHERE fence <= $1 RETURNING version";
    let found: Option<i64> =
        sqlx::query_scalar(version).bind(fence).fetch_optional(database).await?;
    let found = found.ok_or("a later replica has migrated")?;
    let mut version = found;
    for (number, step) in (1..).zip(STEPS).skip_while(|(number, _)| *number <= found) {
        let mut transaction = database.begin().await?;
        // First the version: it also keeps every other migration out until the commit.
        let raise = "UPDATE schema_version SET version = $1 WHERE version = $1 - 1 AND fence = $2";
        let raised = sqlx::query(raise).bind(number).bind(fence).execute(&mut *transaction).await?;
        if raised.rows_affected() == 0 {
            return Err("a later replica has migrated".into());
        }
        sqlx::query(*step).execute(&mut *transaction).await?;
        transaction.commit().await?;
        println!("{replica} has made step {number}");
        version = number;
    }
    Ok(version)
}
