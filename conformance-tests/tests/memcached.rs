//! A complete small store on a server without scripts, and the suite on it: memcached, where the atomic
//! step is a write on condition that the item is still the one that was read.

use std::io;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use conformance_tests::server::{Port, Server};
use lock_core::{
    Attempt, Binding, Busy, Bytes, Capabilities, Claim, ClaimRequest, DataLoss, Error, ErrorKind,
    FencingToken, LockBackend, LockKey, Released, Renewal, Result, Wake, async_trait,
};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The server looks at its clock once a second and sees whole seconds, so an item may end almost two
/// seconds before its time. Each gets that much more, and none ends early.
const STEP: Duration = Duration::from_secs(2);

/// A client of the store: the address of the server.
#[derive(Debug)]
struct Memcached(String);

/// Names may be longer than the server's keys, and contain blanks (C11).
fn hash(key: &LockKey) -> String {
    format!("{:x}", Bytes::copy_from_slice(&Sha256::digest(key.encode())))
}

#[async_trait]
impl LockBackend for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Poll);
        can.detachable = true;
        (can.min_ttl, can.ttl_step) = (STEP, STEP);
        // The server takes more than thirty days for a date.
        can.max_ttl = Some(Duration::from_secs(30 * 24 * 60 * 60) - STEP);
        can.loses_data_on = &[DataLoss::Restart, DataLoss::Eviction];
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(MemcachedClaim { server: self.0.clone(), request }))
    }

    async fn ping(&self) -> Result<()> {
        ask_once(&self.0, "mn").await
    }
}

/// What a call wants to do with the hold.
#[derive(Clone, Copy, PartialEq)]
enum Wish {
    Acquire,
    Renew,
    Check,
    Release,
}

/// One contender.
#[derive(Debug)]
struct MemcachedClaim {
    server: String,
    request: ClaimRequest,
}

impl MemcachedClaim {
    /// The fence of the hold, if it is this owner's. C12: no call lasts longer than it may.
    async fn run(&self, wish: Wish) -> Result<Option<u64>> {
        let call = timeout(self.request.call_timeout, fulfil(wish, &self.server, &self.request));
        async { call.await? }.await.map_err(unknown)
    }
}

/// Reads the item, and writes on condition that it is still the same (C7); if it is not, begins again.
///
/// Each call has a connection of its own, for two reasons. What was read before a restart of the server
/// is never a condition after it, when versions begin anew. And the thread that accepts connections
/// keeps the clock, so a server that was stopped gives no lease by the time at which it was stopped.
async fn fulfil(wish: Wish, server: &str, request: &ClaimRequest) -> io::Result<Option<u64>> {
    let (key, owner) = (hash(&request.key), request.owner.to_hex());
    // C14: what comes from a lease token can have been edited.
    let resumed = request.resume.as_ref().map(|resume| resume.fence.to_string());
    let mine =
        |by: &str, fence: &str| by == owner && resumed.as_deref().is_none_or(|it| it == fence);
    let write = |condition: &str, fence: &str, left: u64| {
        // C17: a write that is late, or of a bearer with a shorter ttl, does not end the item sooner.
        let (item, time) = (format!("{owner} {fence}"), (request.ttl + STEP).as_secs().max(left));
        format!("ms lock:{key} {} {condition} T{time}\r\n{item}", item.len())
    };
    let link = &mut BufReader::new(TcpStream::connect(server).await?);
    loop {
        let item = ask(link, &format!("mg lock:{key} c t v")).await?;
        let (version, left, mut fence) = match item.split_whitespace().collect::<Vec<_>>()[..] {
            ["VA", _, version, left, by, fence] if mine(by, fence) => (version, left, fence),
            ["EN"] if wish == Wish::Acquire => {
                // Mode E: only where there is none. Whether it is ours shows when it is read.
                ask(link, &write("ME", "0", 0)).await?;
                continue;
            }
            _ => return Ok(None),
        };
        let counted;
        if wish == Wish::Acquire && fence == "0" {
            // C9: a number that is taken while the item is ours is above those of all before us.
            // It is counted in an item that does not end. Should that get lost, the time is ahead: ours,
            // since the server's is in whole seconds, and needs another request.
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
            counted = ask(link, &format!("ma fence:{key} N0 J{now} v")).await?;
            fence = counted.lines().last().unwrap_or_default();
        }
        // The version is read as `c7`, and demanded as `C7`.
        let version = version.to_uppercase();
        let change = match wish {
            Wish::Release => format!("md lock:{key} {version}"),
            // C2: an attempt that is repeated finds its item, and keeps its fence.
            _ => write(&version, fence, left[1..].parse().unwrap_or_default()),
        };
        if wish == Wish::Check || ask(link, &change).await?.starts_with("HD") {
            return fence.parse().map(Some).map_err(io::Error::other);
        }
    }
}

#[async_trait]
impl Claim for MemcachedClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let valid_for = Some(self.request.ttl);
        Ok(match self.run(Wish::Acquire).await? {
            Some(fence) => Attempt::Granted { token: FencingToken::answered(fence)?, valid_for },
            None => Attempt::Busy(Busy::default()),
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let valid_for = Some(self.request.ttl);
        Ok(self.run(Wish::Renew).await?.map_or(Renewal::Lost, |_| Renewal::Alive { valid_for }))
    }

    async fn check(&mut self) -> Result<Renewal> {
        let valid_for = None;
        Ok(self.run(Wish::Check).await?.map_or(Renewal::Lost, |_| Renewal::Alive { valid_for }))
    }

    async fn release(&mut self) -> Result<Released> {
        Ok(self.run(Wish::Release).await?.map_or(Released::AlreadyGone, |_| Released::Freed))
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}

/// Sends a command, and returns its answer: a line, and a second one if the first begins with `VA`.
async fn ask(link: &mut BufReader<TcpStream>, command: &str) -> io::Result<String> {
    link.write_all(format!("{command}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    link.read_line(&mut answer).await?;
    if answer.starts_with("VA") {
        link.read_line(&mut answer).await?;
    }
    // An answer that was cut off has no end of line, and only an error begins with a longer word.
    if answer.ends_with('\n') && answer.find([' ', '\r']) == Some(2) {
        return Ok(answer);
    }
    Err(io::Error::other(format!("not an answer of memcached: {answer:?}")))
}

async fn ask_once(server: &str, command: &str) -> Result<()> {
    let link = TcpStream::connect(server).await.map_err(unknown)?;
    ask(&mut BufReader::new(link), command).await.map(drop).map_err(unknown)
}

/// The server may have done it, or may do it later.
fn unknown(why: io::Error) -> Error {
    let late = why.kind() == io::ErrorKind::TimedOut;
    let kind = if late { ErrorKind::NoAnswer } else { ErrorKind::Unavailable };
    Error::new(kind, why.to_string()).with_unknown_effect()
}

/// For the suite: how a server starts, and how a client connects.
#[derive(Debug)]
struct MySetup;

#[async_trait]
impl Setup for MySetup {
    fn name(&self) -> &str {
        "memcached"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        let port = Port::reserve()?;
        let mut command = Command::new("memcached");
        // It refuses to run as root without being told for whom.
        command.args(["--listen", "127.0.0.1", "--user", "nobody", "--port", &port.to_string()]);
        Ok(Box::new(Server::start(command, port).await?))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        hosts.to_owned()
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(Memcached(url.to_owned())))
    }

    async fn break_hold(&self, url: &str, key: &LockKey) -> Result<(), Unavailable> {
        Ok(ask_once(url, &format!("md lock:{}", hash(key))).await?)
    }
}

fn main() -> ExitCode {
    proxied::main(MySetup)
}
