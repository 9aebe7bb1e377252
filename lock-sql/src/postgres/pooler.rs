//! Whether there is a pooler that gives each transaction to another server connection.

use std::time::Duration;

use lock_core::Result;
use sqlx::postgres::PgListener;
use sqlx::{Acquire, Executor, PgConnection, Row};

use crate::engine::wire::driver::SqlDriver as _;
use crate::engine::wire::errors::StatementFailure;
use crate::postgres::config::Pooler;
use crate::postgres::listener;
use crate::postgres::server::PostgresServer;
use crate::postgres::statements::BACKEND_PID;

/// How often the three connections are checked for a pooler.
const ROUNDS: usize = 5;

/// Opens the first connections, with nothing of ours set: one, or two and one that can listen, where those
/// are needed to find out whether there is a pooler.
pub(super) async fn open_first(
    server: &PostgresServer,
    pooler: Pooler,
    limit: Duration,
) -> Result<(Vec<PgConnection>, Option<PgListener>), StatementFailure> {
    Ok(match pooler {
        Pooler::Auto => {
            let (both, third) = look_for_pooler(server, limit).await?;
            (both.into(), Some(third))
        }
        Pooler::Transaction | Pooler::None => (vec![server.connect().await?], None),
    })
}

/// Finds out whether there is a pooler: our connections share a server connection, or one of them
/// changes its server connection.
///
/// A pooler must not be missed. Prepared statements are called by name, and on a shared connection
/// a name may stand for another client's statement.
async fn look_for_pooler(
    server: &PostgresServer,
    limit: Duration,
) -> Result<([PgConnection; 2], PgListener), StatementFailure> {
    let failed = |error| server.failure(error, false);
    let listening = async { listener::connect(&server.options, limit).await.map_err(failed) };
    let (mut first, mut second, mut listening) =
        tokio::try_join!(server.connect(), server.connect(), listening)?;
    let third = listening.acquire().await.map_err(failed)?;
    let mut connections = [(&mut first, 0), (&mut second, 0), (third, 0)];
    let mut pooled = false;
    for round in 0..ROUNDS {
        // One of them is inside a transaction, which keeps its server connection from the others,
        // and returns it as the most recently used. Not in the first round: a pooler may have only
        // one or two.
        let holder = round.checked_sub(1).map(|round| round % connections.len());
        if let Some(holder) = holder {
            run(server, connections[holder].0, "BEGIN").await?;
        }
        let mut seen = Vec::new();
        for (connection, before) in &mut connections {
            let now = backend(server, connection).await?;
            pooled |= seen.contains(&now) || (round > 0 && now != *before);
            seen.push(now);
            *before = now;
        }
        if let Some(holder) = holder {
            run(server, connections[holder].0, "COMMIT").await?;
        }
        if pooled {
            server.set_pooled();
            break;
        }
    }
    Ok(([first, second], listening))
}

async fn run(
    server: &PostgresServer,
    connection: &mut PgConnection,
    sql: &'static str,
) -> Result<(), StatementFailure> {
    let done = connection.execute(sqlx::raw_sql(sql)).await;
    done.map(drop).map_err(|error| server.failure(error, false))
}

async fn backend(
    server: &PostgresServer,
    connection: &mut PgConnection,
) -> Result<i32, StatementFailure> {
    let row = connection.fetch_one(sqlx::raw_sql(BACKEND_PID)).await;
    row.and_then(|row| row.try_get(0)).map_err(|error| server.failure(error, false))
}
