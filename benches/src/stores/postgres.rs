//! PostgreSQL.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::proxied::Servers;
use lock_testkit::servers::PostgresServer;
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::Instant;

use super::{Floor, OWNER, Subject, Usage, own_name};
use crate::Done;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw (name text COLLATE \"C\" PRIMARY KEY, owner text, fence bigint) WITH (fillfactor = 50)";
const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES ($1, $2, 1) \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = raw.fence + 1 RETURNING fence";
const UPDATE: &str = "UPDATE raw SET owner = NULL WHERE name = $1 AND owner = $2 RETURNING fence";
const UPDATE_AND_NOTIFY: &str =
    "UPDATE raw SET owner = NULL WHERE name = $1 RETURNING fence, pg_notify($2, 'x') IS NULL";

/// It counts statements, which costs each of them a little.
pub(super) struct Postgres {
    server: PostgresServer,
    connection: PgConnection,
}

impl Postgres {
    pub(super) async fn start() -> Done<Self> {
        let counting = ("shared_preload_libraries", "pg_stat_statements");
        let server = PostgresServer::builder().option(counting.0, counting.1).start().await?;
        let mut connection = PgConnection::connect(server.url()).await?;
        connection.execute("CREATE EXTENSION pg_stat_statements").await?;
        connection.execute(TABLE).await?;
        Ok(Self { server, connection })
    }
}

#[async_trait]
impl Subject for Postgres {
    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn version(&mut self) -> Done<String> {
        let version: String =
            sqlx::query_scalar("SHOW server_version").fetch_one(&mut self.connection).await?;
        Ok(format!("PostgreSQL {version}, without fsync"))
    }

    async fn usage(&mut self) -> Done<Usage> {
        let sql = "SELECT coalesce(sum(calls), 0)::float8, \
                   coalesce(pg_total_relation_size(to_regclass('distlock')), 0)::float8 \
                   FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";
        let (requests, bytes) = sqlx::query_as(sql).fetch_one(&mut self.connection).await?;
        let cpu = self.server.cpu_time()?;
        Ok(Usage { requests: Some(requests), cpu: Some(cpu), bytes: Some(bytes) })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }
}

pub(super) struct PostgresFloor {
    first: PgConnection,
    second: PgConnection,
    listener: PgListener,
    /// Of the row, and of the channel.
    name: String,
}

impl PostgresFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let name = own_name();
        let mut listener = PgListener::connect(url).await?;
        listener.listen(&name).await?;
        let (mut first, second) =
            (PgConnection::connect(url).await?, PgConnection::connect(url).await?);
        upsert(&mut first, &name).await?;
        Ok(Self { first, second, listener, name })
    }
}

async fn upsert(connection: &mut PgConnection, name: &str) -> Done {
    sqlx::query(UPSERT).bind(name).bind(OWNER).fetch_all(connection).await?;
    Ok(())
}

#[async_trait]
impl Floor for PostgresFloor {
    async fn acquire(&mut self) -> Done {
        upsert(&mut self.first, &self.name).await
    }

    async fn release(&mut self) -> Done {
        let query = sqlx::query(UPDATE).bind(&self.name).bind(OWNER);
        query.fetch_all(&mut self.first).await?;
        Ok(())
    }

    async fn hand_over(&mut self) -> Done<Duration> {
        let start = Instant::now();
        let release = sqlx::query(UPDATE_AND_NOTIFY).bind(&self.name).bind(&self.name);
        let (released, push) =
            tokio::join!(release.fetch_all(&mut self.first), self.listener.recv());
        released?;
        push?;
        upsert(&mut self.second, &self.name).await?;
        Ok(start.elapsed())
    }
}
