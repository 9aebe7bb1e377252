//! The statements, by a clock that the test sets, and behind proxies that change answers.

use lock_core::Renewal;
use lock_testkit::servers::MariaDbServer;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use crate::engine::tests::{
    Bench, START, TTL, acquire, entry, granted, left, read, release, renew, renew_all, shared,
};
use crate::engine::wire::statement::{PlaceStyle, SqlStatement};
use crate::mysql::*;

type MySqlStore = Arc<SqlStore<MySqlServer>>;

/// A server, and a user whose connections have the time that [`Bench::at`] says.
struct Database {
    server: MariaDbServer,
    admin: MySqlPool,
}

#[async_trait]
impl Bench for Database {
    type Of = MySqlServer;
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
        self.store_with(&[], "", "").await
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
    /// With these statements in other words, which change their answers as a proxy would.
    async fn store_with(&self, which: &[StatementName], from: &str, to: &str) -> MySqlStore {
        let url = self.server.url().replace("root@", "app@");
        let target = read(&url, MySqlTarget::from_url);
        let mut server = MySqlServer::new(&target, &Settings::default());
        for (name, _, statement) in &mut server.table.statements {
            if which.contains(name) {
                *statement = changed(statement, from, to);
            }
        }
        let store = on(server);
        store.probe(TTL).await.unwrap();
        store
    }
}

shared!(Database);

async fn hold(store: &MySqlStore, count: usize) -> Vec<(OwnRow, Option<FencingToken>)> {
    let mut leases = Vec::new();
    for n in 0..count {
        let entry = entry(&format!("n{n:03}"));
        let fence = granted(acquire(store, &entry, false).await);
        leases.push((entry, Some(fence)));
    }
    leases
}

async fn renewed(
    store: &MySqlStore,
    leases: &[(OwnRow, Option<FencingToken>)],
) -> Vec<RenewalOutcome> {
    let dues: Vec<_> =
        leases.iter().map(|(entry, fence)| DueRenewal { entry, fence: *fence }).collect();
    renew_all(store, &dues).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_all_sizes_leave_locked_rows_out() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    let leases = hold(&store, 500).await;
    for size in [1, 2, 8, 9, 33, 128, 129, 500] {
        assert_eq!(renewed(&store, &leases[..size]).await, vec![RenewalOutcome::Renewed; size]);
    }
    // Later, so that whoever is left out has less time than the others.
    let store = server.at((START + 1) * 1_000_000).await;
    let mut other = server.admin.begin().await.unwrap();
    sqlx::query("SELECT * FROM distlock WHERE name IN ('n010', 'n011') FOR UPDATE")
        .fetch_all(&mut *other)
        .await
        .unwrap();
    // A statement that waits for the locked rows is undone as a whole: then none is renewed.
    for (at, outcome) in renewed(&store, &leases[..20]).await.into_iter().enumerate() {
        let locked = [10, 11].contains(&at);
        assert_eq!(
            outcome,
            if locked { RenewalOutcome::Locked } else { RenewalOutcome::Renewed },
            "{at}"
        );
    }
    other.rollback().await.unwrap();
}

async fn check(store: &MySqlStore, entry: &OwnRow, fence: Option<FencingToken>) -> Result<Renewal> {
    let limits = store.limits(StatementClass::Check, TTL);
    store.check(limits, entry, fence).await
}

/// The statement in other words.
fn changed(statement: &SqlStatement, from: &str, to: &str) -> SqlStatement {
    let text = format!("{statement:?}");
    assert!(text.contains(from), "{from}");
    let size = statement.bare().values.len();
    SqlStatement::new(PlaceStyle::Marks, size, &text.replace(from, to))
}

/// A proxy that splits reads and writes, before a replica that is behind.
#[tokio::test]
async fn a_read_that_shows_no_hold_is_no_loss() {
    let server = Database::start().await;
    server.at(START * 1_000_000).await;
    server.run("CREATE TABLE stale LIKE distlock").await;
    // A proxy may know `FOR UPDATE` as the end of a statement only.
    let reads = [StatementName::Look, StatementName::ReadRenewed];
    let store = server.store_with(&reads, "FROM `distlock`", "FROM `stale`").await;
    let leases = hold(&store, 20).await;
    // The replica has heard of an earlier hold of one of them.
    server.run("INSERT INTO stale SELECT name, 'somebody', fence - 1, expires, acquired, label FROM distlock WHERE name = 'n007'").await;
    assert_eq!(renewed(&store, &leases).await, vec![RenewalOutcome::Renewed; leases.len()]);
    for (entry, fence) in &leases {
        let checked = check(&store, entry, *fence).await.unwrap();
        assert!(matches!(checked, Renewal::Alive { valid_for: Some(_) }), "{checked:?}");
    }
    // What is lost is lost.
    server
        .run("UPDATE distlock SET owner = NULL, expires = 0 WHERE name IN ('n007', 'n008')")
        .await;
    for (at, outcome) in renewed(&store, &leases).await.into_iter().enumerate() {
        let lost = [7, 8].contains(&at);
        assert_eq!(
            outcome,
            if lost { RenewalOutcome::Gone } else { RenewalOutcome::Renewed },
            "{at}"
        );
        let checked = check(&store, &leases[at].0, leases[at].1).await.unwrap();
        assert_eq!(checked == Renewal::Lost, lost, "{at}: {checked:?}");
    }
    // It has heard of all of them, and not of their renewal.
    server.run("TRUNCATE stale; INSERT INTO stale SELECT name, owner, fence, expires - 1, acquired, label FROM distlock").await;
    let outcomes = renewed(&store, &leases).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == RenewalOutcome::Renewed).count(), 18);
}

/// A proxy that writes its own replies. A missing number is not an answer, and certainly not a
/// loss.
#[tokio::test]
async fn a_reply_without_its_number_is_no_loss_and_no_grant() {
    let server = Database::start().await;
    let store = server.at(START * 1_000_000).await;
    let (mine, other) = (entry("x"), entry("y"));
    let fence = Some(granted(acquire(&store, &mine, false).await));
    let writes = [
        StatementName::Acquire,
        StatementName::Release,
        StatementName::Confirm,
        StatementName::AcquireNew,
        StatementName::RenewAlone,
    ];
    let muted = server.store_with(&writes, "LAST_INSERT_ID", "").await;
    assert_eq!(renew(&muted, &mine, fence).await, RenewalOutcome::Renewed);
    // A row that is there, and one that is not.
    for entry in [&entry("x"), &other] {
        let error = acquire(&muted, entry, false).await.unwrap_err();
        assert!(error.to_string().contains("LAST_INSERT_ID"), "{error}");
    }
    assert!(left(&muted, &mine, fence).await.is_some());
    assert!(release(&muted, &mine).await.is_err());
    assert_eq!(renew(&muted, &mine, fence).await, RenewalOutcome::Gone);
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
    let task = tokio::spawn(async move { acquire(&store, &entry("new"), false).await });
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
