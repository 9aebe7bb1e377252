//! A resource that checks tokens, and what holders do there, in time or late.

use super::state::{Hold, Kind, Marks, State};
use super::steps::{What, Who};
use super::{RwLock, Wrong};
use crate::explore::{Fact, Step};

impl RwLock {
    pub(super) fn of_resource(&self, from: &State, steps: &mut Vec<Step<Self>>) {
        for (w, writer) in from.writers.iter().enumerate() {
            if let Some(hold) = writer.hold() {
                let believes = writer.writes();
                steps.push(self.act(*from, (Who::Writer(w), Kind::Writer), hold, believes));
            }
        }
        for (r, reader) in from.readers.iter().enumerate() {
            if let Some(hold) = reader.hold() {
                let believes = reader.reads();
                steps.push(self.act(*from, (Who::Reader(r), Kind::Reader), hold, believes));
            }
        }
    }

    fn act(
        &self,
        mut state: State,
        (who, kind): (Who, Kind),
        hold: Hold,
        believes: bool,
    ) -> Step<Self> {
        let is_admitted = self.admits(&mut state.resource, kind, hold.token);
        let mut facts: Vec<Fact> = Vec::new();
        match is_admitted {
            true if hold.is_overtaken => facts.push(Self::REFUSAL),
            false if believes => facts.push(Self::ADMISSION),
            false => facts.push(Self::REFUSED),
            true => {}
        }
        if is_admitted {
            for (other, earlier) in state.holds_mut() {
                earlier.is_overtaken |= kind.conflicts(other) && earlier.born < hold.born;
            }
        }
        Step { facts, ..Step::chance(What::Acts(who), state) }
    }

    /// The check that a resource makes.
    fn admits(&self, marks: &mut Marks, kind: Kind, token: u8) -> bool {
        let is_admitted = match kind {
            _ if self.is(Wrong::OneMark) => token >= marks.writer.max(marks.reader),
            Kind::Writer if self.is(Wrong::AdmitsEqual) => {
                token >= marks.writer && token >= marks.reader
            }
            Kind::Writer => token >= marks.writer && token > marks.reader,
            Kind::Reader => token >= marks.writer,
        };
        let mark = match kind {
            Kind::Writer => &mut marks.writer,
            Kind::Reader => &mut marks.reader,
        };
        if is_admitted {
            *mark = token.max(*mark);
        }
        is_admitted
    }
}
