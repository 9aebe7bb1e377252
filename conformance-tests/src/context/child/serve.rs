//! The child's side.

use std::collections::HashMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{Clock, Error, ErrorKind, LockGuard, Locks, Result, SystemClock};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

use super::protocol::{Counted, Order, Reply};
use crate::Harness;
use crate::runner::panics;

/// Serves orders until `Exit` or the end of the input, which also comes when the parent dies.
pub(crate) fn serve(harness: &dyn Harness, uri: &str) -> ExitCode {
    panics::watch();
    let runtime = match crate::runner::runtime(crate::Time::Real, "child") {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let orders = || runtime.block_on(serve_orders(harness, uri));
    let served = catch_unwind(AssertUnwindSafe(orders));
    // Reading standard input blocks a thread, which must not keep this process alive.
    runtime.shutdown_background();
    match served {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => eprintln!("the child process failed: {error}"),
        // Standard error has it.
        Err(_) => {}
    }
    if let Some(panicked) = panicked() {
        write(&panicked);
    }
    ExitCode::FAILURE
}

async fn serve_orders(harness: &dyn Harness, uri: &str) -> Result<()> {
    let clock = SystemClock::default();
    let prefix = std::env::var(super::PREFIX).unwrap_or_default();
    let backend = harness.join(uri).await?;
    let locks = Locks::builder(backend).clock(clock.clone()).prefix(prefix).build()?;
    let mut child = Child { locks, clock, held: HashMap::new(), waiting: HashMap::new() };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let order = serde_json::from_str(&line)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("a bad order: {error}")))?;
        if matches!(order, Order::Exit) {
            child.held.clear();
            child.locks.close(Duration::from_secs(5)).await?;
            say(&Reply::Done);
            return Ok(());
        }
        let reply = child.obey(order).await;
        say(&reply.unwrap_or_else(|error| match error.lost_reason() {
            Some(reason) => Reply::Lost { reason: format!("{reason:?}") },
            None => Reply::Failed { error: error.to_string() },
        }));
    }
    Ok(())
}

/// Says it, or that something has panicked, whatever else there is to say.
fn say(reply: &Reply) {
    write(panicked().as_ref().unwrap_or(reply));
}

fn panicked() -> Option<Reply> {
    let panics = panics::elsewhere();
    (!panics.is_empty()).then(|| Reply::Panicked { what: panics.join("; ") })
}

fn write(reply: &Reply) {
    let line = serde_json::to_string(reply).unwrap_or_else(|error| format!("\"{error}\""));
    let mut out = std::io::stdout().lock();
    // A parent that no longer listens has no use for the answer.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

struct Child {
    locks: Locks,
    clock: SystemClock,
    held: HashMap<String, LockGuard>,
    waiting: HashMap<String, JoinHandle<Result<LockGuard>>>,
}

impl Child {
    async fn obey(&mut self, order: Order) -> Result<Reply> {
        match order {
            Order::Acquire { name, ttl, limit } => {
                let guard = self.locks.named(name.as_str())?.ttl(ttl).acquire_timeout(limit).await;
                match guard {
                    Ok(guard) => self.keep(name, guard),
                    Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(Reply::Busy),
                    Err(error) => Err(error),
                }
            }
            Order::Wait { name, ttl } => {
                let lock = self.locks.named(name.as_str())?.ttl(ttl);
                self.waiting.insert(name, tokio::spawn(async move { lock.acquire().await }));
                Ok(Reply::Done)
            }
            Order::Result { name } => {
                let waiting = self.waiting.remove(&name).ok_or_else(|| unknown(&name))?;
                let guard = waiting
                    .await
                    .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))??;
                self.keep(name, guard)
            }
            Order::Try { name, ttl } => {
                match self.locks.named(name.as_str())?.ttl(ttl).try_acquire().await? {
                    Some(guard) => self.keep(name, guard),
                    None => Ok(Reply::Busy),
                }
            }
            Order::Token { name } => held(self.held.get(&name).ok_or_else(|| unknown(&name))?),
            Order::Release { name } => {
                self.held.remove(&name).ok_or_else(|| unknown(&name))?.release().await?;
                Ok(Reply::Done)
            }
            Order::Detach { name } => {
                let guard = self.held.remove(&name).ok_or_else(|| unknown(&name))?;
                Ok(Reply::Lease { token: guard.detach().await?.to_text() })
            }
            Order::Attach { name, ttl, token } => {
                let guard =
                    self.locks.named(name.as_str())?.ttl(ttl).attach(&token.parse()?).await?;
                self.keep(name, guard)
            }
            Order::Count { name, ttl, file, times } => {
                let mut holds = Vec::new();
                for _ in 0..times {
                    holds.push(self.count_once(&name, ttl, &file).await?);
                }
                Ok(Reply::Counted(holds))
            }
            Order::Exit => Ok(Reply::Done),
        }
    }

    fn keep(&mut self, name: String, guard: LockGuard) -> Result<Reply> {
        let reply = held(&guard)?;
        self.held.insert(name, guard);
        Ok(reply)
    }

    /// Reads a number, waits, and writes one more: without exclusion, increments get lost.
    async fn count_once(
        &self,
        name: &str,
        ttl: Duration,
        file: &std::path::Path,
    ) -> Result<Counted> {
        let invoked = self.clock.now().as_nanos();
        let guard = self.locks.named(name)?.ttl(ttl).acquire().await?;
        let granted = self.clock.now().as_nanos();
        let fence = guard.token()?.get();
        let read = std::fs::read_to_string(file).map_err(|error| on_file(file, &error))?;
        let number: u64 = read.trim().parse().map_err(|error| on_file(file, &error))?;
        tokio::task::yield_now().await;
        std::fs::write(file, (number + 1).to_string()).map_err(|error| on_file(file, &error))?;
        let valid_until = guard.valid_until().as_nanos();
        let release_invoked = self.clock.now().as_nanos();
        guard.release().await?;
        let released = self.clock.now().as_nanos();
        Ok(Counted { invoked, granted, fence, valid_until, release_invoked, released })
    }
}

fn held(guard: &LockGuard) -> Result<Reply> {
    let fence = guard.token()?.get();
    Ok(Reply::Held { fence, valid_until: guard.valid_until().as_nanos() })
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("this process does not hold {name:?}"))
}

fn on_file(file: &std::path::Path, error: &dyn std::error::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("{}: {error}", file.display()))
}
