//! The statements, on real files, with clocks that the test sets; other writers, failing commits,
//! late replies, lost files.

use std::sync::atomic::{AtomicI64, Ordering};

use lock_core::{ErrorKind, LockAdmin as _, LockKey, Released, Seen, Victim};
use lock_testkit::warnings::Warnings;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;

use crate::engine::renewals::RenewalSender as _;
use crate::engine::table::row::OwnerSecret;
use crate::engine::table::settings::BATCH;
use crate::engine::table::sweep::Sweeper;
use crate::engine::tests::{
    Bench, START, TTL, acquire, entry, granted, held, left, look, release, renew, shared,
};
use crate::engine::wire::connections::Connections;
use crate::sqlite::clocks::MachineClocks;
use crate::sqlite::*;

/// One machine: its boot, and its two clocks.
#[derive(Debug)]
struct Machine {
    boot_id: &'static str,
    boot: AtomicI64,
    wall: AtomicI64,
}

impl Machine {
    fn new(boot_id: &'static str, boot: i64, wall: i64) -> Arc<Self> {
        Arc::new(Self { boot_id, boot: boot.into(), wall: wall.into() })
    }
}

impl MachineClocks for Machine {
    fn boot_id(&self) -> &str {
        self.boot_id
    }

    fn boot_us(&self) -> i64 {
        self.boot.load(Ordering::Relaxed)
    }

    fn wall_us(&self) -> i64 {
        self.wall.load(Ordering::Relaxed)
    }
}

type SqliteStore = Arc<SqlStore<SqliteFile>>;

struct File(TempDir);

#[async_trait]
impl Bench for File {
    type Of = SqliteFile;

    async fn start() -> Self {
        Self(TempDir::new().unwrap())
    }

    async fn at(&self, micros: i64) -> SqliteStore {
        self.on(&Machine::new("a", micros, micros)).await
    }

    async fn run(&self, sql: &str) {
        let mut connection = self.connection().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let names = "SELECT name FROM distlock WHERE name <> char(1) || 'fence' ORDER BY name";
        sqlx::query_scalar(names).fetch_all(&mut self.connection().await).await.unwrap()
    }
}

impl File {
    fn file(&self, machine: &Arc<Machine>) -> Arc<SqliteFile> {
        let target = SqliteTarget {
            path: self.0.path().join("locks.db"),
            may_create: true,
            use_wal: true,
            options: SqliteConnectOptions::new(),
        };
        let time = Arc::clone(machine) as Arc<dyn MachineClocks>;
        Arc::new(SqliteFile::new(&target, &Settings::default(), time))
    }

    async fn on(&self, machine: &Arc<Machine>) -> SqliteStore {
        let store = on(&self.file(machine));
        store.probe(TTL).await.unwrap();
        store
    }

    async fn store(&self) -> SqliteStore {
        self.at(START * 1_000_000).await
    }

    async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.0.path().join("locks.db"));
        sqlx::ConnectOptions::connect(&options).await.unwrap()
    }
}

shared!(File);

#[tokio::test]
async fn rows_that_cannot_be_removed_are_one_warning() {
    const KEEP: &str =
        "CREATE TRIGGER keep BEFORE DELETE ON distlock BEGIN SELECT RAISE(ABORT, 'kept'); END";
    let file = File::start().await;
    let store = file.store().await;
    let (sweeper, warnings) =
        (Sweeper::new(Arc::clone(&store), Duration::ZERO), Warnings::default());
    let _seen = tracing::subscriber::set_default(warnings.clone());
    let sweep = async || {
        sweeper.ended(&sweeper.sweep(Duration::ZERO).await);
        warnings.so_far().len()
    };
    for round in 1..3 {
        let mine = entry("old");
        granted(acquire(&store, &mine, false).await);
        assert_eq!(release(&store, &mine).await.unwrap(), Released::Freed);
        file.run(KEEP).await;
        assert_eq!([sweep().await, sweep().await], [round, round]);
        file.run("DROP TRIGGER keep").await;
        assert_eq!(sweep().await, round);
        assert!(file.names().await.is_empty(), "it is swept");
    }
}

fn admin(store: &SqliteStore) -> DialectBackend<SqliteFile> {
    DialectBackend::new(Arc::clone(store), TTL)
}

const WALL: i64 = 1_700_000_000_000_000;

