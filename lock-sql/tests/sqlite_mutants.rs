//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features sqlite --test sqlite_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod fence_scenes;
mod looks;
mod mutants;
mod sqlite_harness;

use std::process::{Command, ExitCode};
use std::time::Duration;

use lock_core::Locks;

/// Tells a child process on which file to try to take the lock of [`removed_log`].
const NEWCOMER: &str = "LOCK_SQL_NEWCOMER";

/// A lock that was granted some time ago is not granted again after the log was removed.
async fn removed_log() -> Result<(), String> {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    let url = format!("sqlite://{}", file.display());
    let locks = Locks::new(lock_sql::connect(&url).await.unwrap());
    let lock = locks.named("x").unwrap().ttl(Duration::from_secs(60));
    let _held = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for end in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", file.display())).unwrap();
    }
    // A process of its own, since SQLite shares much within one.
    let newcomer = Command::new(std::env::current_exe().unwrap()).env(NEWCOMER, url).status();
    match newcomer.unwrap().code() {
        Some(0) => Ok(()),
        Some(1) => {
            Err("violated: two holders: a lock is granted again after its log was removed".into())
        }
        other => panic!("the newcomer ended with {other:?}"),
    }
}

/// 1 if the lock is granted.
fn newcomer(url: &str) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let granted = runtime.block_on(async {
        let locks = Locks::new(lock_sql::connect(url).await.unwrap());
        locks.named("x").unwrap().try_acquire().await.unwrap().is_some()
    });
    ExitCode::from(u8::from(granted))
}

fn main() -> ExitCode {
    if let Ok(url) = std::env::var(NEWCOMER) {
        return newcomer(&url);
    }
    mutants::main("sqlite", sqlite_harness::main, async |scene| match scene {
        "late_requests" | "looks" => {
            let folder = tempfile::TempDir::new().unwrap();
            let url = format!("sqlite://{}", folder.path().join("locks.db").display());
            match scene {
                "looks" => looks::looks(&url).await,
                _ => mutants::late_requests(&url).await,
            }
        }
        "removed_log" => removed_log().await,
        other => fence_scenes::sqlite::scene(other).await,
    })
}
