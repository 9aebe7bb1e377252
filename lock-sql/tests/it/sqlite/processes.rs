//! Several processes on one file: this program starts itself.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_core::{Clock, ErrorKind, LockGuard, Locks, SystemClock};
use tempfile::TempDir;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn start(case: &str, folder: &Path, settings: &[(&str, u64)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", case, "--ignored", "--nocapture"]);
    command.env("LOCK_SQL_URL", format!("sqlite://{}", folder.join("locks.db").display()));
    for (name, value) in settings {
        command.env(name, value.to_string());
    }
    command.stdout(Stdio::piped()).spawn().unwrap()
}

async fn locks() -> Locks {
    let url = std::env::var("LOCK_SQL_URL").expect("started by another test");
    Locks::new(lock_sql::connect(&url).await.unwrap())
}

/// One hold. All times are of the machine's boot-time clock, which all processes share.
struct Hold {
    granted: u64,
    /// When the holder stopped to believe in it: it asked for the release, or its validity ended.
    end: u64,
}

#[test]
fn processes_exclude_each_other_and_fences_rise() {
    let (processes, tasks, rounds) = (
        number("LOCK_SQL_PROCESSES", 8),
        number("LOCK_SQL_TASKS", 8),
        number("LOCK_SQL_ROUNDS", 40),
    );
    let folder = TempDir::new().unwrap();
    let settings = [("LOCK_SQL_TASKS", tasks), ("LOCK_SQL_ROUNDS", rounds)];
    let clock = SystemClock::default();
    let begin = clock.now();
    // All of them find no file, and make it together.
    let children: Vec<_> = (0..processes)
        .map(|_| start("sqlite::processes::case_contend", folder.path(), &settings))
        .collect();
    let mut holds = BTreeMap::new();
    for mut child in children {
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some(hold) = line.split("HOLD ").nth(1) else { continue };
            let fields: Vec<u64> = hold.split(' ').map(|field| field.parse().unwrap()).collect();
            let hold = Hold { granted: fields[1], end: fields[2] };
            assert!(holds.insert(fields[0], hold).is_none(), "the fence {} twice", fields[0]);
        }
        assert!(child.wait().unwrap().success());
    }
    let took = clock.now().since(begin);
    let expected = processes * tasks * rounds;
    println!("{expected} acquisitions of {processes} processes with {tasks} tasks in {took:.1?}");
    assert_eq!(holds.len() as u64, expected);
    // In the order of the fences, each hold begins after the one before has ended.
    let mut before = Hold { granted: 0, end: 0 };
    for (fence, hold) in holds {
        assert!(before.end <= hold.granted, "overlap at fence {fence}");
        assert!(hold.granted <= hold.end);
        before = hold;
    }
    // A read-modify-write of a plain file under the lock lost nothing.
    let text = std::fs::read_to_string(folder.path().join("counter")).unwrap();
    assert_eq!(text.parse::<u64>().unwrap(), expected);
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let left = runtime.block_on(async {
        Locks::new(lock_sql::connect(&url).await.unwrap()).list("").await.unwrap()
    });
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// The lock, on a machine that may be too busy for a call to end in time.
async fn at_last(locks: &Locks) -> LockGuard {
    loop {
        match locks.named("contended").unwrap().acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of processes_exclude_each_other_and_fences_rise, run by it as another process"]
async fn case_contend() {
    let locks = locks().await;
    let url = std::env::var("LOCK_SQL_URL").unwrap();
    let counter = Path::new(url.strip_prefix("sqlite://").unwrap()).with_file_name("counter");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..number("LOCK_SQL_TASKS", 0) {
        let (locks, counter) = (locks.clone(), counter.clone());
        tasks.spawn(async move {
            for _ in 0..number("LOCK_SQL_ROUNDS", 0) {
                let guard = at_last(&locks).await;
                let granted = locks.clock().now();
                let seen = std::fs::read_to_string(&counter).unwrap_or_else(|_| "0".into());
                tokio::task::yield_now().await;
                let next = seen.parse::<u64>().unwrap() + 1;
                std::fs::write(&counter, next.to_string()).unwrap();
                let fence = guard.token().unwrap();
                let end = locks.clock().now().min(guard.valid_until());
                guard.release().await.unwrap();
                println!("\nHOLD {fence} {} {}", granted.as_nanos(), end.as_nanos());
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert!(locks.list("other").await.unwrap().is_empty());
    // On a busy machine a request may have been given up, and is in doubt for a ttl.
    locks.close(Duration::from_secs(60)).await.unwrap();
}
