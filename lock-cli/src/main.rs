//! The `distlock` program: run a command under a distributed lock, and manage locks.
//!
//! The crate's README says what it does, and how. It works on Linux only, since it relies on the
//! parent-death signal, the child subreaper and `/proc`. The code, in reading order:
//!
//! - `args` — the command line
//! - `store` — opening the store; `store_url` — where its URL comes from; `renewals` — whether renewals get through
//! - `run` — `run`: take the locks, run the command under them, release them
//! - `wanted` — what can be asked for: a lock, a permit, to read, to write
//! - `waiting` — asking for it, and what is shown meanwhile
//! - `held_locks` — the locks that a command runs under, as one
//! - `hold_machine` — what happens to a command whose lease ends; pure
//! - `supervisor` — the process that ends the command, and how `run` talks to it
//! - `commands` — all other subcommands
//! - `signals` — receiving signals
//! - `output` — what is printed, for people and for programs
//! - `exit` — exit codes, and errors that end the program

mod args;
mod exit;
mod output;
mod renewals;
mod run;
mod signals;
mod store;
mod store_url;

/// The subcommands besides `run`.
mod commands {
    pub(crate) mod admin;
    pub(crate) mod bench;
    #[cfg(feature = "conformance")]
    pub(crate) mod conformance;
    pub(crate) mod doctor;
    pub(crate) mod inspect;
    pub(crate) mod lease;
    pub(crate) mod pages;
    pub(crate) mod watch;
}

use std::process::ExitCode;

use crate::args::{Cli, CliCommand};
#[cfg(feature = "conformance")]
use crate::commands::conformance;
use crate::commands::{admin, bench, doctor, inspect, lease, pages, watch};
use crate::exit::{ExitError, code};

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors; everything else is. A closed pipe is ignored.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { code::USAGE } else { 0 });
        }
    };
    let json = cli.json;
    let outcome = match cli.command {
        CliCommand::Run(args) => with_runtime(run::run(args)),
        CliCommand::Acquire { name, want } => with_runtime(lease::acquire(name, want)),
        CliCommand::Renew { lease, ttl } => with_runtime(lease::renew(lease, ttl)),
        CliCommand::Status { name, store, permits, quiet } => {
            with_runtime(inspect::status(name, store, permits, quiet))
        }
        CliCommand::List { prefix, store, sort } => {
            with_runtime(inspect::list(prefix, store, sort))
        }
        CliCommand::Release(args) => with_runtime(admin::release(args)),
        CliCommand::Watch { names, store, permits, every } => {
            with_runtime(watch::watch(names, store, permits, every))
        }
        CliCommand::Doctor { name, store } => with_runtime(doctor::doctor(name, store)),
        CliCommand::Bench { store, rounds, hand_overs } => {
            with_runtime(bench::bench(store, rounds, hand_overs))
        }
        #[cfg(feature = "conformance")]
        CliCommand::Conformance(args) => with_runtime(conformance::conformance(args)),
        CliCommand::Recover { store, wait, yes } => with_runtime(admin::recover(store, wait, yes)),
        CliCommand::Stores { json } => pages::stores(json),
        CliCommand::Completions { shell } => pages::completions(shell),
        CliCommand::Man { subcommand } => pages::man(subcommand.as_deref()),
        CliCommand::Supervise(args) => run::supervisor::supervise(args),
        CliCommand::Die { signal } => Ok(exit::die(signal)),
    };
    let (code, signal) = match outcome {
        Ok(code) => (code, None),
        Err(failure) => {
            output::failure(&failure, json);
            (failure.code, failure.signal)
        }
    };
    output::writers::flush();
    if let Some(signal) = signal {
        exit::die_of(signal);
    }
    ExitCode::from(code)
}

/// Runs `work` on this thread, with worker threads for what must continue beside it.
///
/// The main thread itself starts the supervisor: the kernel ties the parent-death signal to the
/// *thread* that started a process, and this one lives as long as the process.
fn with_runtime(work: impl Future<Output = Result<u8, ExitError>>) -> Result<u8, ExitError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| ExitError::internal(format!("cannot start the runtime: {error}")))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}
