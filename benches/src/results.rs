//! The measured figures, each with what it is of.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::samples::Spread;
use crate::stores::Store;

/// One of the things that are measured, in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// Acquire and release of a free lock, on a busy connection and after a rest
    Pair,
    /// The processor time of an acquire and a release, of the client and of the servers
    Processor,
    /// From the call of `release` to the next holder, with 1 to 1 000 waiters in 1 and 4 processes
    HandOver,
    /// 64 contenders in 4 processes, for one name and for one each
    Throughput,
    /// Requests for an acquire, a release, a renewal, and while others wait
    Requests,
    /// What 1 000 and 10 000 held locks cost
    Held,
    /// The latency of others while one of a quorum is stopped
    Minority,
    /// The end of 5 000 locks whose client was killed
    Crash,
    /// Permits, readers and writers, and looks, beside an exclusive lock of the same store
    Kinds,
}

/// What `--json` writes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
}

/// A line of a table: one figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) part: Part,
    pub(crate) store: Store,
    pub(crate) library: String,
    /// What was done.
    pub(crate) case: String,
    /// How long it took.
    pub(crate) time: Option<Spread>,
    /// How long the bare driver took for the least that it could be done with, in the same run.
    pub(crate) floor: Option<Spread>,
    /// What was counted, by a name that contains the unit.
    pub(crate) counts: Vec<(String, f64)>,
    /// Why there is no figure.
    pub(crate) failed: Option<String>,
}

/// Those that these rows are of, in their order.
pub(crate) fn stores(rows: &[Row]) -> Vec<Store> {
    let mut stores: Vec<Store> = rows.iter().map(|row| row.store).collect();
    stores.sort();
    stores.dedup();
    stores
}

impl Part {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Pair => "Acquire and release of a free lock",
            Self::Processor => "Processor time of a free lock",
            Self::HandOver => "Hand-over",
            Self::Throughput => "Throughput",
            Self::Requests => "Requests",
            Self::Held => "Held locks",
            Self::Minority => "One of a quorum stopped",
            Self::Crash => "A client that was killed",
            Self::Kinds => "Other kinds of lock",
        }
    }
}

impl Row {
    pub(crate) fn new(part: Part, store: Store, library: &str, case: impl Into<String>) -> Self {
        Self {
            part,
            store,
            library: library.to_owned(),
            case: case.into(),
            time: None,
            floor: None,
            counts: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn times(mut self, time: Option<Spread>, floor: Option<Spread>) -> Self {
        (self.time, self.floor) = (time, floor);
        self
    }

    pub(crate) fn count(mut self, name: &str, count: f64) -> Self {
        self.counts.push((name.to_owned(), count));
        self
    }

    /// A count that this store may not have.
    pub(crate) fn count_if(self, name: &str, count: Option<f64>) -> Self {
        match count {
            Some(count) => self.count(name, count),
            None => self,
        }
    }

    pub(crate) fn counted(&self, name: &str) -> Option<f64> {
        self.counts.iter().find(|(counted, _)| counted == name).map(|(_, count)| *count)
    }

    /// How many times the floor the median is.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (time, floor) = (self.time?, self.floor?);
        Some(time.p50 as f64 / floor.p50 as f64)
    }

    /// Whether a newer row replaces this one.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        let of = |row: &Self| (row.part, row.store, row.library.clone(), row.case.clone());
        of(self) == of(other)
    }
}
