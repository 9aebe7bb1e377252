//! Fuzzes what a database can answer: rows, whoever wrote them.

use lock_testkit::fuzz::{Fuzz, Pieces, reason};

use crate::engine::table::row::{LeaseRow, LeaseState};
use crate::engine::wire::statement::{Row, SqlValue};

const WORDS: &[&str] = &[
    "order:42",
    "0123456789abcdef0123456789abcdef",
    "\u{1f}",
    "\u{2}\u{1}\u{3}",
    "\u{e9}",
    "label",
];

fn value(pieces: &mut Pieces<'_>) -> SqlValue<'static> {
    match pieces.byte() % 6 {
        0 => String::from_utf8_lossy(pieces.bytes()).into_owned().into(),
        1 => SqlValue::Bytes(pieces.bytes().to_vec()),
        2 | 3 => SqlValue::Int(pieces.number()),
        4 => SqlValue::Bool(pieces.byte().is_multiple_of(2)),
        _ => SqlValue::Null,
    }
}

#[test]
fn fuzz_rows() {
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), "rows", WORDS).run(|input| {
        let mut pieces = Pieces(input);
        let mut row = Row(Vec::new());
        while !pieces.is_over() && row.0.len() < 12 {
            row.0.push(value(&mut pieces));
        }
        let told = LeaseRow::after_number(&row).map(|lease| lease.is_some());
        let told = told.map_or_else(|error| reason(&error), |told| format!("{told}"));
        let lease = match LeaseRow::read(&row) {
            Ok(lease) => lease,
            Err(error) => return format!("{told} {}", reason(&error)),
        };
        let owner = lease.owner.clone().unwrap_or_default();
        let left = lease.left_of(&owner, None);
        assert!(
            left.is_none() || matches!(lease.state, LeaseState::Runs(_)),
            "a lease that is over lasts"
        );
        let over = lease.state == LeaseState::Over;
        let holder = lease.holder();
        assert!(!(over && holder.is_some()), "a lease that is over has a holder");
        let known = holder.map(|info| (info.owner.is_some(), info.fence.is_some()));
        format!("{told} {} {known:?}", left.is_some())
    });
}
