//! Fencing tokens that are compared in the transaction of the caller, on each database: each scene ends with an
//! error that says what it saw.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test target uses a part of it")]

use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, LockKey, LostReason};

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) type Scene = Result<(), String>;

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new("shop", name).unwrap()
}

/// An error if the holder was admitted although a later one was.
pub(crate) fn refused(answer: Result<(), Error>, words: &[&str]) -> Scene {
    let Err(error) = answer else {
        return Err("violated: a holder is admitted that was overtaken".to_owned());
    };
    assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken), "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    Ok(())
}

/// What holds on every database: `$start` makes a server and a pool, `$begin` begins a transaction.
macro_rules! scenes {
    ($start:path, $begin:literal) => {
        pub(crate) async fn pool() -> (Server, Pool<Database>) {
            let (server, pool) = $start().await;
            create_table(&pool).await.unwrap();
            // Anyone may call it again.
            create_table(&pool).await.unwrap();
            run(&pool, "CREATE TABLE data (n BIGINT NOT NULL, fence BIGINT NOT NULL)").await;
            run(&pool, "INSERT INTO data VALUES (0, 0)").await;
            (server, pool)
        }

        pub(crate) async fn run(pool: &Pool<Database>, sql: &str) {
            pool.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
        }

        pub(crate) async fn begin(pool: &Pool<Database>) -> Transaction {
            pool.begin_with($begin).await.unwrap()
        }

        /// The number, and the token of who has written it.
        pub(crate) async fn data(tx: &mut Transaction) -> (i64, i64) {
            let row = tx.fetch_one("SELECT n, fence FROM data").await.unwrap();
            (row.get(0), row.get(1))
        }

        pub(crate) async fn write(tx: &mut Transaction, n: i64, fence: i64) {
            let write = format!("UPDATE data SET n = {n}, fence = {fence}");
            tx.execute(sqlx::raw_sql(AssertSqlSafe(write))).await.unwrap();
        }

        /// One transaction that does nothing else.
        pub(crate) async fn admitted(
            pool: &Pool<Database>,
            name: &str,
            fence: u64,
        ) -> Result<(), Error> {
            let mut tx = begin(pool).await;
            let answer = admit_token(&mut tx, &key(name), token(fence)).await;
            match answer {
                Ok(()) => tx.commit().await.unwrap(),
                Err(_) => tx.rollback().await.unwrap(),
            }
            answer
        }

        /// A holder is refused after a later one that has only read, and names are told apart.
        pub(crate) async fn whoever_was_overtaken_is_refused() -> Scene {
            let (_server, pool) = pool().await;
            admitted(&pool, "a", 10).await.unwrap();
            admitted(&pool, "a", 10).await.unwrap();
            refused(admitted(&pool, "a", 9).await, &["9", "10", "shop/a"])?;
            admitted(&pool, "a", 12).await.unwrap();
            refused(admitted(&pool, "a", 10).await, &["10", "12"])?;
            for name in ["A", "a ", &"\u{1f512}".repeat(128)] {
                let other = admitted(&pool, name, 1).await;
                other.map_err(|error| format!("tokens of two names are compared: {error}"))?;
            }
            // What was rolled back has not been.
            let mut tx = begin(&pool).await;
            admit_token(&mut tx, &key("a"), token(20)).await.unwrap();
            tx.rollback().await.unwrap();
            admitted(&pool, "a", 12).await.unwrap();
            Ok(())
        }

        /// Whether the holder before has raised the token in the same transaction, or in an earlier one.
        pub(crate) async fn the_next_holder_waits_and_sees_what_was_committed() -> Scene {
            let (_server, pool) = pool().await;
            for (fence, has_raised) in [(10, false), (20, true)] {
                if has_raised {
                    admitted(&pool, "a", fence).await.unwrap();
                }
                let mut tx = begin(&pool).await;
                admit_token(&mut tx, &key("a"), token(fence)).await.unwrap();
                let next = tokio::spawn({
                    let pool = pool.clone();
                    async move {
                        let mut tx = begin(&pool).await;
                        admit_token(&mut tx, &key("a"), token(fence + 1)).await.unwrap();
                        let (seen, _) = data(&mut tx).await;
                        tx.commit().await.unwrap();
                        seen
                    }
                });
                tokio::time::sleep(Duration::from_millis(400)).await;
                if next.is_finished() {
                    let seen = "violated: a later holder was admitted before the end of";
                    return Err(format!("{seen} {fence}"));
                }
                let number = i64::try_from(fence).unwrap();
                write(&mut tx, number, number).await;
                tx.commit().await.unwrap();
                let seen = tokio::time::timeout(LONG, next).await.unwrap().unwrap();
                if seen != number {
                    return Err(format!("violated: a stale read: {seen} and not {number}"));
                }
            }
            Ok(())
        }

        /// Writes one more than it has read, when all have begun; answers whether it was admitted. An error if a
        /// later holder was before.
        async fn count(
            pool: Pool<Database>,
            name: String,
            fence: u64,
            all: Arc<Barrier>,
        ) -> Result<bool, String> {
            let mut tx = begin(&pool).await;
            all.wait().await;
            while let Err(error) = admit_token(&mut tx, &key(&name), token(fence)).await {
                if !error.is_retryable() {
                    return refused(Err(error), &[]).map(|()| false);
                }
                drop(tx);
                tx = begin(&pool).await;
            }
            let (seen, by) = data(&mut tx).await;
            let fence = i64::try_from(fence).unwrap();
            if by > fence {
                return Err(format!("violated: {fence} is admitted after {by}"));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            write(&mut tx, seen + 1, fence).await;
            tx.commit().await.unwrap();
            Ok(true)
        }

        /// In any order, each of them reads and writes as if alone, or not at all.
        pub(crate) async fn no_update_of_a_holder_is_lost() -> Scene {
            let (_server, pool) = pool().await;
            // Each number once, not in order.
            let fences: Vec<u64> = (1..=32).map(|number| 1 + number * 19 % 32).collect();
            counted(&pool, "a", &fences, 1).await?;
            refused(admitted(&pool, "a", 31).await, &["32"])
        }

        /// `together`: how many begin before the first of them presents its token.
        async fn counted(
            pool: &Pool<Database>,
            name: &str,
            fences: &[u64],
            together: usize,
        ) -> Scene {
            let (before, _) = data(&mut begin(pool).await).await;
            let (mut holders, all) = (JoinSet::new(), Arc::new(Barrier::new(together)));
            for fence in fences {
                holders.spawn(count(pool.clone(), name.to_owned(), *fence, Arc::clone(&all)));
            }
            let done = tokio::time::timeout(LONG, holders.join_all()).await.unwrap();
            let done: Vec<bool> = done.into_iter().collect::<Result<_, _>>()?;
            let admitted = done.iter().filter(|done| **done).count();
            let counted = data(&mut begin(pool).await).await.0 - before;
            if counted != i64::try_from(admitted).unwrap() {
                return Err(format!("violated: {admitted} have counted {counted}"));
            }
            Ok(())
        }

        pub(crate) async fn old_tokens_can_be_forgotten() -> Scene {
            let (_server, pool) = pool().await;
            admitted(&pool, "a", 10).await.unwrap();
            admitted(&pool, "b", 10).await.unwrap();
            assert_eq!(forget(&pool, LONG).await.unwrap(), 0);
            let age = format!("UPDATE distlock_fence SET raised = {LONG_AGO} WHERE fence = 10");
            run(&pool, &age).await;
            admitted(&pool, "b", 10).await.unwrap();
            admitted(&pool, "b", 11).await.unwrap();
            let forgotten = forget(&pool, LONG).await.unwrap();
            if forgotten != 1 {
                return Err(format!("{forgotten} tokens are forgotten, and one was old"));
            }
            refused(admitted(&pool, "b", 10).await, &["11"])?;
            admitted(&pool, "a", 1).await.unwrap();
            Ok(())
        }
    };
}

/// Where writers do not wait for each other anyway.
macro_rules! parallel {
    () => {
        pub(crate) async fn transactions_of_one_holder_do_not_wait_for_each_other() -> Scene {
            let (_server, pool) = pool().await;
            admitted(&pool, "a", 10).await.unwrap();
            let mut open = begin(&pool).await;
            admit_token(&mut open, &key("a"), token(10)).await.unwrap();
            let other = tokio::time::timeout(LONG / 3, admitted(&pool, "a", 10)).await;
            match other {
                Ok(answer) => answer.unwrap(),
                Err(_) => return Err("a transaction waits for another of its holder".to_owned()),
            }
            open.commit().await.unwrap();
            Ok(())
        }
    };
}

/// Where the lock is in the database of the data.
macro_rules! commits {
    () => {
        /// The locks of one client, which thinks for long that it has what it was granted.
        pub(crate) async fn locks(server: &Server) -> Locks {
            let backend = lock_sql::connect(&locks_url(server)).await.unwrap();
            Locks::builder(backend).default_ttl(LONG).build().unwrap()
        }

        /// The lease of the lock has ended, and its holder does not notice.
        pub(crate) async fn end_all_leases(pool: &Pool<Database>) {
            run(pool, &format!("UPDATE distlock SET expires = {ENDED}")).await;
        }

        /// Writes one more than it has read.
        pub(crate) async fn counted_by(pool: &Pool<Database>, held: &Held) -> Result<(), Error> {
            let mut tx = begin(pool).await;
            let (n, fence) = data(&mut tx).await;
            write(&mut tx, n + 1, fence).await;
            commit(tx, held).await
        }

        pub(crate) async fn n(pool: &Pool<Database>) -> i64 {
            data(&mut begin(pool).await).await.0
        }

        pub(crate) async fn a_commit_after_a_later_grant_is_refused() -> Scene {
            let (server, pool) = pool().await;
            let (here, there) = (locks(&server).await, locks(&server).await);
            let paused = here.named("x").unwrap().acquire().await.unwrap();
            counted_by(&pool, &paused).await.unwrap();
            // As long as nobody has taken it, it is still the last holder.
            end_all_leases(&pool).await;
            counted_by(&pool, &paused).await.unwrap();
            assert_eq!(n(&pool).await, 2);
            end_all_leases(&pool).await;
            let next = there.named("x").unwrap().acquire_timeout(LONG).await.unwrap();
            refused(counted_by(&pool, &paused).await, &["x", "rolled back"])?;
            assert_eq!(n(&pool).await, 2);
            counted_by(&pool, &next).await.unwrap();
            assert_eq!(n(&pool).await, 3);
            Ok(())
        }

        pub(crate) async fn an_earlier_hold_of_the_owner_is_refused() -> Scene {
            let (server, pool) = pool().await;
            let held = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
            run(&pool, "UPDATE distlock SET fence = fence + 1000").await;
            refused(counted_by(&pool, &held).await, &["rolled back"])
        }

        /// The row has the last token of the block.
        pub(crate) async fn every_holder_of_a_cohort_commits() -> Scene {
            let (server, pool) = pool().await;
            let lock = locks(&server).await.named("x").unwrap().cohort(4);
            let mut holders = JoinSet::new();
            for _ in 0..8 {
                let (lock, pool) = (lock.clone(), pool.clone());
                holders.spawn(async move {
                    let held = lock.acquire_timeout(LONG).await.unwrap();
                    counted_by(&pool, &held).await
                });
            }
            for committed in holders.join_all().await {
                committed.map_err(|error| format!("a holder in a cohort is refused: {error}"))?;
            }
            assert_eq!(n(&pool).await, 8);
            Ok(())
        }
    };
}

/// A database that is a server: what starts it, and what its connections are made by.
macro_rules! server {
    ($server:ty, $options:ty) => {
        pub(crate) type Server = $server;

        async fn start() -> (Server, Pool<Database>) {
            let server = <$server>::builder().start().await.unwrap();
            let pool = connect(server.url()).await;
            (server, pool)
        }

        pub(crate) async fn connect(url: &str) -> Pool<Database> {
            let pool = <$options>::new().max_connections(8).acquire_timeout(LONG);
            pool.connect(url).await.unwrap()
        }

        pub(crate) fn locks_url(server: &Server) -> String {
            server.url().to_owned()
        }
    };
}

/// For the scenes that hold on every database, behind `$more`.
macro_rules! with_common {
    ($do:ident! { $($more:tt)* }) => {
        $do! {
            $($more)*
            whoever_was_overtaken_is_refused,
            the_next_holder_waits_and_sees_what_was_committed,
            no_update_of_a_holder_is_lost,
            old_tokens_can_be_forgotten,
            a_commit_after_a_later_grant_is_refused,
            an_earlier_hold_of_the_owner_is_refused,
            every_holder_of_a_cohort_commits,
        }
    };
}

/// The scenes by their names.
macro_rules! by_name {
    ($($scene:ident,)*) => {
        pub(crate) async fn scene(name: &str) -> Scene {
            match name {
                $(stringify!($scene) => $scene().await,)*
                other => panic!("no scene {other}"),
            }
        }
    };
}

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
