//! When which fault strikes: a shuffled deck of all that apply, drawn from the seed alone.

use std::time::Duration;

use conformance_tests::shared::Seeded;
use serde::Serialize;

use super::act::{Act, Class, Span};
use super::rows::{ROWS, Row};
use crate::kind::Kind;

/// What a phase is for: faults that may break more have phases of their own, so that what is broken
/// has one explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// No faults: what a set-up does undisturbed.
    Calm,
    /// Nothing may break.
    Storm,
    /// Exclusion may break.
    Break,
    /// The same, by a clock that is set: fences that are ahead of the clock from then on would fall
    /// with a loss of data.
    Step,
    /// The fences may fall, too.
    Ruin,
}

impl Phase {
    /// The phase in which a row strikes.
    fn of(row: &Row, class: Class) -> Self {
        match (class, row.act) {
            (Class::K | Class::U, _) => Self::Storm,
            (Class::F, Act::Clock(..)) => Self::Step,
            (Class::F, _) => Self::Break,
            (Class::X, _) => Self::Ruin,
        }
    }
}

/// One fault that is to strike.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) row: &'static Row,
    pub(crate) class: Class,
    /// The pause before it.
    pub(crate) gap: Duration,
    pub(crate) lasts: Duration,
    /// Which worker, server or request it meets, out of those that there are then.
    pub(crate) pick: u64,
}

/// The faults of a phase, `hits` of each row, in the order in which they strike.
pub(crate) fn deck(kind: Kind, phase: Phase, hits: usize, seeded: &mut Seeded) -> Vec<Planned> {
    let ttl = kind.ttl();
    let rows = ROWS.iter().filter_map(|row| Some((row, row.class(kind)?)));
    let mut deck: Vec<_> = rows
        .filter(|(row, class)| Phase::of(row, *class) == phase)
        .flat_map(|(row, class)| std::iter::repeat_n((row, class), hits))
        .map(|(row, class)| Planned {
            row,
            class,
            gap: ttl.mul_f64(0.1) + Duration::from_millis(seeded.below(300)),
            lasts: drawn(span(row.act), ttl, seeded),
            pick: seeded.next_u64(),
        })
        .collect();
    for at in (1..deck.len()).rev() {
        let other = usize::try_from(seeded.below(at as u64 + 1)).unwrap_or(0);
        deck.swap(at, other);
    }
    deck
}

fn span(act: Act) -> Span {
    match act {
        Act::Worker(_, span)
        | Act::Link(_, span)
        | Act::Server(_, _, span)
        | Act::While(_, span)
        | Act::CutOff(span)
        | Act::Clock(_, span) => span,
        Act::Once(_) | Act::Force => (0, 0),
    }
}

fn drawn((least, most): Span, ttl: Duration, seeded: &mut Seeded) -> Duration {
    ttl.mul_f64((least + seeded.below(most - least + 1)) as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_schedule() {
        let deck = |seed| {
            let faults = deck(Kind::Etcd3, Phase::Storm, 3, &mut Seeded::from(seed));
            let told = faults.iter().map(|fault| (fault.row.name, fault.lasts, fault.pick));
            told.collect::<Vec<_>>()
        };
        assert_eq!(deck(7), deck(7));
        assert_ne!(deck(7), deck(8));
    }

    #[test]
    fn every_row_that_applies_is_struck_as_often_as_asked() {
        for phase in [Phase::Storm, Phase::Break, Phase::Step] {
            let deck = deck(Kind::Redis, phase, 4, &mut Seeded::from(1));
            for fault in &deck {
                let hits = deck.iter().filter(|other| other.row.name == fault.row.name).count();
                assert_eq!(hits, 4, "{fault:?}");
            }
        }
    }
}
