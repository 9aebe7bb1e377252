//! One measured figure, with what it is of.

use serde::{Deserialize, Serialize};

use crate::parts::Part;
use crate::samples::Spread;
use crate::stores::Store;

/// A line of a table.
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
