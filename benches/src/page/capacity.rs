//! What a store carries, computed from what was measured.

use super::table::{head_of, line, number};
use crate::client::Library;
use crate::results::{self, Part, Row};

/// A row for each store.
pub(super) fn table(rows: &[Row]) -> String {
    let head = [
        "store",
        "grants/s of one name",
        "grants/s of many names",
        "… until its servers have used one core",
        "held locks until the renewals have used a tenth of a core",
        "held locks in a GiB of the servers",
        "connections of a client",
    ];
    let mut text = head_of(&head);
    for store in results::stores(rows) {
        let ours = |row: &&Row| row.store == store && row.library == Library::Distlock.name();
        let of = |part| rows.iter().filter(ours).filter(move |row| row.part == part);
        // The case for one name is measured before that for many, and few held locks before many.
        let one = of(Part::Throughput).next();
        let many = of(Part::Throughput).next_back();
        let held = of(Part::Held).next_back();
        let count = |row: Option<&Row>, name| row?.counted(name);
        let above = |value: f64| (value > 0.0).then_some(value);
        let each = count(many, "server µs each").and_then(above);
        let number_held = held.and_then(|row| row.case.split(' ').next()?.parse::<f64>().ok());
        let of_core = count(held, "server, % of a core").or(count(held, "client, % of a core"));
        let renewed =
            of_core.and_then(above).zip(number_held).map(|(used, held)| held * 10.0 / used);
        let bytes = count(held, "server bytes each").and_then(above);
        let cells = [
            count(one, "acquisitions/s"),
            count(many, "acquisitions/s"),
            each.map(|micros| 1e6 / micros),
            renewed,
            bytes.map(|bytes| f64::from(1 << 30) / bytes),
            count(held, "connections"),
        ];
        let cells = cells.map(|cell| cell.map_or("–".to_owned(), number));
        text += &line([store.name().to_owned()].into_iter().chain(cells));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::Store;

    #[test]
    fn limits_follow_from_what_was_measured() {
        let row = |part, case| Row::new(part, Store::Redis, "distlock", case);
        let rows = [
            row(Part::Throughput, "1 name").count("acquisitions/s", 3000.0),
            row(Part::Throughput, "64 names")
                .count("acquisitions/s", 20_000.0)
                .count("server µs each", 40.0),
            row(Part::Held, "10000 held")
                .count("server, % of a core", 0.5)
                .count("server bytes each", 512.0)
                .count("connections", 1.0),
        ];
        let table = table(&rows);
        let last = table.lines().last().unwrap();
        assert_eq!(last, "| Redis | 3000 | 20000 | 25000 | 200000 | 2097152 | 1 |");
    }
}
