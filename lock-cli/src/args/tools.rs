//! The command line of the subcommands that judge a store, or look at it.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{StoreArgs, duration};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The lock that is taken and released to prove the rights; a new name by default. Name one if
    /// your rights cover certain names only
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How often each call is measured
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: u32,
    /// How often the hand-over to a waiting client is measured
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) hand_overs: u32,
}

#[cfg(feature = "conformance")]
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Only cases whose names begin with one of these, such as c03 or s01
    pub(crate) cases: Vec<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The form of the report on standard output. --json is short for json
    #[arg(long, value_enum, default_value = "text", conflicts_with = "json")]
    pub(crate) report: ReportForm,
    /// How many cases run at the same time; they mostly sleep
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
}

#[cfg(feature = "conformance")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// Failures and a summary, for people
    Text,
    /// One object with all cases
    Json,
    /// The XML that build servers read
    Junit,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The names of the locks
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How often the store is asked
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "500ms")]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Repeat it until the store serves again, for at most this long
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// By name
    Name,
    /// The lock that has been held longest first
    Age,
    /// The lease that ends first
    Left,
}
