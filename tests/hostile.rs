//! Servers that turn hostile while a lock is held, and that are hostile from the first byte on.
//!
//! No call panics, waits beyond its limit, or keeps what it was sent; errors are short and name the server;
//! and the client recovers when the server does.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock::{Error, ErrorKind, LockGuard, Locks};
use lock_testkit::hostile::{FLOOD, Manner, Turncoat};
use lock_testkit::networked::Networked;
use lock_testkit::usage::allocated;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// The limits of the client, and what a busy machine may add to a call that makes a few requests.
const PARAMETERS: &str = "lock_call_timeout=700ms&lock_connect_timeout=1s";
const LIMIT: Duration = Duration::from_secs(20);
/// How long a client may take to notice that its server is good again.
const RECOVERY: Duration = Duration::from_secs(20);
/// What all clients together may keep of what they were sent, of which each was offered [`FLOOD`] in most rounds.
/// For the time of a call a driver takes what comes.
const MEMORY: u64 = FLOOD / 2;
/// With these, glibc gives a freed buffer back to the kernel at once, so that the memory of the process is what is
/// held. By default it keeps freed buffers of up to 32 MiB for the next ones, in an arena for each thread: how much
/// is chance.
const FRUGAL: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
];
/// Longer than any error ought to be, whatever a server says.
const LONGEST: usize = 1_500;

/// The panics of all threads: one in a task of the library would otherwise go unnoticed. A driver that panics
/// while it reads bytes is caught.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn no_server_can_hang_crash_or_fill_a_client() {
    if std::env::var_os(FRUGAL[0].0).is_some() {
        return play_all();
    }
    // glibc reads them when the program starts.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "no_server_can_hang_crash_or_fill_a_client", "--nocapture"]);
    let output = again.envs(FRUGAL).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let passed = String::from_utf8_lossy(&output.stdout).contains("test result: ok. 1 passed; ");
    assert!(output.status.success() && passed, "{}", output.status);
}

