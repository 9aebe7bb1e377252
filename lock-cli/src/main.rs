//! The `distlock` program: run a command under a distributed lock, and manage locks.
//!
//! The crate's README says what it does, and how. It works on Linux only, since it relies on the
//! parent-death signal, the child subreaper and `/proc`.

mod args;
mod bench;
#[cfg(feature = "conformance")]
mod conformance;
mod doctor;
mod exit;
mod holder;
mod lease;
mod list;
mod output;
mod pages;
mod patience;
mod recover;
mod release;
mod run;
mod status;
mod stderr;
mod store;
mod stores;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Failure, code};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors; everything else is. A closed pipe is ignored.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { code::USAGE } else { 0 });
        }
    };
    let json = cli.command.json();
    let outcome = match cli.command {
        Command::Run(args) => with_runtime(run::run(args)),
        Command::Acquire(args) => with_runtime(lease::acquire(args)),
        Command::Renew(args) => with_runtime(lease::renew(args)),
        Command::Status(args) => with_runtime(status::status(args)),
        Command::List(args) => with_runtime(list::list(args)),
        Command::Release(args) => with_runtime(release::release(args)),
        Command::Watch(args) => with_runtime(watch::watch(args)),
        Command::Doctor(args) => with_runtime(doctor::doctor(args)),
        Command::Bench(args) => with_runtime(bench::bench(args)),
        #[cfg(feature = "conformance")]
        Command::Conformance(args) => conformance::conformance(&args),
        Command::Recover(args) => with_runtime(recover::recover(args)),
        Command::Stores(args) => stores::stores(&args),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { subcommand } => pages::man(subcommand.as_deref()),
        Command::Supervise(args) => run::supervisor::supervise(args),
    };
    let code = outcome.unwrap_or_else(|failure| {
        output::failure(&failure, json);
        failure.code()
    });
    stderr::flush();
    ExitCode::from(code)
}

/// Runs `work` on this thread, with worker threads for what must continue beside it.
///
/// The main thread itself starts the supervisor: the kernel ties the parent-death signal to the
/// *thread* that started a process, and this one lives as long as the process.
pub(crate) fn with_runtime<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}
