//! The servers of a set-up, and what an operator or a fault does to them.

mod etcd;
mod front;
mod redis;
mod sql;
mod sqlite;
mod wall_clock;
mod zookeeper;

use std::fmt;
use std::net::SocketAddr;
use std::process::Command;

use conformance_tests::Unavailable;
use distlock::backend::async_trait;
pub(crate) use wall_clock::{WallClock, remove_library};

use crate::kind::Kind;

/// What a server knows after it was started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
}

/// Something that is done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// An operator ends the connections of all clients.
    EndConnections,
    /// Those on which waiters are notified.
    EndPushes,
    FlushScripts,
    /// All data is lost, at all servers and while they run.
    LoseAll,
    /// The same, at one server of a quorum.
    LoseOne(u64),
    /// The server has too little memory for a moment, and evicts what it likes.
    Evict,
    /// History is compacted, and the files are defragmented.
    Compact,
    MoveLeader(u64),
    /// An older copy of the data is put back.
    Restore,
}

/// Something that is done and undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// The server refuses to write.
    ReadOnly,
    /// The rights of the clients are taken away.
    Deny,
    /// The transactions of all new sessions are serializable.
    Serializable,
    /// Another client locks the whole store.
    Exclusive,
    /// One member cannot reach the others.
    CutOff(usize),
    /// A replica lags behind, and then takes over.
    Lag,
}

/// The servers of one set-up. Servers are numbered.
#[async_trait]
pub(crate) trait Site: fmt::Debug + Send + Sync {
    /// Where clients reach the servers; none for a file.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The URL of the store whose servers are reached at `hosts`.
    fn url(&self, hosts: &str) -> String;

    /// The URL for the first client of all, which may have to set the store up.
    fn first_url(&self, hosts: &str) -> String {
        self.url(hosts)
    }

    fn is_http2(&self) -> bool {
        false
    }

    /// The process ids of the servers; none of one that does not run.
    fn pids(&self) -> Vec<Option<u32>>;

    /// The wall clock of the servers, if it can be set.
    fn wall_clock(&self) -> Option<&WallClock> {
        None
    }

    /// The server that leads.
    async fn leader(&self) -> Result<usize, Unavailable> {
        Ok(0)
    }

    fn freeze(&self, server: usize) -> Result<(), Unavailable>;

    fn thaw(&self, server: usize) -> Result<(), Unavailable>;

    fn kill(&self, server: usize) -> Result<(), Unavailable>;

    /// Starts servers that were killed, and waits until they answer.
    async fn start(&self, servers: &[usize], data: Data) -> Result<(), Unavailable>;

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable>;

    async fn switch(&self, switch: Switch, on: bool) -> Result<(), Unavailable>;
}

/// Starts the servers of a set-up.
pub(crate) async fn launch(kind: Kind) -> Result<Box<dyn Site>, Unavailable> {
    Ok(match kind {
        Kind::Sqlite => Box::new(sqlite::Sqlite::launch()?),
        Kind::Postgres | Kind::Pgbouncer => {
            Box::new(sql::Postgres::launch(kind == Kind::Pgbouncer).await?)
        }
        Kind::Mariadb => Box::new(sql::MariaDb::launch().await?),
        Kind::Redis | Kind::RedisReplica | Kind::Redlock3 | Kind::Redlock5 => {
            Box::new(redis::Nodes::launch(kind).await?)
        }
        Kind::Etcd1 | Kind::Etcd3 => Box::new(etcd::Etcd::launch(kind.servers()).await?),
        Kind::Zookeeper1 | Kind::Zookeeper3 => {
            Box::new(zookeeper::Ensemble::launch(kind.servers()).await?)
        }
    })
}

/// What a row asks for that this set-up does not have.
fn not_here(what: impl fmt::Debug) -> Unavailable {
    Unavailable::broken(format!("the table has {what:?} for a set-up that has no such thing"))
}

/// Runs a program of an operator.
async fn tool(program: &str, arguments: &[&str]) -> Result<String, Unavailable> {
    let mut command = Command::new(program);
    command.args(arguments);
    let broken = |error: &dyn fmt::Display| {
        Unavailable::broken(format!("{program} {}: {error}", arguments.join(" ")))
    };
    let run = tokio::process::Command::from(command).kill_on_drop(true).output();
    let limit = std::time::Duration::from_secs(20);
    let output = match tokio::time::timeout(limit, run).await {
        Ok(output) => output.map_err(|error| broken(&error))?,
        Err(_) => return Err(broken(&format_args!("no answer within {limit:?}"))),
    };
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(broken(&String::from_utf8_lossy(&output.stderr).trim())),
    }
}
