//! A process that holds a lock forks: what the page of guarantees says of both, and what the child may still do.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "a program that makes blocking calls has no runtime")]

use std::io::{BufRead, BufReader, Read, stdin};
use std::os::unix::process::parent_id;
use std::panic::catch_unwind;
use std::process::{Command, Stdio, exit};
use std::time::Duration;
use std::{env, thread};

use distlock::clock::{Clock, SystemClock};
use distlock::{LockGuard, Released, blocking};
use lock_testkit::networked::Networked;
use lock_testkit::preload::library;
use tempfile::TempDir;

/// A program without unsafe code cannot fork. In this one, whoever asks for its parent does.
const FORKS: &str = "#include <unistd.h>\npid_t getppid(void) { return fork(); }\n";
const URL: &str = "DISTLOCK_TEST_URL";
const TTL: Duration = Duration::from_millis(600);
/// After this a child that hangs ends.
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_forked_process_believes_too_and_can_begin_anew() {
    let folder = TempDir::new().unwrap();
    let server = Networked::Redis.start().await.unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "case_that_forks", "--ignored", "--nocapture"]);
    command.env(URL, Networked::Redis.url(&server.addresses(), ""));
    command.env("LD_PRELOAD", library(folder.path(), "forks", FORKS).unwrap());
    let mut parent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = lines.filter_map(|line| Some(line.split_once("SAID ")?.1.to_owned()));
    let child: Vec<_> = said.by_ref().take_while(|line| line != "child: the end").collect();
    drop(parent.stdin.take());
    let parent_said: Vec<_> = said.collect();
    assert!(parent.wait().unwrap().success(), "{child:?} {parent_said:?}");
    let believed = |who: &str, said: &[String]| {
        let said = said.iter().find_map(|line| line.strip_prefix(&format!("{who}: Ok")));
        said.unwrap_or_else(|| panic!("the {who} has no token: {child:?}")).to_owned()
    };
    assert_eq!(believed("child", &child), believed("parent", &parent_said));
    assert_eq!(child.last().unwrap(), "child: began anew");
}

fn say(words: &str) {
    println!("\nSAID {words}");
}

fn believes(who: &str, guard: &LockGuard) {
    say(&format!("{who}: {:?}", guard.token()));
}

#[test]
#[ignore = "a part of a_forked_process_believes_too_and_can_begin_anew, run by it as another process"]
fn case_that_forks() {
    let locks = distlock::connect_blocking(&env::var(URL).expect("of the other test")).unwrap();
    let lock = locks.named("held").unwrap().ttl(LIMIT);
    let guard = lock.acquire_blocking().unwrap();
    if parent_id() == 0 {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            end(2)
        });
        believes("child", &guard);
        end(i32::from(catch_unwind(begin_anew).is_err()));
    }
    // Until the child has ended.
    stdin().read_to_end(&mut Vec::new()).unwrap();
    believes("parent", &guard);
    assert_eq!(guard.release_blocking().unwrap(), Released::Freed);
}

fn end(status: i32) -> ! {
    say("child: the end");
    exit(status)
}

/// What was made before the fork is not used; what is made after it works.
fn begin_anew() {
    blocking::run(async {
        SystemClock::default().sleep(Duration::from_millis(50)).await;
        Ok(())
    })
    .unwrap();
    let locks = distlock::connect_blocking(&env::var(URL).unwrap()).unwrap();
    let held = locks.named("held").unwrap().try_acquire_blocking().unwrap();
    assert!(held.is_none(), "violated: the parent's lock is free for the child");
    let guard = locks.named("other").unwrap().ttl(TTL).acquire_blocking().unwrap();
    thread::sleep(3 * TTL);
    guard.token().expect("it is renewed");
    guard.release_blocking().unwrap();
    say("child: began anew");
}
