//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::results::Part;
use crate::stores::Store;

/// Measures what locks cost, beside the same requests by the bare driver in the same run. Starts
/// the servers itself, in temporary folders on free loopback ports.
#[derive(Debug, Parser)]
#[command(name = "distlock_bench", max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure, and print tables
    Run(RunArgs),
    /// Write the tables and the plots of results into the documents, between their markers
    Page {
        /// The folder with performance.md and performance/rows.md, such as `docs`
        docs: PathBuf,
        /// Files that `run --json` has written; of two figures for the same, the later file's counts
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Only these stores
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) store: Vec<Store>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) part: Vec<Part>,
    /// Only libraries whose name begins like this, such as `distlock`
    #[arg(long)]
    pub(crate) library: Option<String>,
    /// How long each case is measured; 10 by default, and 0.2 with `--short`
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// As little as shows that everything works, with all stores at the same time: no figures
    #[arg(long)]
    pub(crate) short: bool,
    /// Write the results into this file, too
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600 is expected".to_owned()),
    }
}
