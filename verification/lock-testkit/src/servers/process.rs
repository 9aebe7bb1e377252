//! What the launchers of our servers share, besides the suite's [`Process`].

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::Process;

use crate::usage;

/// How long any server may take to start. It takes a second or two, but the machine may be busy, and a server
/// that has ended is noticed at once.
pub(super) const START_LIMIT: Duration = Duration::from_secs(60);

/// A program of a Debian package, which is not running yet and will write to `log`.
pub(super) fn from_package(program: &str, package: &str, log: PathBuf) -> Process {
    Process::new(program, install(package), log)
}

/// The processor time that it and its children have used, from the counters of the kernel.
pub(super) fn cpu_time(process: &Process) -> Result<Duration, Unavailable> {
    let ids = process.children()?.into_iter().chain([process.id()?]);
    Ok(ids.filter_map(usage::cpu_time).sum())
}

/// The URL in `variable`, if it is set and not empty.
pub(super) fn url_from(variable: impl AsRef<OsStr>) -> Option<String> {
    std::env::var(variable).ok().filter(|url| !url.is_empty())
}

/// Something that should work but does not.
pub(super) fn failed(what: &str, error: impl fmt::Display) -> Unavailable {
    Unavailable::broken(format!("{what}: {error}"))
}

/// A program that is not installed, with its package.
pub(super) fn not_installed(program: &str, package: &str) -> Unavailable {
    Unavailable::missing(format!("{program} is not installed: {}", install(package)))
}

fn install(package: &str) -> String {
    format!("apt-get install --no-install-recommends {package}")
}
