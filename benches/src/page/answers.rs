//! The answers that most readers look for: a table and a plot for each of three questions.

use super::plot::{Bar, Plot};
use super::table::{duration, line, number};
use crate::results::{Part, Row};
use crate::samples::Spread;
use crate::stores::Store;

/// The library that is measured; all others are peers.
const OURS: &str = "distlock";
const COHORT: &str = "distlock, cohort(32)";
const NONE: &str = "–";

/// A question, with what answers it.
pub(super) struct Answer {
    pub(super) title: &'static str,
    /// The file of the plot.
    pub(super) name: &'static str,
    pub(super) table: String,
    pub(super) plot: Plot,
}

pub(super) fn all(rows: &[Row]) -> [Answer; 3] {
    let rows = Figures(rows);
    [free(&rows), contended(&rows), many(&rows)]
}

/// Which of the cases of a part.
#[derive(Clone, Copy)]
enum Case {
    Named(&'static str),
    /// In as many processes as there were, with the least and the most waiters of those from ten on.
    FewWaiters,
    MostWaiters,
    /// For one name, and for one each.
    OneName,
    ManyNames,
    Last,
}

struct Figures<'a>(&'a [Row]);

impl<'a> Figures<'a> {
    /// Those that processes can share.
    fn stores(&self) -> Vec<Store> {
        let mut stores: Vec<Store> = self.0.iter().map(|row| row.store).collect();
        stores.retain(|store| store.is_shared());
        stores.sort();
        stores.dedup();
        stores
    }

    fn find(&self, part: Part, store: Store, library: &str, case: Case) -> Option<&'a Row> {
        let mut rows: Vec<&Row> = self.0.iter().collect();
        rows.retain(|row| (row.part, row.store, row.library.as_str()) == (part, store, library));
        rows.retain(|row| row.failed.is_none());
        let of = |row: &&Row, place: usize| numbers(&row.case).get(place).copied().unwrap_or(0);
        let processes = rows.iter().map(|row| of(row, 1)).max();
        let queues = rows.iter().copied();
        let mut queues = queues.filter(|row| Some(of(row, 1)) == processes && of(row, 0) >= 10);
        match case {
            Case::Named(name) => rows.into_iter().find(|row| row.case == name),
            Case::FewWaiters => queues.min_by_key(|row| of(row, 0)),
            Case::MostWaiters => queues.max_by_key(|row| of(row, 0)),
            Case::OneName => queues.find(|row| of(row, 2) == 1).or(rows.first().copied()),
            Case::ManyNames => rows.into_iter().max_by_key(|row| of(row, 2)),
            Case::Last => rows.last().copied(),
        }
    }

    fn ours(&self, part: Part, store: Store, case: Case) -> Option<&'a Row> {
        self.find(part, store, OURS, case)
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
        peers.retain(|library| !library.starts_with(OURS));
        peers.sort_unstable();
        peers.dedup();
        let rows = peers.into_iter().filter_map(|peer| self.find(part, store, peer, case));
        rows.filter_map(|row| Some((row, figure(row)?)))
            .min_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(row, _)| row)
    }

    /// A bar for each store, and one for the best peer on it.
    fn bars(
        &self,
        part: Part,
        case: Case,
        figure: fn(&Row) -> Option<f64>,
        is_less: bool,
    ) -> Vec<Bar> {
        let mut bars = Vec::new();
        for store in self.stores() {
            let ours = self.ours(part, store, case);
            let sign = if is_less { 1.0 } else { -1.0 };
            let best = self.best(part, store, case, |row| Some(sign * figure(row)?));
            for (row, is_peer) in
                ours.map(|row| (row, false)).into_iter().chain(best.map(|row| (row, true)))
            {
                let Some(value) = figure(row) else { continue };
                let label = match is_peer {
                    true => peer(row).to_owned(),
                    false => store.name().to_owned(),
                };
                bars.push(Bar { label, value, is_peer });
            }
        }
        bars
    }
}