#[tokio::test]
async fn a_restart_of_the_machine_ends_all_leases() {
    let file = File::start().await;
    let old = file.on(&Machine::new("a", 1_000_000_000, WALL)).await;
    // The clock starts again, so that the old end of the lease lies far in the future.
    let after = Machine::new("b", 5_000_000, WALL + 10_000_000);
    let new = file.on(&after).await;
    let (survivor, taker) = (entry("x"), entry("x"));
    let first = granted(acquire(&old, &survivor, false).await);
    assert_eq!(left(&new, &survivor, None).await, None);
    assert_eq!(renew(&new, &survivor, None).await, RenewalOutcome::Gone);
    assert!(admin(&new).inspect(&LockKey::new("", "x").unwrap()).await.unwrap().is_none());
    assert_eq!(look(&new, "x").await.unwrap(), Seen::Free { floor: Some(first) });
    assert!(granted(acquire(&new, &taker, true).await) > first);
}

/// Two virtual machines, or a file that was copied while it was in use: what was granted since we
/// were started is not of an earlier boot.
#[tokio::test]
async fn the_running_lease_of_another_machine_is_not_taken() {
    let file = File::start().await;
    let theirs = file.on(&Machine::new("a", 1_000_000_000, WALL)).await;
    // Its lease is long over by our own clock, which says nothing.
    let ours = file.on(&Machine::new("b", 1_100_000_000, WALL)).await;
    let (holder, other, key) = (entry("x"), entry("x"), LockKey::new("", "x").unwrap());
    granted(acquire(&theirs, &holder, false).await);
    for polling in [false, true] {
        let error = acquire(&ours, &other, polling).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains("another machine"), "{error}");
    }
    let error = look(&ours, "x").await.unwrap_err();
    assert!(error.to_string().contains("another machine"), "{error}");
    // The sweep leaves it alone, too.
    Sweeper::new(Arc::clone(&ours), Duration::ZERO).sweep(Duration::ZERO).await.unwrap();
    assert!(left(&theirs, &holder, None).await.is_some());
    let seen = admin(&ours).inspect(&key).await.unwrap().unwrap().holder.unwrap();
    assert_eq!((seen.label.as_deref(), seen.expires_in), (Some("somebody"), None));
    assert_eq!(admin(&ours).list("", "").await.unwrap().len(), 1);
    // The way out that the error names.
    assert_eq!(admin(&ours).force_release(&key, &Victim::Anybody).await.unwrap(), Released::Freed);
    assert!(matches!(look(&ours, "x").await.unwrap(), Seen::Free { floor: Some(_) }));
    granted(acquire(&ours, &other, true).await);
    let error = acquire(&theirs, &holder, false).await.unwrap_err();
    assert!(error.to_string().contains("another machine"), "{error}");
    assert_eq!(release(&ours, &other).await.unwrap(), Released::Freed);
    granted(acquire(&theirs, &holder, false).await);
}

/// A machine without a battery for its clock starts in the past, until it has asked others for the time.
#[tokio::test]
async fn a_clock_that_is_not_set_yet_after_a_start_delays_only() {
    let file = File::start().await;
    let old = file.on(&Machine::new("a", 1_000_000_000, WALL)).await;
    let (dead, other) = (entry("x"), entry("x"));
    let first = granted(acquire(&old, &dead, false).await);
    let started = Machine::new("b", 5_000_000, WALL - 86_400_000_000);
    let new = file.on(&started).await;
    let error = acquire(&new, &other, false).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("not set yet"), "{error}");
    started.wall.store(WALL + 10_000_000, Ordering::Relaxed);
    assert!(granted(acquire(&new, &other, false).await) > first);
}

#[tokio::test]
async fn a_full_batch_is_one_statement_that_uses_the_key() {
    let file = File::start().await;
    let store = file.store().await;
    let sql =
        format!("EXPLAIN QUERY PLAN {}", store.statement(StatementName::RenewBatch).bare().sql);
    let plan: Vec<String> = sqlx::query(sqlx::AssertSqlSafe(sql))
        .fetch_all(&mut file.connection().await)
        .await
        .unwrap()
        .iter()
        .map(|row| sqlx::Row::get(row, 3))
        .collect();
    assert!(plan.iter().any(|step| step.contains("PRIMARY KEY")), "{plan:?}");
    let entries: Vec<_> = (0..BATCH).map(|n| entry(&format!("n{n:04}"))).collect();
    let dues: Vec<_> = entries.iter().map(|entry| DueRenewal { entry, fence: None }).collect();
    assert_eq!(
        store.renew_batch(&dues, TTL).await.unwrap(),
        vec![RenewalOutcome::Gone; dues.len()]
    );
}

