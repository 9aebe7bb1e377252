//! Whatever store the lock is in, and whatever database the data: a holder that was paused and overtaken changes
//! nothing, and no update is lost.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::any::Any;
use std::time::Duration;

use distlock::sql::fence::{admit_token, create_table};
use distlock::{ErrorKind, FencingToken, LockKey, Locks};
use lock_testkit::assert_exactly;
use lock_testkit::networked::Networked;
use sqlx::{AssertSqlSafe, Executor, Pool, Row};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A machine that is busy with others may be as slow as that.
const LONG: Duration = Duration::from_secs(60);
const PARAMETERS: &str = "lock_connect_timeout=30s";
/// Each contender is a client of its own.
const CONTENDERS: u64 = 4;
const ROUNDS: u64 = 8;

/// A store that is running, until this is dropped.
struct Store {
    name: String,
    url: String,
    _servers: Box<dyn Any>,
}

impl Store {
    async fn start(networked: Networked) -> Self {
        let servers = networked.start().await.unwrap();
        let url = networked.url(&servers.addresses(), PARAMETERS);
        Self { name: format!("{networked:?}"), url, _servers: Box::new(servers) }
    }

    fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/locks.db?{PARAMETERS}", folder.path().display());
        Self { name: "Sqlite".to_owned(), url, _servers: Box::new(folder) }
    }

    async fn connect(&self) -> Locks {
        distlock::connect(&self.url).await.unwrap()
    }
}

/// Where a holder is paused: before it presents its token, after its read, and before its commit.
type Pauses = [Duration; 3];

/// Of any length, and the same in each run.
fn pauses(contender: u64, round: u64) -> Pauses {
    [7, 11, 13].map(|step| Duration::from_millis((contender * 17 + round * 5) * step % 50))
}

/// An operator takes the lock away from whoever has it, until this is dropped.
fn taken_away_all_the_time(locks: Locks) -> JoinSet<()> {
    let mut operator = JoinSet::new();
    operator.spawn(async move {
        loop {
            sleep(Duration::from_millis(25)).await;
            match locks.force_release_any("counter").await {
                Err(error) if error.is_retryable() => {}
                answer => drop(answer.unwrap()),
            }
        }
    });
    operator
}

