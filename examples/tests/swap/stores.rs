//! The stores, each with the URL that is all an example is given.

use std::any::Any;
use std::error::Error;
use std::fmt::Display;

use lock_testkit::servers::{MariaDbServer, PostgresServer, RedisServer, ZooKeeper};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// How a store is started.
type Start = fn() -> Result<Store>;

/// A store that is running.
pub(crate) struct Store {
    pub(crate) url: String,
    /// The database of the examples, where it is not a file of their own.
    pub(crate) database: Option<String>,
    /// Whether a lock can be handed from one process to another.
    pub(crate) hands_over: bool,
    /// Stopped when this is dropped.
    _servers: Box<dyn Any + Send + Sync>,
}

impl Store {
    /// On a busy machine a new connection may take its time.
    fn new(url: impl Display, servers: impl Any + Send + Sync) -> Self {
        let url = url.to_string();
        let sign = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{sign}lock_connect_timeout=30s");
        Self { url, database: None, hands_over: true, _servers: Box::new(servers) }
    }
}

/// Every store that more than one process can use, and how it is started.
pub(crate) const STORES: &[(&str, Start)] = &[
    ("sqlite", sqlite),
    ("postgres", || run(postgres())),
    ("mariadb", || run(mariadb())),
    ("redis", || run(redis())),
    ("redlock", || run(redlock())),
    ("etcd", || run(etcd())),
    ("zookeeper", || run(zookeeper())),
];

/// Servers are processes, so they outlive the runtime that has started them.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

pub(crate) fn sqlite() -> Result<Store> {
    let folder = tempfile::tempdir()?;
    Ok(Store::new(format!("sqlite://{}/locks.db", folder.path().display()), folder))
}

/// One server for the locks and for the data.
async fn postgres() -> Result<Store> {
    // Never a server that was given, whose tables are not ours.
    let server = PostgresServer::builder().start().await?;
    let database = Some(server.url().to_owned());
    Ok(Store { database, ..Store::new(server.url().to_owned(), server) })
}

async fn mariadb() -> Result<Store> {
    let server = MariaDbServer::start().await?;
    Ok(Store::new(server.url().to_owned(), server))
}

async fn redis() -> Result<Store> {
    let server = RedisServer::start().await?;
    Ok(Store::new(server.url().to_owned(), server))
}

async fn redlock() -> Result<Store> {
    let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = RedisServer::builder().start().await?;
        hosts.push(node.url().trim_start_matches("redis://").to_owned());
        nodes.push(node);
    }
    Ok(Store::new(format!("redlock://{}?lock_bootstrap=now", hosts.join(",")), nodes))
}

async fn etcd() -> Result<Store> {
    let server = lock_testkit::servers::EtcdCluster::start().await?;
    Ok(Store::new(server.url().to_owned(), server))
}

async fn zookeeper() -> Result<Store> {
    let server = ZooKeeper::start().await?;
    Ok(Store { hands_over: false, ..Store::new(server.url().to_owned(), server) })
}
