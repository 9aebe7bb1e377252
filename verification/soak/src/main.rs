#![doc = include_str!("../README.md")]

mod crew;
mod fault;
mod kind;
mod ledger;
mod meter;
mod parts;
mod protocol;
mod pulse;
mod report;
mod run;
mod site;
mod stage;
mod verdict;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::kind::Kind;
use crate::report::Report;
use crate::run::Size;

/// Something was violated.
const VIOLATED: u8 = 1;
/// Nothing was violated, but too little was put to the test.
const VOID: u8 = 2;

/// How long an interrupted run waits for its servers to end.
const LONGEST_END: Duration = Duration::from_secs(20);

/// Runs contenders against every store under faults, and judges what they saw.
///
/// Exit status: 0 if nothing was violated, 1 if something was, 2 if the run is void, 130 or 143 after Ctrl-C
/// or SIGTERM, which end all workers and servers.
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
struct Args {
    /// Replays the schedule of an earlier run; a new one by default
    #[arg(long)]
    seed: Option<u64>,
    /// Repeats the phases until so many hours are over; each is played once by default
    #[arg(long, default_value_t = 0.0)]
    hours: f64,
    /// The set-ups, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    setup: Vec<Kind>,
    /// How often each fault strikes in a phase; more often at SQLite, and less often at Redlock, etcd and
    /// ZooKeeper, so that all set-ups take about as long
    #[arg(long, default_value_t = 8)]
    hits: usize,
    /// The mean time for which a lock is held while nothing may break
    #[arg(long, default_value = "10ms", value_parser = humantime::parse_duration)]
    hold: Duration,
    /// How many processes contend at each set-up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=64))]
    workers: u64,
    /// How many contenders each of them has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    contenders: u64,
    /// The report, the pictures and the histories of violations go into a folder of this one
    #[arg(long, default_value = "target/soak")]
    out: PathBuf,
}

fn main() -> ExitCode {
    if let Ok(brief) = std::env::var(worker::BRIEF) {
        return worker::run(&brief);
    }
    let args = Args::parse();
    // Some steps of starting servers block a thread, and the links must not stand still meanwhile.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build();
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(async {
            tokio::select! {
                ended = soak(args) => ended,
                code = interrupted() => code,
            }
        });
        // Ends all workers and servers, which are killed when their values are dropped.
        runtime.shutdown_timeout(LONGEST_END);
        ended
    });
    site::remove_library();
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(VOID)
        }
    }
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> std::io::Result<ExitCode> {
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let (mut interrupts, mut terminates) = (signal(interrupt)?, signal(terminate)?);
    let kind = tokio::select! {
        _ = interrupts.recv() => interrupt,
        _ = terminates.recv() => terminate,
    };
    eprintln!("soak: interrupted");
    // As a shell shows a program that a signal has ended.
    Ok(ExitCode::from(u8::try_from(128 + kind.as_raw_value()).unwrap_or(VIOLATED)))
}

async fn soak(args: Args) -> std::io::Result<ExitCode> {
    let mut fresh = [0; 8];
    distlock::backend::Rng::fill(&distlock::backend::OsRng, &mut fresh)
        .map_err(std::io::Error::other)?;
    let size = Size {
        seed: args.seed.unwrap_or(u64::from_le_bytes(fresh)),
        hits: args.hits,
        lasts: Duration::from_secs_f64(args.hours.clamp(0.0, 1e6) * 3600.0),
        calm: Duration::from_secs(6),
        workers: args.workers,
        contenders: args.contenders,
        hold: args.hold,
    };
    println!("soak: seed {}", size.seed);
    let kinds = if args.setup.is_empty() { Kind::value_variants() } else { &args.setup };
    let begun = tokio::time::Instant::now();
    let mut running = JoinSet::new();
    for kind in kinds {
        running.spawn(run::run(*kind, size.clone()));
    }
    let mut setups = Vec::new();
    while let Some(setup) = running.join_next().await {
        let setup = setup.map_err(std::io::Error::other)?;
        println!("soak: {} has ended after {:.0}s", setup.kind, setup.took);
        setups.push(setup);
    }
    let out = args.out.join(format!("seed-{}", size.seed));
    let report = Report::new(size.seed, begun.elapsed().as_secs_f64(), setups);
    print!("{}", report.write(&out)?);
    println!("soak: the report is in {}", out.display());
    Ok(match (report.violations(), report.is_void()) {
        (0, false) => ExitCode::SUCCESS,
        (0, true) => ExitCode::from(VOID),
        _ => ExitCode::from(VIOLATED),
    })
}
