//! What the launchers of our servers share, besides the suite's [`Process`].

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::Process;

/// A program of a Debian package, which is not running yet and will write to `log`.
pub(super) fn from_package(program: &str, package: &str, log: PathBuf) -> Process {
    Process::new(program, install(package), log)
}

/// The processor time that it and its children have used, from the counters of the kernel.
pub(super) fn cpu_time(process: &Process) -> Result<Duration, Unavailable> {
    let ids = process.children()?.into_iter().chain([process.id()?]);
    let ticks: u64 = ids.filter_map(ticks).sum();
    // 100 a second on every Linux.
    Ok(Duration::from_millis(ticks * 10))
}

/// User and system time, with that of the children that have ended.
fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain blanks and brackets.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
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
