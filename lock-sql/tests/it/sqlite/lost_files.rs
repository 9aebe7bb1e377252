//! The file, or one of the two that SQLite keeps next to it, is removed or replaced while several
//! processes use it. This program starts itself as those processes.

#![allow(
    clippy::disallowed_methods,
    reason = "no runtime stands still: the other processes have their own"
)]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, Clock, LockBackend, LockGuard, LockKey, Locks, OsRng, OwnerId,
    Renewal, SystemClock,
};
use lock_sql::SqlBackend;
use tempfile::TempDir;

/// How often files are removed while they are opened.
const ROUNDS: usize = 100;
/// For how long a process writes and reads while files are removed.
const STIRRED: Duration = Duration::from_millis(60);
/// How long it may take until the file itself shows what was granted.
const SAVED: Duration = Duration::from_millis(1500);
const TTL: Duration = Duration::from_secs(30);
/// The ttl of a guard, which renews it every third of it.
const HELD: Duration = Duration::from_secs(6);

/// Another process with its own stores on the file.
struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(folder: &TempDir) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sqlite::lost_files::case_peer", "--ignored", "--nocapture"]);
        command
            .env("LOCK_SQL_URL", format!("sqlite://{}", folder.path().join("locks.db").display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, orders, answers: BufReader::new(answers).lines() }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let line =
            self.answers.find_map(|line| Some(line.unwrap().split_once("ANSWER ")?.1.into()));
        line.unwrap_or_else(|| panic!("the process has ended: {:?}", self.child.wait()))
    }

    /// An order to one of its stores, and the answer.
    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// The fence of a lock that is granted.
    fn granted(&mut self, order: &str) -> u64 {
        let answer = self.ask(order);
        let fence = answer.strip_prefix("granted ").map(|fence| fence.parse().unwrap());
        fence.unwrap_or_else(|| panic!("{order}: {answer}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Client {
    stores: HashMap<String, SqlBackend>,
    claims: HashMap<String, Box<dyn Claim>>,
    guards: HashMap<String, LockGuard>,
}

impl Client {
    async fn store(&mut self, name: &str) -> SqlBackend {
        if let Some(store) = self.stores.get(name) {
            return store.clone();
        }
        let url = std::env::var("LOCK_SQL_URL").expect("started by another test");
        let store = lock_sql::connect(&url).await.unwrap();
        self.stores.insert(name.to_owned(), store.clone());
        store
    }

    async fn claim(&mut self, store: &str, name: &str) -> &mut Box<dyn Claim> {
        let store = self.store(store).await;
        self.claims.entry(name.to_owned()).or_insert_with(|| {
            let owner = OwnerId::generate(&OsRng).unwrap();
            let request = ClaimRequest::new(LockKey::new("", name).unwrap(), owner, TTL);
            store.claim(request.with_call_timeout(TTL / 6)).unwrap()
        })
    }

    /// `order`: what to do with which lock over which store. A call that fails is made again, as the
    /// core does, until it has an answer.
    async fn execute(&mut self, order: &str) -> String {
        let words: Vec<_> = order.split(' ').collect();
        let [what, name, store] = words[..] else { panic!("{order}") };
        match what {
            "open" => {
                self.store(store).await;
                "open".into()
            }
            "hold" => {
                let locks = Locks::new(self.store(store).await);
                let lock = locks.named(name).unwrap().ttl(HELD);
                let guard = lock.acquire().await.unwrap();
                let fence = guard.token().unwrap();
                self.guards.insert(name.to_owned(), guard);
                format!("granted {fence}")
            }
            "free" => {
                let guard = self.guards.remove(name).unwrap();
                format!("{:?}", guard.release().await.unwrap())
            }
            "stir" => {
                self.stir(name, store).await;
                "stirred".into()
            }
            "told" => {
                let guard = &self.guards[name];
                let until = guard.valid_until();
                let reason = guard.lost().await;
                let in_time = SystemClock::default().now() < until;
                format!("lost {reason:?} {}", if in_time { "in time" } else { "late" })
            }
            _ => loop {
                match self.call(what, name, store).await {
                    Ok(answer) => return answer,
                    Err(error) if error.is_retryable() => {
                        println!("{order}: {error}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err(error) => return format!("error {:?}: {error}", error.kind()),
                }
            },
        }
    }

    /// Writes and reads at the same time for a moment, whatever comes of it.
    async fn stir(&mut self, name: &str, store: &str) {
        let store = self.store(store).await;
        let key = LockKey::new("", name).unwrap();
        let until = SystemClock::default().now() + STIRRED;
        let writes = async {
            while SystemClock::default().now() < until {
                let owner = OwnerId::generate(&OsRng).unwrap();
                let mut claim = store.claim(ClaimRequest::new(key.clone(), owner, TTL)).unwrap();
                let _ = claim.try_acquire().await;
                let _ = claim.release().await;
            }
        };
        let reads = async {
            while SystemClock::default().now() < until {
                let _ = store.look(std::slice::from_ref(&key)).await;
            }
        };
        tokio::join!(writes, reads);
    }

    async fn call(&mut self, what: &str, name: &str, store: &str) -> lock_core::Result<String> {
        let claim = self.claim(store, name).await;
        Ok(match what {
            "take" => match claim.try_acquire().await? {
                Attempt::Granted { token, .. } => format!("granted {token}"),
                _ => "busy".into(),
            },
            "renew" => alive(claim.renew().await?),
            "check" => alive(claim.check().await?),
            "release" => format!("{:?}", claim.release().await?),
            other => panic!("{other}"),
        })
    }
}

fn alive(renewal: Renewal) -> String {
    if matches!(renewal, Renewal::Alive { .. }) { "alive".into() } else { "lost".into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other processes of the tests here"]
async fn case_peer() {
    let mut client = Client::default();
    for order in std::io::stdin().lines() {
        let answer = client.execute(&order.unwrap()).await;
        println!("\nANSWER {answer}");
    }
}

fn remove(folder: &TempDir, ends: &[&str]) {
    for end in ends {
        fs::remove_file(folder.path().join(format!("locks.db{end}"))).unwrap();
    }
}

/// The holder keeps its lock, the newcomer does not get it, and both see what the other one writes
/// from then on.
fn nothing_is_lost_without(ends: &[&str]) {
    let folder = TempDir::new().unwrap();
    let (mut old, mut new) = (Peer::start(&folder), Peer::start(&folder));
    let first = old.granted("take x a");
    // It has looked at a lock: both of its connections are open.
    assert_eq!(old.ask("check x a"), "alive");
    std::thread::sleep(SAVED);
    remove(&folder, ends);
    assert_eq!(new.ask("take x a"), "busy", "a second holder without {ends:?}");
    new.granted("take y a");
    assert_eq!(old.ask("take y a"), "busy", "a second holder without {ends:?}");
    assert_eq!(old.ask("check x a"), "alive");
    assert_eq!(old.ask("renew x a"), "alive");
    assert_eq!(new.ask("renew y a"), "alive");
    assert_eq!(old.ask("release x a"), "Freed");
    assert!(new.granted("take x a") > first);
    assert_eq!(new.ask("release y a"), "Freed");
    old.granted("take y a");
    assert_eq!(new.ask("take y a"), "busy");
}

#[test]
fn a_removed_index_of_the_log() {
    nothing_is_lost_without(&["-shm"]);
}

#[test]
fn a_removed_log() {
    nothing_is_lost_without(&["-wal"]);
}

#[test]
fn a_removed_log_with_its_index() {
    nothing_is_lost_without(&["-wal", "-shm"]);
}

/// Nothing is left that a newcomer could see.
#[test]
fn all_files_removed() {
    let folder = TempDir::new().unwrap();
    let (mut old, mut new) = (Peer::start(&folder), Peer::start(&folder));
    let first = old.granted("hold x a");
    remove(&folder, &["", "-wal", "-shm"]);
    assert!(new.granted("take x a") > first);
    assert_eq!(old.ask("told x a"), "lost Taken in time");
}

/// What is removed one after the other may go while a connection is opened: it has the removed log then, and another one of
/// its process the new one. That is seldom, so it is tried often.
#[test]
fn files_removed_while_they_are_opened() {
    let folder = TempDir::new().unwrap();
    let mut peers = [(); 3].map(|()| Peer::start(&folder));
    for peer in &mut peers {
        assert_eq!(peer.ask("open x a"), "open");
    }
    for round in 0..ROUNDS {
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.order(&format!("stir of-{at} a"));
        }
        for _ in 0..8 {
            std::thread::sleep(STIRRED / 10);
            for end in ["", "-wal", "-shm"] {
                let _ = fs::remove_file(folder.path().join(format!("locks.db{end}")));
            }
        }
        for peer in &mut peers {
            assert_eq!(peer.answer(), "stirred");
        }
        // Each sees what the others write.
        let name = |at: usize| format!("x{round}-{at}");
        for at in 0..peers.len() {
            peers[at].granted(&format!("take {} a", name(at)));
            for other in (0..peers.len()).filter(|other| *other != at) {
                let answer = peers[other].ask(&format!("take {} a", name(at)));
                assert_eq!(answer, "busy", "round {round}: {other} beside {at}");
            }
        }
    }
}

/// SQLite maps the index of the log once for all connections of a process to a file, so one that is idle
/// would keep the others at the removed one.
#[test]
fn an_idle_store_of_the_same_process() {
    let folder = TempDir::new().unwrap();
    let (mut old, mut new) = (Peer::start(&folder), Peer::start(&folder));
    old.granted("take idle b");
    old.granted("take x a");
    std::thread::sleep(SAVED);
    remove(&folder, &["-wal", "-shm"]);
    new.granted("take y a");
    assert_eq!(old.ask("take y a"), "busy", "a second holder");
    assert_eq!(old.ask("renew x a"), "alive");
    assert_eq!(new.ask("take idle a"), "busy", "a second holder");
    assert_eq!(old.ask("renew idle b"), "alive");
}

/// A waiter from before and one from after share the lock as ever.
#[test]
fn waiters_from_before_and_after_a_removed_index() {
    let folder = TempDir::new().unwrap();
    let [mut holder, mut before, mut after] = [(); 3].map(|()| Peer::start(&folder));
    holder.granted("hold x a");
    before.order("hold x a");
    std::thread::sleep(SAVED);
    remove(&folder, &["-shm"]);
    after.order("hold x a");
    std::thread::sleep(SAVED);
    assert_eq!(holder.ask("free x a"), "Freed");
    // Whoever is first, the other one waits for it.
    let (sender, first) = std::sync::mpsc::channel();
    let peers = [before, after].map(|mut peer| {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let granted = peer.answer();
            let since = SystemClock::default().now();
            std::thread::sleep(SAVED);
            let until = SystemClock::default().now();
            assert_eq!(peer.ask("free x a"), "Freed", "{granted}");
            sender.send((since, until)).unwrap();
            peer
        })
    });
    let (mut one, mut other) = (first.recv().unwrap(), first.recv().unwrap());
    if other < one {
        std::mem::swap(&mut one, &mut other);
    }
    lock_testkit::assert_exactly!(one.1 <= other.0, "two holders: {one:?} {other:?}");
    for peer in peers {
        peer.join().unwrap();
    }
}

/// A copy keeps the inode, so only what it shows tells that it is not the file that it was. Here, that the
/// lock is free.
#[test]
fn an_old_copy_over_the_file() {
    let (folder, mut old, first) = over_a_held_lock();
    let mut new = Peer::start(&folder);
    assert!(new.granted("take x a") > first);
    assert_eq!(old.ask("renew x a"), "lost");
    assert_eq!(old.ask("release x a"), "AlreadyGone");
    assert_eq!(new.ask("renew x a"), "alive");
}

#[test]
fn an_old_copy_over_the_file_that_the_holder_writes_to_first() {
    let (folder, mut old, _) = over_a_held_lock();
    let renewed = old.ask("renew x a");
    let mut new = Peer::start(&folder);
    match &*renewed {
        "alive" => assert_eq!(new.ask("take x a"), "busy", "a second holder"),
        _ => drop(new.granted("take x a")),
    }
}

/// A process that has a lock, and a file that was replaced by a copy from before.
fn over_a_held_lock() -> (TempDir, Peer, u64) {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let copy = |from: &str, to: &str| {
        let done = Command::new("cp").args([file(from), file(to)]).status().unwrap();
        assert!(done.success());
    };
    let mut old = Peer::start(&folder);
    old.granted("take x a");
    assert_eq!(old.ask("release x a"), "Freed");
    std::thread::sleep(SAVED);
    copy("locks.db", "copy");
    let first = old.granted("take x a");
    std::thread::sleep(SAVED);
    copy("copy", "locks.db");
    (folder, old, first)
}
