//! The answers that most readers look for: a table for each of four questions, and a plot for most of them.

use super::plot::{Bar, Plot};
use super::table::{duration, head_of, line, number};
use crate::client::Library;
use crate::results::{self, Part, Row};
use crate::stores::Store;

const NONE: &str = "–";

/// A question, with what answers it.
pub(super) struct Answer {
    pub(super) title: &'static str,
    pub(super) table: String,
    /// The name of its file, and what it shows.
    pub(super) plot: Option<(&'static str, Plot)>,
}

pub(super) fn all(rows: &[Row]) -> [Answer; 4] {
    let rows = Figures(rows);
    [free(&rows), contended(&rows), many(&rows), kinds(&rows)]
}

/// Which of the cases of a part.
#[derive(Clone, Copy)]
enum Case {
    Named(&'static str),
    /// In as many processes as there were, with the least and the most waiters of those from ten on.
    FewWaiters,
    MostWaiters,
    /// As they were measured: one name before many, and few held locks before many.
    First,
    Last,
}

struct Figures<'a>(&'a [Row]);

impl<'a> Figures<'a> {
    /// Those that processes can share.
    fn stores(&self) -> impl Iterator<Item = Store> {
        results::stores(self.0).into_iter().filter(|store| store.is_shared())
    }

    fn find(&self, part: Part, store: Store, library: &str, case: Case) -> Option<&'a Row> {
        let wanted = (part, store, library);
        let rows = self.0.iter().filter(|row| row.failed.is_none());
        let mut rows = rows.filter(|row| (row.part, row.store, row.library.as_str()) == wanted);
        let queues = || {
            let all = rows.clone().filter_map(|row| Some((row, queue(&row.case)?)));
            let processes = all.clone().map(|(_, (_, processes))| processes).max();
            all.filter(move |(_, (waiting, at))| Some(*at) == processes && *waiting >= 10)
        };
        match case {
            Case::Named(name) => rows.find(|row| row.case == name),
            Case::FewWaiters => queues().min_by_key(|(_, queue)| *queue).map(|(row, _)| row),
            Case::MostWaiters => queues().max_by_key(|(_, queue)| *queue).map(|(row, _)| row),
            Case::First => rows.next(),
            Case::Last => rows.next_back(),
        }
    }

    fn ours(&self, part: Part, store: Store, case: Case) -> Option<&'a Row> {
        self.find(part, store, Library::Distlock.name(), case)
    }

    /// The peer with the best figure.
    fn best(
        &self,
        part: Part,
        store: Store,
        case: Case,
        figure: impl Fn(&Row) -> Option<f64>,
    ) -> Option<&'a Row> {
        let mut peers: Vec<&str> = self.0.iter().map(|row| row.library.as_str()).collect();
        peers.retain(|library| !library.starts_with(Library::Distlock.name()));
        peers.sort_unstable();
        peers.dedup();
        let rows = peers.into_iter().filter_map(|peer| self.find(part, store, peer, case));
        rows.filter_map(|row| Some((row, figure(row)?)))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(row, _)| row)
    }

    /// The time of the fastest peer, and its name.
    fn fastest(&self, part: Part, store: Store, case: Case) -> String {
        let time = |row: &Row| row.time.map(|time| time.p50 as f64);
        let best = self.best(part, store, case, time);
        best.map_or(NONE.to_owned(), |row| format!("{}, {}", median(Some(row)), peer(row)))
    }

    /// A bar for each store, and one for the peer with the least `cost` on it.
    fn bars(
        &self,
        part: Part,
        case: Case,
        figure: fn(&Row) -> Option<f64>,
        cost: fn(f64) -> f64,
    ) -> Vec<Bar> {
        let mut bars = Vec::new();
        for store in self.stores() {
            let bar = |row: &Row, label: &str, is_peer| {
                let (label, value) = (label.to_owned(), figure(row)?);
                Some(Bar { label, value, is_peer })
            };
            let ours = self.ours(part, store, case);
            bars.extend(ours.and_then(|row| bar(row, store.name(), false)));
            let best = self.best(part, store, case, |row| figure(row).map(cost));
            bars.extend(best.and_then(|row| bar(row, peer(row), true)));
        }
        bars
    }

    /// A line for each store.
    fn table(&self, head: &[&str], cells: impl Fn(Store) -> Vec<String>) -> String {
        let lines = self
            .stores()
            .map(|store| line([store.name().to_owned()].into_iter().chain(cells(store))));
        head_of(head) + &lines.collect::<String>()
    }
}

