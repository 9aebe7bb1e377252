//! What is measured.

mod contend;
mod crash;
mod held;
mod kinds;
mod minority;
mod pair;
mod processor;
mod requests;

use std::time::Duration;

use crate::Done;
use crate::client::Library;
use crate::process::now;
use crate::results::{Part, Row};
use crate::stores::{Store, Subject};
use crate::task::{Task, Work};

/// How much of each.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Whether each part gets servers that nothing else has filled.
    pub(crate) fresh: bool,
    /// For each case.
    pub(crate) time: Duration,
    /// For the paced calls, and the rest before each.
    pub(crate) paced: Duration,
    pub(crate) rest: Duration,
    pub(crate) waiters: &'static [u32],
    pub(crate) processes: &'static [u32],
    /// Of the throughput, in the most processes.
    pub(crate) contenders: u32,
    pub(crate) held: &'static [u32],
    /// Until locks that were taken together are renewed at their usual pace.
    pub(crate) settle: Duration,
    /// The processes that read one name, or lock it.
    pub(crate) readers: u32,
    /// The locks of the client that is killed, and their ttl.
    pub(crate) crashed: (u32, Duration),
}

impl Plan {
    pub(crate) fn full(time: Duration) -> Self {
        Self {
            fresh: true,
            time,
            paced: time * 4,
            rest: Duration::from_secs(1),
            waiters: &[1, 10, 100, 1000],
            processes: &[1, 4],
            contenders: 64,
            held: &[1000, 10_000],
            settle: Duration::from_secs(12),
            readers: 8,
            crashed: (5000, Duration::from_secs(10)),
        }
    }

    /// As little as shows that everything works.
    pub(crate) fn short(time: Duration) -> Self {
        Self {
            fresh: false,
            time,
            paced: time / 2,
            rest: Duration::from_millis(20),
            waiters: &[10],
            processes: &[1, 2],
            contenders: 8,
            held: &[100],
            settle: Duration::from_millis(200),
            readers: 2,
            crashed: (50, Duration::from_secs(2)),
        }
    }
}

/// What a part needs.
pub(crate) struct Bench<'a> {
    pub(crate) part: Part,
    pub(crate) store: Store,
    pub(crate) library: Library,
    pub(crate) plan: &'a Plan,
    pub(crate) subject: &'a mut dyn Subject,
}

impl Part {
    /// In how many members it needs a store that lets us choose.
    pub(crate) fn members(self) -> usize {
        if self == Self::Minority { 3 } else { 1 }
    }

    /// Whether it says something of this library on this store.
    pub(crate) fn is_for(self, store: Store, library: Library) -> bool {
        match self {
            // What a cohort changes.
            Self::Throughput => true,
            Self::Pair | Self::HandOver | Self::Processor => library != Library::Cohort,
            // Without servers there is nothing to count.
            Self::Requests => library == Library::Distlock && store.is_shared(),
            Self::Held | Self::Kinds => library == Library::Distlock,
            Self::Minority => {
                library == Library::Distlock
                    && matches!(store, Store::Redlock | Store::Etcd | Store::Zookeeper)
            }
            Self::Crash => library == Library::Distlock && store.is_shared(),
        }
    }
}

impl Bench<'_> {
    /// Measures the part.
    pub(crate) async fn run(&mut self) -> Done<Vec<Row>> {
        match self.part {
            Part::Pair => pair::measure(self).await,
            Part::Processor => processor::measure(self).await,
            Part::HandOver => contend::hand_overs(self).await,
            Part::Throughput => contend::throughput(self).await,
            Part::Requests => requests::measure(self).await,
            Part::Held => held::measure(self).await,
            Part::Minority => minority::measure(self).await,
            Part::Crash => crash::measure(self).await,
            Part::Kinds => kinds::measure(self).await,
        }
    }

    fn row(&self, case: impl Into<String>) -> Row {
        Row::new(self.part, self.store, self.library.name(), case)
    }

    fn task(&self, work: Work) -> Task {
        Task {
            store: self.store,
            library: self.library.name().to_owned(),
            url: self.subject.url(),
            prefix: names(),
            work,
        }
    }
}

/// The beginning of names that nothing else has.
fn names() -> String {
    format!("bench:{}:", now())
}