/// The tests with the data in one database: `$start` makes a pool, and what keeps its server; `$begin` begins a
/// transaction.
macro_rules! data_in {
    ($database:ty, $start:expr, $begin:literal) => {
        type Data = Pool<$database>;

        async fn run(data: &Data, sql: &str) {
            data.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
        }

        /// The count, and the token of the last who has counted.
        async fn counted(data: &Data) -> (i64, i64) {
            let row = data.fetch_one("SELECT n, fence FROM counter").await.unwrap();
            (row.get(0), row.get(1))
        }

        /// A holder that does not notice what becomes of its lock, as one that is paused, reads and writes one
        /// more. Answers whether it was admitted.
        async fn count(data: &Data, key: &LockKey, token: FencingToken, pauses: Pauses) -> bool {
            sleep(pauses[0]).await;
            loop {
                let mut tx = data.begin_with($begin).await.unwrap();
                match admit_token(&mut tx, key, token).await {
                    Ok(()) => {}
                    Err(error) if error.is_retryable() => continue,
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
                        return false;
                    }
                }
                let row = tx.fetch_one("SELECT n, fence FROM counter").await.unwrap();
                let (n, fence): (i64, i64) = (row.get(0), row.get(1));
                assert_exactly!(fence < token.as_i64(), "{token} is admitted after {fence}");
                sleep(pauses[1]).await;
                let write = format!("UPDATE counter SET n = {}, fence = {token}", n + 1);
                tx.execute(sqlx::raw_sql(AssertSqlSafe(write))).await.unwrap();
                sleep(pauses[2]).await;
                tx.commit().await.unwrap();
                return true;
            }
        }

        /// How often it was admitted.
        async fn contend(locks: Locks, data: Data, contender: u64) -> i64 {
            let (lock, mut admitted) = (locks.named("counter").unwrap(), 0);
            for round in 0..ROUNDS {
                let guard = lock.acquire_timeout(LONG).await.unwrap();
                // It may have been taken away by now.
                let Ok(token) = guard.token() else { continue };
                let pauses = pauses(contender, round);
                admitted += i64::from(count(&data, guard.key(), token, pauses).await);
            }
            admitted
        }

        async fn one_is_paused(store: &Store, data: &Data) {
            let (here, there) = (store.connect().await, store.connect().await);
            let paused = here.named("counter").unwrap().acquire().await.unwrap();
            let (key, token) = (paused.key().clone(), paused.token().unwrap());
            there.force_release_any("counter").await.unwrap();
            let next = there.named("counter").unwrap().acquire_timeout(LONG).await.unwrap();
            let before = counted(data).await.0;
            assert!(count(data, &key, next.token().unwrap(), Pauses::default()).await);
            let was_admitted = count(data, &key, token, Pauses::default()).await;
            assert_exactly!(!was_admitted, "{} admits a holder that was overtaken", store.name);
            assert_eq!(counted(data).await.0, before + 1);
        }

        async fn many_are_paused(store: &Store, data: &Data) {
            let (before, operator) = (counted(data).await.0, store.connect().await);
            let mut operator = taken_away_all_the_time(operator);
            let mut contenders = JoinSet::new();
            for contender in 0..CONTENDERS {
                contenders.spawn(contend(store.connect().await, data.clone(), contender));
            }
            let admitted: i64 = contenders.join_all().await.into_iter().sum();
            assert!(operator.try_join_next().is_none(), "the operator has failed");
            let counted = counted(data).await.0 - before;
            assert_exactly!(counted == admitted, "an update is lost, by {}", store.name);
            println!("{}: {admitted} of {} were admitted", store.name, CONTENDERS * ROUNDS);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn whoever_was_paused_changes_nothing() {
            let (data, _server) = $start.await;
            create_table(&data).await.unwrap();
            run(&data, "CREATE TABLE counter (n BIGINT NOT NULL, fence BIGINT NOT NULL)").await;
            for networked in Networked::ALL.map(Some).into_iter().chain([None]) {
                let store = match networked {
                    Some(networked) => Store::start(networked).await,
                    None => Store::sqlite(),
                };
                // Each store has tokens of its own.
                run(&data, "DELETE FROM distlock_fence").await;
                run(&data, "DELETE FROM counter").await;
                run(&data, "INSERT INTO counter VALUES (0, 0)").await;
                one_is_paused(&store, &data).await;
                many_are_paused(&store, &data).await;
            }
        }
    };
}

mod postgres {
    use super::*;
    use lock_testkit::servers::PostgresServer;
    use sqlx::postgres::PgPoolOptions;

    async fn start() -> (Data, PostgresServer) {
        let server = PostgresServer::builder().start().await.unwrap();
        let pool = PgPoolOptions::new().acquire_timeout(LONG);
        (pool.connect(server.url()).await.unwrap(), server)
    }

    data_in!(sqlx::Postgres, start(), "BEGIN");
}

mod mariadb {
    use super::*;
    use lock_testkit::servers::MariaDbServer;
    use sqlx::mysql::MySqlPoolOptions;

    async fn start() -> (Data, MariaDbServer) {
        let server = MariaDbServer::builder().start().await.unwrap();
        let pool = MySqlPoolOptions::new().acquire_timeout(LONG);
        (pool.connect(server.url()).await.unwrap(), server)
    }

    data_in!(sqlx::MySql, start(), "BEGIN");
}

mod sqlite {
    use super::*;
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    async fn start() -> (Data, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteConnectOptions::new().filename(folder.path().join("data.db"));
        let file = file.create_if_missing(true).busy_timeout(LONG);
        let pool = SqlitePoolOptions::new().acquire_timeout(LONG);
        (pool.connect_with(file).await.unwrap(), folder)
    }

    data_in!(sqlx::Sqlite, start(), "BEGIN IMMEDIATE");
}