/// Those in a case, in their order.
fn numbers(case: &str) -> Vec<u32> {
    case.split(' ').filter_map(|word| word.parse().ok()).collect()
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

fn time_of(row: &Row) -> Option<f64> {
    row.time.map(|Spread { p50, .. }| p50 as f64)
}

fn rate_of(row: &Row) -> Option<f64> {
    row.counted("acquisitions/s")
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut text = line(head.iter().map(|name| (*name).to_owned()));
    text += &line(head.iter().map(|_| "---".to_owned()));
    text + &rows.into_iter().map(line).collect::<String>()
}

fn free(rows: &Figures<'_>) -> Answer {
    let (busy, paced) = (Case::Named("busy: both"), Case::Named("paced: both"));
    let of = |store| {
        let (one, rested) =
            (rows.ours(Part::Pair, store, busy), rows.ours(Part::Pair, store, paced));
        let best = rows.best(Part::Pair, store, busy, time_of);
        let best =
            best.map_or(NONE.to_owned(), |row| format!("{}, {}", median(Some(row)), peer(row)));
        vec![store.name().to_owned(), median(one), ratio(one), median(rested), ratio(rested), best]
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
        name: "free",
        table: table(&head, rows.stores().into_iter().map(of).collect()),
        plot: Plot {
            title: "Acquire and release of a free lock",
            axis: "median, as a multiple of the floor",
            floor: Some(1.0),
            bars: rows.bars(Part::Pair, busy, Row::ratio, true),
        },
    }
}

fn contended(rows: &Figures<'_>) -> Answer {
    let of = |store| {
        let few = rows.ours(Part::HandOver, store, Case::FewWaiters);
        let most = rows.ours(Part::HandOver, store, Case::MostWaiters);
        let best = rows.best(Part::HandOver, store, Case::FewWaiters, time_of);
        let best =
            best.map_or(NONE.to_owned(), |row| format!("{}, {}", median(Some(row)), peer(row)));
        let requests = counted(few, "requests each");
        vec![
            store.name().to_owned(),
            median(few),
            ratio(few),
            median(most),
            ratio(most),
            requests,
            best,
        ]
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
        name: "hand-over",
        table: table(&head, rows.stores().into_iter().map(of).collect()),
        plot: Plot {
            title: "From a release to the next holder, 10 waiting in 4 processes",
            axis: "median, as a multiple of the floor",
            floor: Some(1.0),
            bars: rows.bars(Part::HandOver, Case::FewWaiters, Row::ratio, true),
        },
    }
}

fn many(rows: &Figures<'_>) -> Answer {
    let of = |store| {
        let one = rows.ours(Part::Throughput, store, Case::OneName);
        let names = rows.ours(Part::Throughput, store, Case::ManyNames);
        let cohort = rows.find(Part::Throughput, store, COHORT, Case::OneName);
        let held = rows.ours(Part::Held, store, Case::Last);
        let bytes = held.and_then(|row| row.counted("client bytes each"));
        vec![
            store.name().to_owned(),
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
        name: "throughput",
        table: table(&head, rows.stores().into_iter().map(of).collect()),
        plot: Plot {
            title: "Grants of one name, 64 contenders in 4 processes",
            axis: "grants per second",
            floor: None,
            bars: rows.bars(Part::Throughput, Case::OneName, rate_of, false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            row(Part::Held, OURS, "1000 held", 1, 1).count("client bytes each", 2048.0),
            row(Part::Held, OURS, "10000 held", 1, 1).count("client bytes each", 3072.0),
        ];
        let [free, contended, many] = all(&rows);
        let last = |answer: &Answer| answer.table.lines().last().unwrap().to_owned();
        assert_eq!(last(&free), "| Redis | 150 µs | 1.50 | 600 µs | 1.20 | 120 µs, rslock |");
        assert_eq!(last(&contended), "| Redis | 3 µs | 3.00 | 4 µs | 4.00 | 3 | – |");
        assert_eq!(last(&many), "| Redis | 4000 | – | – | 40000 | 3 | – |");
        let bars = |answer: &Answer| {
            let bars = answer.plot.bars.iter();
            bars.map(|bar| (bar.label.clone(), bar.value, bar.is_peer)).collect::<Vec<_>>()
        };
        let of = |label: &str, value, is_peer| (label.to_owned(), value, is_peer);
        assert_eq!(bars(&free), [of("Redis", 1.5, false), of("rslock", 1.2, true)]);
        assert_eq!(bars(&many), [of("Redis", 4000.0, false), of("fast", 9000.0, true)]);
    }
}