#[tokio::main(worker_threads = 2)]
async fn play_all() {
    let mut starting = JoinSet::new();
    for store in Networked::ALL {
        starting.spawn(Scene::start(store));
    }
    let mut scenes = starting.join_all().await;
    std::panic::set_hook(Box::new(|panic| {
        let of_a_driver = panic.location().is_some_and(|at| at.file().contains("/bytes-"));
        if !of_a_driver {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
        }
    }));
    let rounds = scenes.iter().map(|scene| scene.manners.len()).max().unwrap();
    let mut faults = Vec::new();
    for round in 0..rounds {
        let (memory, begun) = (memory_in_use(), Instant::now());
        // What floods one client takes the processors from the others, too: no recovery is timed beside a flood.
        let players = scenes.iter().filter(|scene| scene.manners.len() > round).count();
        let together = Arc::new(Barrier::new(players));
        let mut playing = JoinSet::new();
        for scene in scenes.drain(..) {
            playing.spawn(scene.play(round, Arc::clone(&together)));
        }
        let mut said = Vec::new();
        for (scene, found) in playing.join_all().await {
            said.extend(scene.about(round));
            faults.extend(found);
            scenes.push(scene);
        }
        let more = kept_since(memory).await;
        println!(
            "round {round}: {} KiB more, {:?}; {}",
            more >> 10,
            begun.elapsed(),
            said.join(", ")
        );
        if more > MEMORY {
            faults.push(format!("{} MiB more memory: {}", more >> 20, said.join(", ")));
        }
        let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        faults.extend(panics.into_iter().map(|panic| format!("{panic}: {}", said.join(", "))));
    }
    let _ = std::panic::take_hook();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A client in front of servers that may turn.
struct Scene {
    store: Networked,
    manners: Vec<Manner>,
    turncoats: Vec<Turncoat>,
    locks: Locks,
    /// Ended with the scene.
    _servers: Box<dyn conformance_tests::proxied::Servers>,
}

impl Scene {
    async fn start(store: Networked) -> Self {
        let servers = store.start().await.unwrap();
        let mut turncoats = Vec::new();
        for address in servers.addresses() {
            turncoats.push(Turncoat::start(address).await.unwrap());
        }
        let start = Instant::now();
        let locks = loop {
            match distlock::connect(&url(store, &turncoats)).await {
                Ok(locks) => break locks,
                Err(error) => assert!(start.elapsed() < RECOVERY, "{error}"),
            }
        };
        Self { store, manners: Manner::all(store), turncoats, locks, _servers: servers }
    }

    /// What has happened to it, for people.
    fn about(&self, round: usize) -> Option<String> {
        let flooded: u64 = self.turncoats.iter().map(Turncoat::flooded).sum();
        let name = self.manners.get(round)?.name;
        Some(format!("{:?} {name} ({} KiB)", self.store, flooded >> 10))
    }

    /// Returns the faults that it has found. All scenes turn at one time, and are good again at one time.
    async fn play(self, round: usize, together: Arc<Barrier>) -> (Self, Vec<String>) {
        let Some(manner) = self.manners.get(round).cloned() else { return (self, Vec::new()) };
        let held = self.honest(&format!("held{round}")).await;
        together.wait().await;
        self.turncoats.iter().for_each(|server| server.turn(manner.clone()));
        let mut faults = match held {
            Ok(guard) => self.in_use(guard, round).await,
            Err(why) => vec![why],
        };
        let start = Instant::now();
        let opened = timeout(LIMIT, distlock::connect(&url(self.store, &self.turncoats))).await;
        faults.extend(self.judge("connecting", start, opened, true));
        self.turncoats.iter().for_each(Turncoat::repent);
        together.wait().await;
        faults.extend(self.honest(&format!("after{round}")).await.err());
        let faults = faults.into_iter().map(|it| format!("{:?} {}: {it}", self.store, manner.name));
        let faults = faults.collect();
        (self, faults)
    }

    /// Takes a lock from servers that are good, or good again.
    async fn honest(&self, name: &str) -> Result<LockGuard, String> {
        let start = Instant::now();
        loop {
            match self.locks.named(name).unwrap().acquire_timeout(RECOVERY).await {
                Ok(guard) => return Ok(guard),
                Err(error) if start.elapsed() > RECOVERY => {
                    return Err(format!("no recovery within {RECOVERY:?}: {error}"));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// All calls at once.
    async fn in_use(&self, guard: LockGuard, round: usize) -> Vec<String> {
        let name = format!("new{round}");
        let lock = self.locks.named(&name).unwrap();
        let start = Instant::now();
        let (tried, waited, renewed, checked, seen, listed, forced, well) = tokio::join!(
            timeout(LIMIT, lock.try_acquire()),
            timeout(LIMIT, lock.acquire_timeout(Duration::from_secs(1))),
            timeout(LIMIT, guard.renew()),
            timeout(LIMIT, guard.check()),
            timeout(LIMIT, self.locks.inspect(&name)),
            timeout(LIMIT, self.locks.list("")),
            timeout(LIMIT, self.locks.force_release_any(&name)),
            timeout(LIMIT, self.locks.health()),
        );
        let mut faults: Vec<_> = [
            self.judge("try_acquire", start, tried, true),
            self.judge("acquire_timeout", start, waited, true),
            self.judge("renew", start, renewed, false),
            self.judge("check", start, checked, false),
            self.judge("inspect", start, seen, false),
            self.judge("list", start, listed, false),
            self.judge("force_release", start, forced, false),
            self.judge("health", start, well, false),
        ]
        .into_iter()
        .flatten()
        .collect();
        let start = Instant::now();
        faults.extend(self.judge("release", start, timeout(LIMIT, guard.release()).await, false));
        faults
    }

    /// What is wrong with the outcome of a call.
    fn judge<T>(
        &self,
        call: &str,
        start: Instant,
        outcome: Result<Result<T, Error>, tokio::time::error::Elapsed>,
        must_fail: bool,
    ) -> Option<String> {
        let error = match outcome {
            Err(_) => return Some(format!("{call} takes longer than {:?}", start.elapsed())),
            Ok(Ok(_)) if must_fail => return Some(format!("{call} succeeds")),
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => error,
        };
        let text = error.to_string();
        let is_wrong =
            |what: &str| Some(format!("{call}: {what}: {}", &text[..text.len().min(2000)]));
        if error.kind() == ErrorKind::Internal {
            return is_wrong("an error of our own");
        }
        if text.len() > LONGEST || text.chars().any(char::is_control) {
            return is_wrong("an error that is no short line of text");
        }
        let ports = self.turncoats.iter().map(|server| server.address().port().to_string());
        if call == "connecting" && !ports.into_iter().any(|port| text.contains(&port)) {
            return is_wrong("an error that does not name the server");
        }
        None
    }
}

fn url(store: Networked, turncoats: &[Turncoat]) -> String {
    let addresses: Vec<SocketAddr> = turncoats.iter().map(Turncoat::address).collect();
    store.url(&addresses, PARAMETERS)
}

/// What this process has kept, in bytes, once whatever still ends has ended.
async fn kept_since(memory: u64) -> u64 {
    let start = Instant::now();
    loop {
        let more = memory_in_use().saturating_sub(memory);
        if more <= MEMORY || start.elapsed() > RECOVERY {
            return more;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What this process has asked for, in bytes.
fn memory_in_use() -> u64 {
    allocated(std::process::id()).unwrap()
}
