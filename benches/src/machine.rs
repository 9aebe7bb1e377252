//! What figures depend on, and what is told beside them.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Done;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
    /// The others on it: the mean number of running tasks in the minute before.
    load: f64,
    optimised: bool,
    /// The run was to show that everything works.
    short: bool,
    pub(crate) servers: BTreeSet<String>,
}

impl Machine {
    pub(crate) fn here(short: bool) -> Done<Self> {
        let about = std::fs::read_to_string("/proc/cpuinfo")?;
        let model = about.lines().find_map(|line| line.strip_prefix("model name"));
        let load = std::fs::read_to_string("/proc/loadavg")?;
        Ok(Self {
            processor: model.unwrap_or("unknown").trim_matches([' ', '\t', ':']).to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load: load.split(' ').next().unwrap_or("0").parse()?,
            optimised: !cfg!(debug_assertions),
            short,
            servers: BTreeSet::new(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.short || !self.optimised {
            write!(f, "**Only a trial, by a short run or a build without optimisation.** ")?;
        }
        let servers = self.servers.iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        write!(
            f,
            "{} cores ({}), Linux {}, servers on loopback; load before the run {:.1}. {servers}.",
            self.cores, self.processor, self.kernel, self.load
        )
    }
}
