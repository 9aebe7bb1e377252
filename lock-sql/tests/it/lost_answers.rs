//! Replies that are lost on the way from a server: what the error says.

use std::time::Duration;

use conformance_tests::proxied::Servers;
use conformance_tests::server::{Cut, Proxy};
use conformance_tests::{Fault, Faults};
use lock_core::{Attempt, Effect, Error, Released};
use lock_sql::SqlBackend;
use lock_testkit::servers::{MariaDbServer, PostgresServer};
use sqlx::{MySqlPool, PgPool};

use crate::common::{CALL, TTL, claim_within, granted};

/// A server, and how a URL leads to it.
struct Database {
    server: Box<dyn Servers>,
    url: (&'static str, &'static str),
}

impl Database {
    /// PostgreSQL also as behind a pooler, where statements are sent in one piece.
    async fn all() -> [Self; 3] {
        let postgres = async |pooler| Self {
            server: Box::new(PostgresServer::builder().start().await.unwrap()),
            url: ("postgres://postgres@", pooler),
        };
        let mysql = MariaDbServer::builder().start().await.unwrap();
        [
            postgres("/postgres?sslmode=disable&lock_pooler=none").await,
            postgres("/postgres?sslmode=disable&lock_pooler=transaction").await,
            Self { server: Box::new(mysql), url: ("mysql://root@", "/locks") },
        ]
    }

    async fn proxied(&self) -> (Proxy, SqlBackend) {
        let proxy = Proxy::start(self.server.addresses()[0]).await.unwrap();
        let ((before, after), address) = (self.url, proxy.address());
        let backend = lock_sql::connect(&format!("{before}{address}{after}")).await.unwrap();
        (proxy, backend)
    }
}

/// An administrator's transaction that has the row locked, until it is dropped.
async fn row_locked(database: &Database) -> Box<dyn std::any::Any> {
    let row = "SELECT fence FROM distlock WHERE name = 'x' FOR UPDATE";
    let ((before, _), address) = (database.url, database.server.addresses()[0]);
    if before.starts_with("mysql") {
        let pool = MySqlPool::connect(&format!("{before}{address}/locks")).await.unwrap();
        let mut other = pool.begin().await.unwrap();
        sqlx::query(row).fetch_one(&mut *other).await.unwrap();
        return Box::new(other);
    }
    let url = format!("{before}{address}/postgres?sslmode=disable");
    let mut other = PgPool::connect(&url).await.unwrap().begin().await.unwrap();
    sqlx::query(row).fetch_one(&mut *other).await.unwrap();
    Box::new(other)
}

fn claim(backend: &SqlBackend, name: &str) -> Box<dyn lock_core::Claim> {
    claim_within(backend, name, (TTL, CALL), true)
}

fn is_unknown(error: &Error) {
    assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, true), "{error}");
}

/// A release whose first copy was executed and whose answer was lost is not reported as "taken by
/// somebody else".
#[tokio::test]
async fn a_release_whose_answer_is_lost_is_unknown_and_not_a_loss() {
    for database in Database::all().await {
        let (proxy, client) = database.proxied().await;
        let mut lost = None;
        // The answer to another statement of the client, such as one of its sweep, may be lost instead.
        for n in 0..50 {
            let mut mine = claim(&client, &format!("n{n}"));
            granted(&mut *mine).await;
            proxy.inject(Fault::LoseNextReply).await.unwrap();
            match mine.release().await {
                Ok(released) => assert_eq!(released, Released::Freed, "its own release"),
                Err(error) => {
                    lost = Some((mine, error));
                    break;
                }
            }
        }
        let (mut mine, error) = lost.expect("an answer is lost");
        is_unknown(&error);
        assert_eq!(mine.release().await.unwrap(), Released::AlreadyGone);
    }
}

/// A try that was cut off may still be executed, also after a release. The core must know of it, so it
/// is not repeated in silence.
#[tokio::test]
async fn a_try_whose_answer_is_lost_is_unknown() {
    for database in Database::all().await {
        let (proxy, client) = database.proxied().await;
        let mut lost = None;
        for _ in 0..50 {
            // The row is there, and the statement prepared.
            let mut warm = claim(&client, "x");
            granted(&mut *warm).await;
            assert_eq!(warm.release().await.unwrap(), Released::Freed);
            let mut mine = claim(&client, "x");
            proxy.inject(Fault::LoseNextReply).await.unwrap();
            match mine.try_acquire().await {
                Ok(attempt) => {
                    assert!(matches!(attempt, Attempt::Granted { .. }), "{attempt:?}");
                    assert_eq!(mine.release().await.unwrap(), Released::Freed);
                }
                Err(error) => {
                    lost = Some((mine, error));
                    break;
                }
            }
        }
        let (mut mine, error) = lost.expect("a try was repeated in silence");
        is_unknown(&error);
        let fence = granted(&mut *mine).await;
        assert_eq!(granted(&mut *mine).await, fence);
        assert_eq!(mine.release().await.unwrap(), Released::Freed);
    }
}

/// The first copy of a release may still be executed when the second one gives up at a row that is locked.
#[tokio::test]
async fn a_release_that_is_cut_off_and_then_kept_waiting_is_unknown() {
    for database in Database::all().await {
        let (proxy, client) = database.proxied().await;
        // Long enough for two waits of a second for the row, and too short for a third one.
        let call = Duration::from_millis(2600);
        let mut mine = claim_within(&client, "x", (TTL, call), true);
        granted(&mut *mine).await;
        let _locked = row_locked(&database).await;
        let (released, ()) = tokio::join!(mine.release(), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.cut(Cut::Reset);
        });
        is_unknown(&released.unwrap_err());
    }
}