/// How many wait, in how many processes.
fn queue(case: &str) -> Option<(u32, u32)> {
    let (waiting, processes) = case.split_once(" waiting, ")?;
    let processes = processes.strip_suffix(" processes")?;
    Some((waiting.parse().ok()?, processes.parse().ok()?))
}

/// Without its settings.
fn peer(row: &Row) -> &str {
    row.library.split(',').next().unwrap_or_default()
}

fn median(row: Option<&Row>) -> String {
    row.and_then(|row| row.time).map_or(NONE.to_owned(), |time| duration(time.p50))
}

fn ratio(row: Option<&Row>) -> String {
    row.and_then(Row::ratio).map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}"))
}

fn counted(row: Option<&Row>, name: &str) -> String {
    row.and_then(|row| row.counted(name)).map_or(NONE.to_owned(), number)
}

fn rate(row: &Row) -> Option<f64> {
    row.counted("acquisitions/s")
}

fn free(rows: &Figures<'_>) -> Answer {
    let (busy, paced) = (Case::Named("busy: both"), Case::Named("paced: both"));
    let of = |store| {
        let (one, rested) =
            (rows.ours(Part::Pair, store, busy), rows.ours(Part::Pair, store, paced));
        let fastest = rows.fastest(Part::Pair, store, busy);
        vec![median(one), ratio(one), median(rested), ratio(rested), fastest]
    };
    let head = [
        "store",
        "acquire + release",
        "× floor",
        "after a rest",
        "× floor",
        "fastest other library",
    ];
    Answer {
        title: "A lock that is free",
        table: rows.table(&head, of),
        plot: Some((
            "free",
            Plot {
                title: "Acquire and release of a free lock",
                axis: "median, as a multiple of the floor",
                floor: Some(1.0),
                bars: rows.bars(Part::Pair, busy, Row::ratio, |ratio| ratio),
            },
        )),
    }
}

fn contended(rows: &Figures<'_>) -> Answer {
    let of = |store| {
        let few = rows.ours(Part::HandOver, store, Case::FewWaiters);
        let most = rows.ours(Part::HandOver, store, Case::MostWaiters);
        let (requests, fastest) =
            (counted(few, "requests each"), rows.fastest(Part::HandOver, store, Case::FewWaiters));
        vec![median(few), ratio(few), median(most), ratio(most), requests, fastest]
    };
    let head = [
        "store",
        "10 waiting",
        "× floor",
        "1 000 waiting",
        "× floor",
        "requests",
        "fastest other library, 10 waiting",
    ];
    Answer {
        title: "A lock that others wait for",
        table: rows.table(&head, of),
        plot: Some((
            "hand-over",
            Plot {
                title: "From a release to the next holder, 10 waiting in 4 processes",
                axis: "median, as a multiple of the floor",
                floor: Some(1.0),
                bars: rows.bars(Part::HandOver, Case::FewWaiters, Row::ratio, |ratio| ratio),
            },
        )),
    }
}

fn many(rows: &Figures<'_>) -> Answer {
    let of = |store| {
        let one = rows.ours(Part::Throughput, store, Case::First);
        let names = rows.ours(Part::Throughput, store, Case::Last);
        let cohort = rows.find(Part::Throughput, store, Library::Cohort.name(), Case::First);
        let held = rows.ours(Part::Held, store, Case::Last);
        let bytes = held.and_then(|row| row.counted("client bytes each"));
        vec![
            counted(one, "acquisitions/s"),
            counted(one, "longest wait, ms"),
            counted(cohort, "acquisitions/s"),
            counted(names, "acquisitions/s"),
            bytes.map_or(NONE.to_owned(), |bytes| number(bytes / 1024.0)),
            counted(held, "requests/s"),
        ]
    };
    let head = [
        "store",
        "grants/s of one name",
        "longest wait, ms",
        "… with `cohort(32)`",
        "grants/s of many names",
        "KiB for a held lock",
        "requests/s for 10 000 held",
    ];
    Answer {
        title: "Many at once",
        table: rows.table(&head, of),
        plot: Some((
            "throughput",
            Plot {
                title: "Grants of one name, 64 contenders in 4 processes",
                axis: "grants per second",
                floor: None,
                bars: rows.bars(Part::Throughput, Case::First, rate, |rate| -rate),
            },
        )),
    }
}

