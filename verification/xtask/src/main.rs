//! Records the test programs of this repository, runs them side by side, and judges how they ended. `./test.sh`
//! calls it.
//!
//! - `sizes` — how much runs at a time, and how often
//! - `job` — a recorded test program
//! - `verdict` — what the end of one means
//! - `lanes` — so many at a time, the longest first
//! - `beside` — checks that run beside the tests, when processors are idle
//! - `again` — what may only have been late, judged alone
//! - `soak` — every set-up under faults
//! - `summary` — what is said at the end
//! - `history` — how often tests were judged again before
//! - `run` — all of that, step by step

#![allow(
    clippy::disallowed_methods,
    reason = "it times what a machine does that stays awake, and has no runtime"
)]

mod again;
mod beside;
mod history;
mod job;
mod lanes;
mod run;
mod sizes;
mod soak;
mod summary;
mod verdict;

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: xtask test FOLDER (full | quick) SECONDS
       xtask beside FOLDER
       xtask soak [OPTION OF distlock-soak...]

FOLDER is for the recorded programs and what they say, SECONDS what has gone by already.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["test", folder, mode @ ("full" | "quick"), before] => {
            run::whole(Path::new(folder), mode == "full", before.parse().unwrap_or(0))
        }
        ["beside", folder] => beside::run(Path::new(folder)).map(|()| 0),
        ["soak", ref options @ ..] => soak::soak(options).map(|soaked| soaked.status),
        _ => {
            eprintln!("{USAGE}");
            Ok(64)
        }
    };
    let status = ended.unwrap_or_else(|error| {
        eprintln!("xtask: {error}");
        1
    });
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// An error that says with what it was met.
fn at<T>(what: impl Display, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}
