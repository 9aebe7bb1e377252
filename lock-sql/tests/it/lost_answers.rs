//! Requests and replies that are lost on the way to a server.

use conformance_tests::server::Proxy;
use conformance_tests::{Fault, Faults};
use lock_core::{Attempt, Effect, Error, Released, Renewal};
use lock_sql::SqlBackend;
use lock_testkit::servers::{MariaDbServer, PostgresServer, Servers};

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

    async fn connect(&self, address: impl std::fmt::Display) -> SqlBackend {
        let (before, after) = self.url;
        lock_sql::connect(&format!("{before}{address}{after}")).await.unwrap()
    }

    async fn direct(&self) -> SqlBackend {
        self.connect(self.server.addresses()[0]).await
    }

    async fn proxied(&self) -> (Proxy, SqlBackend) {
        let proxy = Proxy::start(self.server.addresses()[0]).await.unwrap();
        let backend = self.connect(proxy.address()).await;
        (proxy, backend)
    }
}

fn claim(backend: &SqlBackend, name: &str) -> Box<dyn lock_core::Claim> {
    claim_within(backend, name, (TTL, CALL), true)
}

fn is_unknown(error: &Error) {
    assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, true), "{error}");
}

/// Repeats a call until it is answered, as the core does.
macro_rules! until_answered {
    ($call:expr) => {{
        let mut failures = 0;
        loop {
            match $call.await {
                Ok(answer) => break answer,
                Err(error) => {
                    is_unknown(&error);
                    failures += 1;
                    assert!(failures < 20, "{error}");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            }
        }
    }};
}

/// The connection breaks after each request, or before each reply, of a whole life of a claim. Every
/// effect is found again, and nothing is left behind.
#[tokio::test]
async fn every_request_and_every_reply_can_be_lost() {
    for database in Database::all().await {
        let observer = database.direct().await;
        let (mut last, mut replaced) = (0, 0);
        for (k, lost_reply) in (1..=6).flat_map(|k| [(k, false), (k, true)]) {
            let (proxy, client) = database.proxied().await;
            match lost_reply {
                true => proxy.cut_before_reply(k),
                false => proxy.cut_after_request(k),
            }
            let before = proxy.connections();
            let name = format!("n{lost_reply}{k}");
            let mut mine = claim(&client, &name);
            let first = until_answered!(mine.try_acquire());
            let Attempt::Granted { token, .. } = first else { panic!("{first:?}") };
            let again = until_answered!(mine.try_acquire());
            let Attempt::Granted { token: same, .. } = again else { panic!("{again:?}") };
            assert_eq!(token, same, "a repeated call returns the same token");
            assert!(token.get() > last);
            last = token.get();
            let alive = until_answered!(mine.renew());
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            let alive = until_answered!(mine.check());
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            until_answered!(mine.release());
            replaced += u64::from(proxy.connections() > before);
            let mut next = claim(&observer, &name);
            assert!(granted(&mut *next).await.get() > last, "the lock is free, and fences rise");
        }
        assert!(replaced >= 6, "{:?}: the proxy broke only {replaced} connections", database.url);
    }
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
