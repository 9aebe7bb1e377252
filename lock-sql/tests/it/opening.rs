//! What opening a store does on all databases.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conformance_tests::server::{Cut, Proxy};
use lock_core::{Error, ErrorKind, Locks};
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::servers::{MariaDbServer, PostgresServer};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::runtime::Builder;

/// Databases without a table, and what keeps them.
struct Databases {
    file: TempDir,
    postgres: PostgresServer,
    mysql: MariaDbServer,
}

impl Databases {
    async fn start() -> Self {
        Self {
            file: TempDir::new().unwrap(),
            postgres: PostgresServer::builder().start().await.unwrap(),
            mysql: MariaDbServer::builder().start().await.unwrap(),
        }
    }

    /// Their URLs with this table.
    fn urls(&self, table: &str) -> [String; 3] {
        let file = format!("sqlite://{}", self.file.path().join("locks.db").display());
        [&*file, self.postgres.url(), self.mysql.url()].map(|url| {
            format!("{url}{}lock_table={table}", if url.contains('?') { '&' } else { '?' })
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_open_a_new_database_at_once() {
    let databases = Databases::start().await;
    for round in 0..3 {
        for url in databases.urls(&format!("t{round}")) {
            let mut opening = tokio::task::JoinSet::new();
            for _ in 0..16 {
                let url = url.clone();
                opening.spawn(async move {
                    let locks = Locks::new(lock_sql::connect(&url).await?);
                    locks.named("first")?.try_acquire().await
                });
            }
            let mut held = Vec::new();
            while let Some(result) = opening.join_next().await {
                held.extend(result.unwrap().unwrap_or_else(|error| panic!("{url}: {error}")));
            }
            assert_eq!(held.len(), 1, "{url}");
        }
    }
}

#[tokio::test]
async fn every_table_is_a_world_of_its_own() {
    let databases = Databases::start().await;
    for (one, two) in databases.urls("one").iter().zip(databases.urls("TwO")) {
        let one = Locks::new(lock_sql::connect(one).await.unwrap());
        let two = Locks::new(lock_sql::connect(&two).await.unwrap());
        let _held = one.named("x").unwrap().acquire().await.unwrap();
        assert!(two.named("x").unwrap().try_acquire().await.unwrap().is_some());
    }
}

/// Nobody listens there.
const SERVERS: [(&str, &str); 2] = [
    ("PostgreSQL", "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable"),
    ("MySQL", "mysql://root@127.0.0.1:1/locks"),
];

fn refused(error: &Error, server: &str, remedy: &str) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(text.contains(server) && text.contains(remedy), "{text}");
}

#[test]
fn outside_of_a_runtime_is_an_error() {
    for (server, url) in SERVERS {
        let connecting = pin!(lock_sql::connect(url));
        let Poll::Ready(answer) = connecting.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it waits for something")
        };
        refused(&answer.unwrap_err(), server, "call from within one");
    }
}

#[test]
fn a_runtime_without_what_is_needed_is_an_error() {
    for (mut builder, what) in
        [(Builder::new_current_thread(), "timers"), (Builder::new_multi_thread(), "sockets")]
    {
        if what == "sockets" {
            builder.enable_time();
        }
        let runtime = builder.build().unwrap();
        for (server, url) in SERVERS {
            let error = runtime.block_on(lock_sql::connect(url)).unwrap_err();
            refused(&error, server, "enable_all");
            assert!(error.to_string().contains(what), "{error}");
        }
    }
    // Pools from another runtime.
    let whole = Builder::new_current_thread().enable_all().build().unwrap();
    let (postgres, mysql) = whole.block_on(async {
        let postgres = PgPoolOptions::new().connect_lazy(SERVERS[0].1).unwrap();
        (postgres, MySqlPoolOptions::new().connect_lazy(SERVERS[1].1).unwrap())
    });
    let runtime = Builder::new_current_thread().build().unwrap();
    let opened = runtime.block_on(SqlBackend::from_pool(postgres, SqlConfig::default()));
    refused(&opened.unwrap_err(), "PostgreSQL", "enable_all");
    let opened = runtime.block_on(SqlBackend::from_pool(mysql, SqlConfig::default()));
    refused(&opened.unwrap_err(), "MySQL", "enable_all");
}

#[tokio::test]
async fn a_time_limit_that_cannot_be_meant_is_an_error() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    let sqlite = format!("sqlite://{}", file.display());
    for url in [SERVERS[0].1, SERVERS[1].1, &*sqlite] {
        for limit in [Duration::ZERO, Duration::MAX] {
            let config = SqlConfig::from_url(url).unwrap().connect_timeout(limit);
            let error = SqlBackend::connect(config).await.unwrap_err();
            refused(&error, "the connect timeout is", "between");
        }
    }
    assert!(!file.exists());
}

/// Far from the server, opening a connection takes most of a call, and the statement that follows has to be
/// prepared first. What one call has no time for serves the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_longer_than_a_call_is_opened_for_the_next_one() {
    let databases = Databases::start().await;
    let postgres = Proxy::start(databases.postgres.address().unwrap()).await.unwrap();
    let mysql = Proxy::start(databases.mysql.address().unwrap()).await.unwrap();
    let ttl = Duration::from_secs(1);
    for (proxy, url) in [
        (&postgres, format!("postgres://postgres@{}/postgres?sslmode=disable", postgres.address())),
        (&mysql, databases.mysql.url_by(mysql.address()).unwrap()),
    ] {
        let backend = lock_sql::connect(&url).await.unwrap();
        let locks = Locks::builder(backend).default_ttl(ttl).build().unwrap();
        let lock = locks.named("far").unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
        proxy.delay(Duration::from_millis(45), Duration::ZERO);
        proxy.cut(Cut::Reset);
        let granted = tokio::time::timeout(Duration::from_secs(20), lock.acquire()).await;
        granted.unwrap_or_else(|_| panic!("{url}: not granted")).unwrap().release().await.unwrap();
        proxy.delay(Duration::ZERO, Duration::ZERO);
    }
}
