//! A server that is up and refuses for a while: a disk that takes no snapshot, a script that does not end, data
//! that is still being read. None of these is a loss, and nobody else gets a lock that is held.

use std::fs;
use std::time::Duration;

use lock_core::{Effect, Error, ErrorKind, LockGuard, LockState, Locks};
use lock_testkit::servers::{Data, RedisServer};
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::common::{locks, plain, run, server, until};

/// Longer than any of these refusals.
const TTL: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(20);

async fn held(locks: &Locks) -> LockGuard {
    locks.named("held").unwrap().ttl(TTL).acquire().await.unwrap()
}

/// An answer of the server that has done nothing, with its reason.
fn is_refusal(error: &Error, reason: &str) -> bool {
    let says_so = (error.kind(), error.effect()) == (ErrorKind::Unavailable, Effect::None);
    says_so && format!("{error:?}").contains(reason)
}

/// What each call says while the server refuses: an error, and nothing of a loss.
async fn is_refused(locks: &Locks, guard: &LockGuard, reason: &str) {
    let renewed = guard.renew().await.unwrap_err();
    assert!(is_refusal(&renewed, reason), "{renewed:?}");
    assert_eq!(guard.state(), LockState::AtRisk);
    let tried = locks.named("another").unwrap().try_acquire().await.unwrap_err();
    assert!(is_refusal(&tried, reason), "{tried:?}");
    // Where only writes are refused, a server can say that a lock is held.
    match locks.named("held").unwrap().try_acquire().await {
        Ok(taken) => lock_testkit::assert_exactly!(taken.is_none(), "two holders: {taken:?}"),
        Err(error) => assert!(is_refusal(&error, reason), "{error:?}"),
    }
}

/// The hold has outlived it, and the next one has the greater fence.
async fn goes_on(locks: &Locks, guard: LockGuard) {
    until("a renewal", LIMIT, async || guard.renew().await.is_ok()).await;
    let taken = locks.named("held").unwrap().try_acquire().await.unwrap();
    lock_testkit::assert_exactly!(taken.is_none(), "two holders: {taken:?}");
    let fence = guard.token().unwrap();
    guard.release().await.unwrap();
    let next = locks.named("held").unwrap().try_acquire().await.unwrap().expect("it was released");
    lock_testkit::assert_exactly!(next.token().unwrap() > fence, "a fence falls: {next:?}");
}

async fn snapshot(plain: &mut MultiplexedConnection, status: &str) {
    run(plain, &["BGSAVE"]).await;
    let status = format!("rdb_last_bgsave_status:{status}");
    until("a snapshot", LIMIT, async || {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(plain).await.unwrap();
        info.contains("rdb_bgsave_in_progress:0") && info.contains(&status)
    })
    .await;
}

/// `MISCONF`: the last snapshot could not be written, so Redis takes no writes.
#[tokio::test]
async fn a_disk_that_takes_no_snapshot_ends_no_hold() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = held(&locks).await;
    // A folder stands where the file is to be.
    let in_the_way = server.socket().unwrap().with_file_name("dump.rdb");
    fs::create_dir(&in_the_way).unwrap();
    run(&mut plain, &["CONFIG", "SET", "save", "3600 1"]).await;
    snapshot(&mut plain, "err").await;
    is_refused(&locks, &guard, "MISCONF").await;
    fs::remove_dir(&in_the_way).unwrap();
    snapshot(&mut plain, "ok").await;
    goes_on(&locks, guard).await;
}

/// `BUSY`: somebody's script runs for longer than the server likes, and all others are refused.
#[tokio::test]
async fn a_script_that_does_not_end_ends_no_hold() {
    let server = server().await;
    let (locks, mut operator) = (locks(&server).await, plain(&server).await);
    let guard = held(&locks).await;
    run(&mut operator, &["CONFIG", "SET", "lua-time-limit", "20"]).await;
    let mut other = plain(&server).await;
    let script = tokio::spawn(async move {
        let endless = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
        endless.query_async::<Value>(&mut other).await
    });
    until("the server is busy", LIMIT, async || {
        let answer = redis::cmd("PING").query_async::<Value>(&mut operator).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    is_refused(&locks, &guard, "BUSY").await;
    run(&mut operator, &["SCRIPT", "KILL"]).await;
    script.await.unwrap().unwrap_err();
    goes_on(&locks, guard).await;
}

/// `LOADING`: a server that was killed accepts connections long before it has read its data.
#[tokio::test]
async fn a_server_that_reads_its_data_ends_no_hold() {
    // A pause for each key, and a look at its connections after each few of them.
    let slow = RedisServer::builder()
        .option("key-load-delay", "1000")
        .option("loading-process-events-interval-bytes", "1024");
    let server = slow.start().await.unwrap();
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = held(&locks).await;
    let fill = "for i = 1, 2000 do redis.call('SET', 'ballast' .. i, string.rep('x', 200)) end";
    run(&mut plain, &["EVAL", fill, "0"]).await;
    run(&mut plain, &["BGREWRITEAOF"]).await;
    until("the file is rewritten", LIMIT, async || {
        let info: String =
            redis::cmd("INFO").arg("persistence").query_async(&mut plain).await.unwrap();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    })
    .await;
    let was_refused = async {
        loop {
            match guard.renew().await {
                Err(error) if is_refusal(&error, "loading the dataset") => return,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let refused = tokio::time::timeout(LIMIT, was_refused);
    let (restarted, refused) = tokio::join!(server.restart(Data::Keep), refused);
    restarted.unwrap();
    refused.expect("a call was refused while the server read its data");
    assert!(guard.token().is_ok(), "{:?}", guard.state());
    goes_on(&locks, guard).await;
}
