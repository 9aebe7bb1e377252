//! Tables in Markdown.

use crate::results::Row;
use crate::samples::Spread;

/// Of the rows of one part: a column for each of their counts.
pub(super) fn of(rows: &[&Row]) -> String {
    let mut counts: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.counts) {
        if !counts.contains(&name.as_str()) {
            counts.push(name);
        }
    }
    // A column of noughts is one line.
    let (shown, noughts): (Vec<&str>, _) = counts.into_iter().partition(|name| {
        rows.iter().any(|row| row.counted(name).is_some_and(|count| count != 0.0))
    });
    let timed = rows.iter().any(|row| row.time.is_some());
    let floored = rows.iter().any(|row| row.floor.is_some());
    let mut head = vec!["store", "case"];
    if timed {
        head.push("p50/p99/max");
    }
    if floored {
        head.extend(["floor", "p50 × floor"]);
    }
    head.extend(&shown);
    let mut text = head_of(&head);
    for row in rows {
        let case = row.failed.as_ref().map_or(row.case.clone(), |why| format!("failed: {why}"));
        let mut cells = vec![whose(row), case];
        let spread = |spread: Option<Spread>| spread.map_or("–".to_owned(), times);
        if timed {
            cells.push(spread(row.time));
        }
        if floored {
            let ratio = row.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
            let floor = row.floor.map_or("–".to_owned(), |floor| duration(floor.p50));
            cells.extend([floor, ratio]);
        }
        let count = |name: &&str| row.counted(name).map_or("–".to_owned(), number);
        cells.extend(shown.iter().map(count));
        text += &line(cells);
    }
    if !noughts.is_empty() {
        text += &format!("\nNought in every row: {}.\n", noughts.join(", "));
    }
    text
}

/// The store, and the library unless it is this one.
fn whose(row: &Row) -> String {
    let store = row.store.name();
    match row.library.strip_prefix("distlock") {
        Some(variant) => format!("{store}{variant}"),
        None => format!("{store}: {}", row.library),
    }
}

/// The names of the columns, and the line below them.
pub(super) fn head_of(names: &[&str]) -> String {
    let below = names.iter().map(|_| "---".to_owned());
    line(names.iter().map(|name| (*name).to_owned())) + &line(below)
}

pub(super) fn line(cells: impl IntoIterator<Item = String>) -> String {
    // A bar would end the cell, and a new line the table.
    let cells = cells.into_iter().map(|cell| cell.replace('|', "/").replace('\n', " "));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Three times in the unit of the median.
fn times(spread: Spread) -> String {
    let (unit, size) = unit(spread.p50 as f64);
    let [p50, p99, max] =
        [spread.p50, spread.p99, spread.max].map(|time| number(time as f64 / size));
    format!("{p50}/{p99}/{max} {unit}")
}

/// Of so many nanoseconds.
pub(super) fn duration(nanos: u64) -> String {
    let (unit, size) = unit(nanos as f64);
    format!("{} {unit}", number(nanos as f64 / size))
}

/// The largest unit of which there is at least one, and its nanoseconds.
fn unit(nanos: f64) -> (&'static str, f64) {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3)];
    units.into_iter().find(|(_, size)| nanos >= *size).unwrap_or(("ns", 1.0))
}

/// To three digits or to the unit.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Part;
    use crate::stores::Store;

    #[test]
    fn a_row_shows_its_times_its_ratio_and_its_counts() {
        let spread = |p50| Some(Spread { count: 9, p50, p99: 2 * p50, max: 150 * p50 });
        let row = Row::new(Part::Pair, Store::Redis, "distlock, cohort(32)", "busy")
            .times(spread(1_500), spread(1_000))
            .count("requests each", 2.0)
            .count("lost", 0.0);
        let other =
            Row { failed: Some("a|b".to_owned()), ..Row::new(Part::Pair, Store::Etcd, "x", "y") };
        let table = of(&[&row, &other]);
        assert_eq!(
            table.lines().collect::<Vec<_>>(),
            [
                "| store | case | p50/p99/max | floor | p50 × floor | requests each |",
                "| --- | --- | --- | --- | --- | --- |",
                "| Redis, cohort(32) | busy | 1.50/3/225 µs | 1 µs | 1.50 | 2 |",
                "| etcd: x | failed: a/b | – | – | – | – |",
                "",
                "Nought in every row: lost.",
            ]
        );
    }
}
