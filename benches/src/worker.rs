//! Processes that use locks.

use std::process::Stdio;
use std::time::Duration;

use lock_testkit::usage::cpu_time;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::Done;
use crate::task::{Ready, Report, Task};

/// The first argument of a process that is a worker; its task follows.
pub(crate) const WORKER: &str = "worker";

/// One that does a [`Task`] until it is stopped.
pub(crate) struct Worker {
    process: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(task: &Task) -> Done<(Self, Ready)> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .arg(serde_json::to_string(task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = process.stdin.take().ok_or("no input")?;
        let mut said = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        let ready = heard(&mut said).await?;
        Ok((Self { process, orders, said }, ready))
    }

    /// The processor time of its process so far.
    pub(crate) fn cpu(&self) -> Done<Duration> {
        let time = self.process.id().and_then(cpu_time);
        Ok(time.ok_or("a worker has ended")?)
    }

    /// Lets it end, and what it has seen.
    pub(crate) async fn stop(mut self) -> Done<Report> {
        drop(self.orders);
        let report = heard(&mut self.said).await?;
        self.process.wait().await?;
        Ok(report)
    }

    /// Ends its process without warning.
    pub(crate) async fn kill(mut self) -> Done {
        Ok(self.process.kill().await?)
    }
}

async fn heard<T: for<'a> Deserialize<'a>>(said: &mut Lines<BufReader<ChildStdout>>) -> Done<T> {
    let line = said.next_line().await?.ok_or("a worker has ended")?;
    Ok(serde_json::from_str(&line)?)
}

/// What the process of a worker does: it ends with its input, so also when its parent dies.
pub(crate) async fn serve(task: &str) -> Done {
    let task: Task = serde_json::from_str(task)?;
    let ((ready, is_ready), stop) = (oneshot::channel(), CancellationToken::new());
    let running = tokio::spawn(task.run(ready, stop.clone()));
    if let Ok(ready) = is_ready.await {
        say(&ready)?;
        tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    }
    stop.cancel();
    say(&running.await??)
}

fn say(what: &impl Serialize) -> Done {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}
