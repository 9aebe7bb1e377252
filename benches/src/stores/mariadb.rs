//! MariaDB.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::proxied::Servers;
use lock_testkit::servers::MariaDbServer;
use sqlx::{Connection, MySqlConnection};
use tokio::time::Instant;

use super::{Floor, OWNER, Subject, Usage, own_name};
use crate::Done;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw (name VARBINARY(1025) PRIMARY KEY, owner VARBINARY(32), fence BIGINT) ENGINE = InnoDB";
const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES (?, ?, 1) \
     ON DUPLICATE KEY UPDATE owner = VALUES(owner), fence = fence + 1";
const UPDATE: &str = "UPDATE raw SET owner = NULL WHERE name = ? AND owner = ?";

pub(super) struct MariaDb {
    server: MariaDbServer,
    connection: MySqlConnection,
}

impl MariaDb {
    pub(super) async fn start() -> Done<Self> {
        let server = MariaDbServer::builder().start().await?;
        let mut connection = MySqlConnection::connect(server.url()).await?;
        sqlx::query(TABLE).execute(&mut connection).await?;
        Ok(Self { server, connection })
    }
}

#[async_trait]
impl Subject for MariaDb {
    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn version(&mut self) -> Done<String> {
        let version: String =
            sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut self.connection).await?;
        Ok(format!("{version}, without fsync"))
    }

    /// Statements of clients, without pings; the size of the table's file.
    async fn usage(&mut self) -> Done<Usage> {
        let requests: String = sqlx::query_scalar(
            "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'",
        )
        .fetch_one(&mut self.connection)
        .await?;
        let bytes: Option<u64> = sqlx::query_scalar(
            "SELECT allocated_size FROM information_schema.innodb_sys_tablespaces WHERE name = 'locks/distlock'",
        )
        .fetch_optional(&mut self.connection)
        .await?;
        Ok(Usage {
            requests: Some(requests.parse()?),
            cpu: Some(self.server.cpu_time()?),
            bytes: Some(bytes.unwrap_or_default() as f64),
        })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.server.addresses()
    }
}

pub(super) struct MariaDbFloor {
    first: MySqlConnection,
    second: MySqlConnection,
    name: String,
}

impl MariaDbFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let (first, second) =
            (MySqlConnection::connect(url).await?, MySqlConnection::connect(url).await?);
        Ok(Self { first, second, name: own_name() })
    }
}

async fn upsert(connection: &mut MySqlConnection, name: &str) -> Done {
    sqlx::query(UPSERT).bind(name).bind(OWNER).execute(connection).await?;
    Ok(())
}

#[async_trait]
impl Floor for MariaDbFloor {
    async fn acquire(&mut self) -> Done {
        upsert(&mut self.first, &self.name).await
    }

    async fn release(&mut self) -> Done {
        sqlx::query(UPDATE).bind(&self.name).bind(OWNER).execute(&mut self.first).await?;
        Ok(())
    }

    /// The server pushes nothing: one statement of each client.
    async fn hand_over(&mut self) -> Done<Duration> {
        let start = Instant::now();
        self.release().await?;
        upsert(&mut self.second, &self.name).await?;
        Ok(start.elapsed())
    }
}
