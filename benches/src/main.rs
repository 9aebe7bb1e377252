//! What the locks of distlock cost on every store, beside a floor measured in the same run:
//! [docs/performance.md](../docs/performance.md) says how, and shows the figures.

mod args;
mod client;
mod machine;
mod page;
mod parts;
#[cfg(feature = "peers")]
mod peers;
mod process;
mod results;
mod run;
mod samples;
mod stores;
mod task;
mod worker;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command};

/// What fails here says why, and ends the program or one of its parts.
type Done<T = ()> = Result<T, Failure>;
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let mut arguments = std::env::args().skip(1);
    let done = runtime.map_err(Into::into).and_then(|runtime| {
        let done = if arguments.next().as_deref() == Some(worker::WORKER) {
            let task = arguments.next().unwrap_or_default();
            runtime.block_on(worker::serve(&task))
        } else {
            // On a worker thread of the runtime, as an application runs.
            runtime.block_on(async { tokio::spawn(obey(Cli::parse().command)).await? })
        };
        // A thread may still read the standard input.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("distlock_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn obey(command: Command) -> Done {
    match command {
        Command::Run(args) => run::run(args).await,
        Command::Page { docs, results } => page::write(&docs, &results),
    }
}