fn kinds(rows: &Figures<'_>) -> Answer {
    const CASES: [&str; 6] = [
        "free permit",
        "free read",
        "joined read",
        "free write",
        "hand-over of a permit",
        "hand-over of a write",
    ];
    let of = |store| {
        let case = |name| rows.ours(Part::Kinds, store, Case::Named(name));
        let mut cells = CASES.map(|name| ratio(case(name))).to_vec();
        let far = rows.ours(Part::Kinds, store, Case::Last);
        cells.push(counted(far, "reads for a lock"));
        cells
    };
    let head: Vec<_> = ["store"].into_iter().chain(CASES).chain(["reads, far away"]).collect();
    Answer {
        title: "Other kinds of lock, × an exclusive lock",
        table: rows.table(&head, of),
        plot: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Spread;

    const OURS: &str = "distlock";

    fn row(part: Part, library: &str, case: &str, time: u64, floor: u64) -> Row {
        let spread = |p50| Some(Spread { count: 9, p50, p99: p50, max: p50 });
        Row::new(part, Store::Redis, library, case).times(spread(time), spread(floor))
    }

    #[test]
    fn each_answer_takes_its_figures_from_the_rows() {
        let rows = [
            row(Part::Pair, OURS, "busy: acquire", 9_000, 9_000),
            row(Part::Pair, OURS, "busy: both", 150_000, 100_000),
            row(Part::Pair, OURS, "paced: both", 600_000, 500_000),
            row(Part::Pair, "slow", "busy: both", 140_000, 100_000),
            row(Part::Pair, "rslock, tries", "busy: both", 120_000, 100_000),
            row(Part::HandOver, OURS, "10 waiting, 1 processes", 1_000, 1_000),
            row(Part::HandOver, OURS, "1 waiting, 4 processes", 1_000, 1_000),
            row(Part::HandOver, OURS, "10 waiting, 4 processes", 3_000, 1_000)
                .count("requests each", 3.0),
            row(Part::HandOver, OURS, "1000 waiting, 4 processes", 4_000, 1_000),
            row(Part::Throughput, OURS, "64 contenders, 4 processes, 1 names", 1, 1)
                .count("acquisitions/s", 4000.0),
            row(Part::Throughput, OURS, "64 contenders, 4 processes, 64 names", 1, 1)
                .count("acquisitions/s", 40_000.0),
            row(Part::Throughput, "fast", "64 contenders, 4 processes, 1 names", 1, 1)
                .count("acquisitions/s", 9000.0),
            row(Part::Kinds, OURS, "free permit", 11, 10),
            row(Part::Kinds, OURS, "hand-over of a write", 3, 2),
            row(Part::Kinds, OURS, "8 processes, 3 ms away", 1, 1).count("reads for a lock", 5.0),
            row(Part::Held, OURS, "1000 held", 1, 1).count("client bytes each", 2048.0),
            row(Part::Held, OURS, "10000 held", 1, 1).count("client bytes each", 3072.0),
        ];
        let [free, contended, many, kinds] = all(&rows);
        let last = |answer: &Answer| answer.table.lines().last().unwrap().to_owned();
        assert_eq!(last(&free), "| Redis | 150 µs | 1.50 | 600 µs | 1.20 | 120 µs, rslock |");
        assert_eq!(last(&contended), "| Redis | 3 µs | 3.00 | 4 µs | 4.00 | 3 | – |");
        assert_eq!(last(&many), "| Redis | 4000 | – | – | 40000 | 3 | – |");
        assert_eq!(last(&kinds), "| Redis | 1.10 | – | – | – | – | 1.50 | 5 |");
        assert!(kinds.plot.is_none());
        let bars = |answer: &Answer| {
            let (_, plot) = answer.plot.as_ref().unwrap();
            let bars = plot.bars.iter();
            bars.map(|bar| (bar.label.clone(), bar.value, bar.is_peer)).collect::<Vec<_>>()
        };
        let of = |label: &str, value, is_peer| (label.to_owned(), value, is_peer);
        assert_eq!(bars(&free), [of("Redis", 1.5, false), of("rslock", 1.2, true)]);
        assert_eq!(bars(&many), [of("Redis", 4000.0, false), of("fast", 9000.0, true)]);
    }
}
