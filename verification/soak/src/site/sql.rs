//! PostgreSQL, with or without a pooler, and MariaDB.

use std::net::SocketAddr;

use conformance_tests::Unavailable;
use distlock::backend::async_trait;
use lock_testkit::servers::{Builder, Kind, MariaDbServer, PgBouncer, PostgresServer};

use super::{Data, Site, Switch, Verb, WallClock, not_here, tool};

/// How many connections a pooler has to its server.
const POOL: usize = 8;

fn with_clock<K: Kind>(
    mut builder: Builder<K>,
    clock: &WallClock,
) -> Result<Builder<K>, Unavailable> {
    for (name, value) in clock.variables()? {
        builder = builder.variable(&name, value);
    }
    Ok(builder)
}

#[derive(Debug)]
pub(super) struct Postgres {
    pooler: Option<PgBouncer>,
    server: PostgresServer,
    clock: WallClock,
}

impl Postgres {
    pub(super) async fn launch(pooled: bool) -> Result<Self, Unavailable> {
        let clock = WallClock::new()?;
        let server = with_clock(PostgresServer::builder(), &clock)?.start().await?;
        let pooler = match pooled {
            true => Some(PgBouncer::start(server.address()?, "transaction", POOL).await?),
            false => None,
        };
        Ok(Self { pooler, server, clock })
    }

    async fn say(&self, statements: &[&str]) -> Result<(), Unavailable> {
        let url = format!("postgres://postgres@{}/postgres", self.server.address()?);
        let mut arguments = vec!["-X", "-q", &url];
        for statement in statements {
            arguments.extend(["-c", statement]);
        }
        tool("psql", &arguments).await.map(drop)
    }

    async fn set(&self, setting: &str, on: bool) -> Result<(), Unavailable> {
        let change = match on {
            true => format!("ALTER SYSTEM SET {setting}"),
            false => {
                let name = setting.split(' ').next().unwrap_or_default();
                format!("ALTER SYSTEM RESET {name}")
            }
        };
        self.say(&[&change, "SELECT pg_reload_conf()"]).await
    }
}

#[async_trait]
impl Site for Postgres {
    fn addresses(&self) -> Vec<SocketAddr> {
        let pooler = self.pooler.as_ref().map(PgBouncer::address);
        pooler.or_else(|| self.server.address().ok()).into_iter().collect()
    }

    fn url(&self, hosts: &str) -> String {
        format!("postgres://postgres@{hosts}/postgres?sslmode=disable")
    }

    fn pids(&self) -> Vec<Option<u32>> {
        vec![self.server.pid().ok()]
    }

    fn wall_clock(&self) -> Option<&WallClock> {
        Some(&self.clock)
    }

    fn freeze(&self, _: usize) -> Result<(), Unavailable> {
        self.server.freeze()
    }

    fn thaw(&self, _: usize) -> Result<(), Unavailable> {
        self.server.thaw()
    }

    fn kill(&self, _: usize) -> Result<(), Unavailable> {
        self.server.kill()
    }

    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable> {
        match (servers, data) {
            ([], _) => Ok(()),
            (_, Data::Kept) => self.server.restart().await,
            (_, Data::Lost) => Err(not_here(data)),
        }
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        const OTHERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                              WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        match verb {
            Verb::EndConnections => self.say(&[OTHERS]).await,
            Verb::EndPushes => self.say(&[&format!("{OTHERS} AND query ILIKE 'LISTEN%'")]).await,
            Verb::LoseAll => self.say(&["TRUNCATE distlock"]).await,
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, on: bool) -> Result<(), Unavailable> {
        match switch {
            Switch::ReadOnly => self.set("default_transaction_read_only = on", on).await,
            Switch::Serializable => {
                self.set("default_transaction_isolation = 'serializable'", on).await
            }
            _ => Err(not_here(switch)),
        }
    }
}

#[derive(Debug)]
pub(super) struct MariaDb {
    server: MariaDbServer,
    clock: WallClock,
}

impl MariaDb {
    pub(super) async fn launch() -> Result<Self, Unavailable> {
        let clock = WallClock::new()?;
        let server = with_clock(MariaDbServer::builder(), &clock)?.start().await?;
        Ok(Self { server, clock })
    }

    async fn say(&self, statement: &str) -> Result<String, Unavailable> {
        let port = self.server.address()?.port().to_string();
        let arguments = ["--no-defaults", "-h127.0.0.1", "-uroot", "-N", "-P", &port];
        tool("mariadb", &[&arguments[..], &["locks", "-e", statement]].concat()).await
    }
}

#[async_trait]
impl Site for MariaDb {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.server.address().into_iter().collect()
    }

    fn url(&self, hosts: &str) -> String {
        format!("mysql://root@{hosts}/locks")
    }

    fn pids(&self) -> Vec<Option<u32>> {
        vec![self.server.pid().ok()]
    }

    fn wall_clock(&self) -> Option<&WallClock> {
        Some(&self.clock)
    }

    fn freeze(&self, _: usize) -> Result<(), Unavailable> {
        self.server.freeze()
    }

    fn thaw(&self, _: usize) -> Result<(), Unavailable> {
        self.server.thaw()
    }

    fn kill(&self, _: usize) -> Result<(), Unavailable> {
        self.server.kill()
    }

    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable> {
        match (servers, data) {
            ([], _) => Ok(()),
            (_, Data::Kept) => self.server.restart().await,
            (_, Data::Lost) => Err(not_here(data)),
        }
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        match verb {
            Verb::EndConnections => {
                let others = "SELECT CONCAT('KILL ', id, ';') FROM information_schema.processlist \
                              WHERE id <> CONNECTION_ID() AND user = 'root'";
                let kills = self.say(others).await?;
                for kill in kills.lines() {
                    // One that has gone by itself is no longer known.
                    let _ = self.say(kill).await;
                }
                Ok(())
            }
            Verb::LoseAll => self.say("TRUNCATE distlock").await.map(drop),
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, _: bool) -> Result<(), Unavailable> {
        Err(not_here(switch))
    }
}
