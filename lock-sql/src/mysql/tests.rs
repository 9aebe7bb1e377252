//! The statements, by a clock that the test sets, and behind proxies that change answers.

use lock_core::{LockAdmin as _, LockKey};
use lock_testkit::servers::MariaDbServer;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use super::statements::OwnStatements;
use super::*;
use crate::engine::renewals::Renew as _;
use crate::engine::statement::{Places, Statement, Statements};
use crate::engine::tests::{Bench, START, TTL, entry, granted, left, read, renew, shared};

type MySqlStore = Arc<Store<MySql>>;

/// A server, and a user whose connections have the time that [`Bench::at`] says.
struct Database {
    server: MariaDbServer,
    admin: MySqlPool,
}

#[async_trait]
impl Bench for Database {
    type Of = MySql;
    const NAMES_AT_ONCE: bool = false;

    async fn start() -> Self {
        let server = MariaDbServer::builder().start().await.unwrap();
        let admin = MySqlPoolOptions::new().max_connections(2).connect(server.url()).await.unwrap();
        let this = Self { server, admin };
        this.run("CREATE USER app; GRANT ALL ON locks.* TO app").await;
        this
    }

    async fn at(&self, micros: i64) -> MySqlStore {
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let clock = format!("SET timestamp = {seconds}.{micros:06}");
        self.run(&format!("SET GLOBAL init_connect = '{clock}'")).await;
        self.store_with(|_, _| {}).await
    }

    async fn run(&self, sql: &str) {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(&self.admin).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let names = "SELECT CONVERT(name USING utf8mb4) FROM distlock WHERE name <> x'0166656E6365' ORDER BY name";
        sqlx::query_scalar(names).fetch_all(&self.admin).await.unwrap()
    }
}

impl Database {
    /// With statements that are changed as a proxy would change their answers.
    async fn store_with(
        &self,
        change: impl FnOnce(&mut Statements, &mut OwnStatements),
    ) -> MySqlStore {
        let url = self.server.url().replace("root@", "app@");
        let target = read(&url, MySqlTarget::from_url);
        let mut server = MySqlServer::new(&target, &Settings::default());
        change(&mut server.table.statements, &mut server.table.own);
        let store = on(server);
        store.executor.probe(TTL).await.unwrap();
        store
    }
}

shared!(Database);

async fn hold(store: &MySqlStore, count: usize) -> Vec<(Entry, Option<FencingToken>)> {
    let mut leases = Vec::new();
    for n in 0..count {
        let entry = entry(&format!("n{n:03}"));
        let fence = granted(store.acquire(&entry, false).await);
        leases.push((entry, Some(fence)));
    }
    leases
}

async fn renew_all(store: &MySqlStore, leases: &[(Entry, Option<FencingToken>)]) -> Vec<Outcome> {
    let dues: Vec<_> = leases.iter().map(|(entry, fence)| Due { entry, fence: *fence }).collect();
    store.renew(&dues, TTL).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_all_sizes_leave_locked_rows_out() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    let leases = hold(&store, 500).await;
    for size in [1, 2, 8, 9, 33, 128, 129, 500] {
        assert_eq!(renew_all(&store, &leases[..size]).await, vec![Outcome::Renewed; size]);
    }
    let mut other = server.admin.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name IN ('n010', 'n011') FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    // A statement that waits for the locked rows is undone as a whole: then none is renewed.
    for (at, outcome) in renew_all(&store, &leases[..20]).await.into_iter().enumerate() {
        let locked = [10, 11].contains(&at);
        assert_eq!(outcome, if locked { Outcome::Locked } else { Outcome::Renewed }, "{at}");
    }
    other.rollback().await.unwrap();
}