#[tokio::test]
async fn a_commit_that_fails_is_no_grant() {
    let file = File::start().await;
    let store = file.store().await;
    // A deferred foreign key is judged at the commit, after the row of RETURNING was read.
    file.run(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY); \
         CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED); \
         CREATE TRIGGER spoil AFTER INSERT ON distlock BEGIN INSERT INTO child VALUES (1); END",
    )
    .await;
    let error = acquire(&store, &entry("x"), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(file.names().await.is_empty());
    file.run("DROP TRIGGER spoil").await;
    granted(acquire(&store, &entry("x"), false).await);
}

#[tokio::test]
async fn an_acquire_without_an_answer_is_undone_by_the_release_wherever_it_is() {
    let file = File::start().await;
    let (store, mut other) = (file.store().await, file.connection().await);
    let key = LockKey::new("", "x").unwrap();
    // All connections are open from here on, or a late opening would be all that is tested.
    let first = entry("x");
    granted(acquire(&store, &first, false).await);
    assert_eq!(release(&store, &first).await.unwrap(), Released::Freed);
    for round in 0..40 {
        // Sometimes the database is locked, for less time than SQLite itself waits: then the
        // statement that no caller waits for any more is executed when the lock goes.
        let (time, locked) = (Duration::from_micros(round % 5 * 400), round % 4 != 0);
        if locked {
            sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
        }
        let mine = entry("x");
        let owner = OwnerSecret(mine.owner.0.clone());
        let late = OwnRow { call_timeout: time, owner, ..entry("x") };
        let _ = acquire(&store, &late, false).await;
        let unlock = async {
            if locked {
                tokio::time::sleep(Duration::from_millis(2)).await;
                sqlx::query("COMMIT").execute(&mut other).await.unwrap();
            }
        };
        let releasing = async { release(&store, &mine).await.unwrap() };
        tokio::join!(releasing, unlock);
        // The connection executes in order: nothing of ours can come after the release.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let holder = admin(&store).inspect(&key).await.unwrap();
        assert_eq!(holder, None, "round {round}: given up after {time:?}, locked: {locked}");
    }
}

#[tokio::test]
async fn a_deleted_or_replaced_file_ends_the_holds_and_is_made_anew() {
    let file = File::start().await;
    let old = file.store().await;
    let mine = entry("x");
    let first = granted(acquire(&old, &mine, false).await);
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let _ = std::fs::remove_file(file.0.path().join(name));
    }
    let new = file.at(START * 1_000_000 + 1).await;
    let second = granted(acquire(&new, &entry("x"), false).await);
    assert!(second > first, "the wall clock carries the fence over a loss of the file");
    assert_eq!(renew(&old, &mine, None).await, RenewalOutcome::Gone);
    held(acquire(&old, &OwnRow { owner: OwnerSecret(mine.owner.0), ..entry("x") }, false).await);
    // The last connections tidy up: the log is in the file then.
    admin(&old).close().await.unwrap();
    admin(&new).close().await.unwrap();
    assert_eq!(admin(&new).ping().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(!file.0.path().join("locks.db-wal").exists());
}

#[tokio::test]
async fn a_renewal_waits_for_one_try_at_most() {
    let file = File::start().await;
    let file = file.file(&Machine::new("a", START, WALL));
    let both = Arc::new(FileConnections::new(&file));
    let connections = Arc::clone(&both) as Arc<dyn Connections>;
    let store = Arc::new(SqlStore { dialect: file, connections, clock: SystemClock::default() });
    let mine = entry("held");
    granted(acquire(&store, &mine, false).await);
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let occupied = both.writer.occupy().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50 {
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        tasks.spawn(async move {
            granted(acquire(&store, &entry(&n.to_string()), false).await);
            done.lock().unwrap().push("try");
        });
    }
    // All of them wait now; then comes the renewal.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (renewing, renewed) = (Arc::clone(&store), Arc::clone(&done));
    tasks.spawn(async move {
        assert_eq!(renew(&renewing, &mine, None).await, RenewalOutcome::Renewed);
        renewed.lock().unwrap().push("renewal");
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(occupied);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let done = done.lock().unwrap();
    let place = done.iter().position(|what| *what == "renewal").unwrap();
    assert!(place <= 2, "{place} tries were ahead of the renewal");
}