/// The statements of a dropped call are finished, and their connections used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_statement_costs_no_connection() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    granted(store.acquire(&entry("warm"), false).await);
    let connections = async || -> i64 {
        sqlx::query_scalar(
            "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = 'CONNECTIONS'",
        )
        .fetch_one(&server.admin)
        .await
        .unwrap()
    };
    let before = connections().await;
    for n in 0..50 {
        let mine = entry(&format!("n{n}"));
        // The statement is on its way, and its answer cannot be here yet.
        let mut call = Box::pin(store.acquire(&mine, false));
        std::future::poll_fn(|context| {
            let _ = call.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        drop(call);
        // The release waits for it.
        store.release(&mine).await.unwrap();
        let key = LockKey::new("", mine.name.as_str()).unwrap();
        let admin = Backend::new(Arc::clone(&store), TTL);
        assert_eq!(admin.inspect(&key).await.unwrap(), None);
    }
    assert!(connections().await - before <= 3, "a connection was closed for every dropped call");
}

/// The statement in other words.
fn changed(statement: &Statement, from: &str, to: &str) -> Statement {
    let text = format!("{statement:?}");
    assert!(text.contains(from), "{from}");
    let size = statement.bare().values.len();
    Statement::new(Places::Marks, size, &text.replace(from, to))
}

/// A proxy that splits reads and writes, before a replica that is behind.
#[tokio::test]
async fn a_read_that_shows_no_hold_is_no_loss() {
    let server = Database::start().await;
    server.at(START * 1_000_000).await;
    server.run("CREATE TABLE stale LIKE distlock").await;
    let stale = |statement: &Statement| changed(statement, "FROM `distlock`", "FROM `stale`");
    let change = |shared: &mut Statements, own: &mut OwnStatements| {
        shared.look = stale(&shared.look);
        own.present.0 = own.present.0.each_ref().map(stale);
        // A proxy may know `FOR UPDATE` as the end of a statement only.
        own.unlocked.0 = own.unlocked.0.each_ref().map(stale);
    };
    let store = server.store_with(change).await;
    let leases = hold(&store, 20).await;
    // The replica has heard of an earlier hold of one of them.
    server.run("INSERT INTO stale SELECT name, 'somebody', fence - 1, expires, acquired, label FROM distlock WHERE name = 'n007'").await;
    assert_eq!(renew_all(&store, &leases).await, vec![Outcome::Renewed; leases.len()]);
    for (entry, fence) in &leases {
        assert!(left(&store, entry, *fence).await.is_some());
    }
    // What is lost is lost.
    server
        .run("UPDATE distlock SET owner = NULL, expires = 0 WHERE name IN ('n007', 'n008')")
        .await;
    for (at, outcome) in renew_all(&store, &leases).await.into_iter().enumerate() {
        let lost = [7, 8].contains(&at);
        assert_eq!(outcome, if lost { Outcome::Gone } else { Outcome::Renewed }, "{at}");
        assert_eq!(left(&store, &leases[at].0, leases[at].1).await.is_none(), lost, "{at}");
    }
}

/// A proxy that writes its own replies. A missing number is not an answer, and certainly not a
/// loss.
#[tokio::test]
async fn a_reply_without_its_number_is_no_loss_and_no_grant() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    let (mine, other) = (entry("x"), entry("y"));
    let fence = Some(granted(store.acquire(&mine, false).await));
    let mute = |statement: &Statement| changed(statement, "LAST_INSERT_ID", "");
    let change = |shared: &mut Statements, own: &mut OwnStatements| {
        for statement in [
            &mut shared.acquire,
            &mut shared.release,
            shared.confirm.as_mut().unwrap(),
            &mut own.make,
            &mut own.renew,
        ] {
            *statement = mute(statement);
        }
    };
    let muted = server.store_with(change).await;
    assert_eq!(renew(&muted, &mine, fence).await, Outcome::Renewed);
    // A row that is there, and one that is not.
    for entry in [&entry("x"), &other] {
        let error = muted.acquire(entry, false).await.unwrap_err();
        assert!(error.to_string().contains("LAST_INSERT_ID"), "{error}");
    }
    assert!(left(&muted, &mine, fence).await.is_some());
    assert!(muted.release(&mine).await.is_err());
    assert_eq!(renew(&muted, &mine, fence).await, Outcome::Gone);
}

/// Without the mark those who make rows lock the gap in its place, and stop each other: so one that
/// was stopped writes the mark again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_was_lost_is_written_again() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    server.run("TRUNCATE distlock").await;
    // Another one who makes a row, and does not end.
    let mut other = server.admin.begin().await.unwrap();
    let mark = "SELECT fence FROM distlock WHERE name = x'0166656E6365' LOCK IN SHARE MODE";
    assert!(sqlx::query(mark).fetch_optional(&mut *other).await.unwrap().is_none());
    let task = tokio::spawn(async move { store.acquire(&entry("new"), false).await });
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let writing: i64 = sqlx::query_scalar(
            "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.processlist WHERE info LIKE '%fence = GREATEST(fence, VALUES(fence))%' AND id <> CONNECTION_ID()",
        )
        .fetch_one(&server.admin)
        .await
        .unwrap();
        if writing > 0 {
            break;
        }
        assert!(!task.is_finished() && tokio::time::Instant::now() < limit, "no mark is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.rollback().await.unwrap();
    granted(task.await.unwrap());
    assert!(sqlx::query(mark).fetch_optional(&server.admin).await.unwrap().is_some());
}
