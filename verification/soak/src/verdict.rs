//! What is made of the history of a phase.

use conformance_tests::shared::{
    Compares, HoldRecord, Register, Violation, check, check_fences, check_marks, conflicts, crowd,
    overlaps,
};

use crate::fault::{Class, Phase, Strike};
use crate::kind::Kind;
use crate::ledger::Loss;
use crate::parts::{PERMITS, Parts};
use crate::stage::{REGISTERS, Violated};

/// How late a loss may be reported by a process that runs.
const LATE: u64 = 50_000_000;
/// The reasons of losses that no worker asks for, as they write them: `LostReason::Taken` and `LostReason::Expired`.
const TAKEN: &str = "Taken";
const EXPIRED: &str = "Expired";

/// An exclusion that was broken, and the one fault that explains it.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violated>,
    pub(crate) broken: Vec<Broken>,
    /// Exclusions that were broken under more than one fault that may have done it.
    pub(crate) ambiguous: usize,
    /// Losses that were told late by processes that had not run, and for how long the one had not run that
    /// needed it most, in nanoseconds.
    pub(crate) excused: (usize, u64),
    /// Updates that the guarded register has acknowledged.
    pub(crate) acknowledged: usize,
    /// Updates that each control has lost.
    pub(crate) lost_by_controls: [usize; 2],
}

/// What is known of one phase.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
    pub(crate) names: &'a [String],
    pub(crate) parts: &'a Parts,
    pub(crate) holds: &'a [Vec<HoldRecord>],
    pub(crate) registers: &'a [[Register; 3]],
    pub(crate) strikes: &'a [Strike],
    pub(crate) losses: &'a [Loss],
}

impl Evidence<'_> {
    pub(crate) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for (at, (name, holds)) in self.names.iter().zip(self.holds).enumerate() {
            if at == self.parts.reads() {
                self.readers(name, &mut verdict);
                continue;
            }
            self.exclusion(name, overlaps(holds), holds, &mut verdict);
            if self.phase != Phase::Ruin
                && let Err(violation) = check_fences(holds)
            {
                verdict.violations.push(Violated::new("S2", format!("{name:?}: {violation}")));
            }
        }
        for (name, registers) in self.names.iter().zip(self.registers) {
            self.register(name, registers, &mut verdict);
        }
        self.permits(&mut verdict);
        self.in_time(&mut verdict);
        self.ownership(&mut verdict);
        verdict
    }

    /// S1. Only a fault of class F that has met the earlier hold explains that it was broken.
    fn exclusion(
        &self,
        name: &str,
        overlaps: Vec<(HoldRecord, HoldRecord)>,
        holds: &[HoldRecord],
        verdict: &mut Verdict,
    ) {
        for (first, second) in overlaps {
            let explains = |strike: &&Strike| self.explains(strike, name, holds, &first, &second);
            match self.strikes.iter().filter(explains).collect::<Vec<_>>()[..] {
                [] => {
                    let violation = Violation::Overlap(Box::new((first, second)));
                    let what = format!("{name:?}: {violation}");
                    verdict.violations.push(Violated::new("S1", what));
                }
                [strike] => {
                    verdict.broken.push(Broken { number: strike.number, name: strike.name });
                }
                // Nobody can tell which of them it was, so none gets the credit.
                _ => verdict.ambiguous += 1,
            }
        }
    }

    /// S1 and S2 of readers and writers. Writers among themselves have been judged.
    fn readers(&self, name: &str, verdict: &mut Verdict) {
        let (reads, writes) = (&self.holds[self.parts.reads()], &self.holds[self.parts.writes()]);
        let mut beside = conflicts(reads, writes);
        beside.retain(|(first, second)| reads.contains(first) || reads.contains(second));
        let all = [&**reads, &**writes].concat();
        self.exclusion(name, beside, &all, verdict);
        if self.phase != Phase::Ruin
            && let Err(wrong) = check_marks(reads, writes)
        {
            verdict.violations.push(Violated::new("S2", format!("{name:?}: {wrong}")));
        }
    }

    /// S1 of permits. Each slot has been judged as a lock of its own, in all phases: without two holders of a slot there are
    /// never too many.
    fn permits(&self, verdict: &mut Verdict) {
        if !matches!(self.phase, Phase::Calm | Phase::Storm) {
            return;
        }
        let Some(slots) = self.holds.get(self.parts.slots()) else { return };
        if let Some(crowd) = crowd(&slots.concat(), PERMITS as usize) {
            let told: Vec<_> = crowd.iter().map(ToString::to_string).collect();
            let what = format!("of {PERMITS} permits at once: {}", told.join(" and "));
            verdict.violations.push(Violated::new("S1", what));
        }
    }

    /// A strike breaks a lock that a worker has when it acts, and no lock but its own if it is aimed at one. Nobody believes in
    /// what was broken for longer than a ttl.
    fn explains(
        &self,
        strike: &Strike,
        name: &str,
        holds: &[HoldRecord],
        one: &HoldRecord,
        other: &HoldRecord,
    ) -> bool {
        let Some((begun, ended)) = strike.acted else { return false };
        // A worker may pass its hold on within its cohort, until it hears of it.
        let is_met = |first: &HoldRecord| {
            first.valid_until <= ended + self.ttl()
                && holds.iter().any(|hold| {
                    hold.client == first.client && self.begun(hold) <= ended && begun <= hold.end()
                })
        };
        strike.class >= Class::F
            && strike.is_aimed_at(name)
            && [(one, other), (other, one)].into_iter().any(|(first, second)| {
                self.is_first(first, second)
                    && begun <= second.granted
                    && second.granted <= ended + self.ttl()
                    && is_met(first)
            })
    }

    /// Whether the store may have granted one hold before the other, which may have been told earlier: the fences say so
    /// unless they may fall.
    fn is_first(&self, one: &HoldRecord, other: &HoldRecord) -> bool {
        match self.phase {
            Phase::Ruin => self.begun(one) <= other.granted,
            _ => one.fence <= other.fence,
        }
    }

    /// When the store has granted a hold at the earliest: as soon as that was asked for, and no longer than a ttl before its
    /// validity ends.
    fn begun(&self, hold: &HoldRecord) -> u64 {
        hold.granted.min(hold.valid_until.saturating_sub(self.ttl())).max(hold.invoked)
    }

    /// S3 and L2. No loss without a fault: a store says that a lock was taken only after one that may break that lock, and a
    /// lease runs out only where something may have kept its holder from renewing it.
    fn ownership(&self, verdict: &mut Verdict) {
        for loss in self.losses {
            let name = &self.names[loss.name];
            let (promise, least) = match &*loss.reason {
                TAKEN => ("S3", Class::F),
                EXPIRED => ("L2", Class::K),
                // The worker has asked for it.
                _ => continue,
            };
            let explains = |strike: &Strike| {
                strike.class >= least
                    && (least == Class::K || strike.is_aimed_at(name))
                    && strike.begun <= loss.at
                    && loss.at - loss.late <= strike.ended + self.ttl()
            };
            if !self.strikes.iter().any(explains) {
                let reason = &loss.reason;
                let what = format!("{name:?}: a loss ({reason}) that no fault explains");
                verdict.violations.push(Violated::new(promise, what));
            }
        }
    }

    fn ttl(&self) -> u64 {
        u64::try_from(self.kind.ttl().as_nanos()).unwrap_or(u64::MAX)
    }

    /// S5. A process that did not run could not tell anything.
    fn in_time(&self, verdict: &mut Verdict) {
        for loss in self.losses.iter().filter(|loss| loss.late > LATE) {
            if loss.late <= LATE + loss.stalled {
                let (losses, longest) = verdict.excused;
                verdict.excused = (losses + 1, longest.max(loss.stalled));
                continue;
            }
            let what = format!(
                "{:?}: a loss ({}) was reported {} ms after the end of validity; the process had not run for {} ms since",
                self.names[loss.name],
                loss.reason,
                loss.late / 1_000_000,
                loss.stalled / 1_000_000
            );
            verdict.violations.push(Violated::new("S5", what));
        }
    }

    /// S7.
    fn register(&self, name: &str, registers: &[Register; 3], verdict: &mut Verdict) {
        for (register, compares) in registers.iter().zip(REGISTERS) {
            let lost = register.lost();
            if compares == Compares::Always {
                verdict.acknowledged += register.acknowledged();
            }
            match compares {
                Compares::Always if self.phase == Phase::Ruin => {}
                Compares::Always => {
                    if !lost.is_empty() {
                        let what = format!("{name:?}: lost {lost:?}");
                        verdict.violations.push(Violated::new("S7", what));
                    }
                    if !register.fences().is_sorted() {
                        let what = format!("{name:?}: the fences of the writes fall");
                        verdict.violations.push(Violated::new("S7", what));
                    }
                }
                Compares::OnWrite => verdict.lost_by_controls[0] += lost.len(),
                Compares::Never => verdict.lost_by_controls[1] += lost.len(),
            }
        }
    }
}

/// A change to two holds of which the second begins after the first.
type Doctor = fn(&mut HoldRecord, &mut HoldRecord);

/// Changes a real history in ways that must be refused; what was not refused.
pub(crate) fn doctored(by_name: &[Vec<HoldRecord>], parts: &Parts) -> Result<(), String> {
    doctored_kinds(by_name, parts)?;
    let apart = |pair: &[HoldRecord]| pair[1].invoked > pair[0].granted;
    let found = by_name[..parts.plain].iter().find_map(|holds| {
        let mut by_time = holds.clone();
        by_time.sort_by_key(|hold| hold.granted);
        let at = by_time.windows(2).position(apart)?;
        Some((by_time, at))
    });
    let Some((by_time, at)) = found else {
        return Err("no two holds are far enough apart to be doctored".to_owned());
    };
    let ways: [(&str, Doctor); 3] = [
        ("a fence that was given twice", |first, second| second.fence = first.fence),
        ("fences that fall", |first, second| {
            std::mem::swap(&mut first.fence, &mut second.fence);
        }),
        ("a holder that believed for too long", |first, second| {
            first.valid_until = second.granted + 2;
            (first.release_invoked, first.lost, first.released) = (None, None, None);
            second.valid_until = second.valid_until.max(second.granted + 2);
            (second.release_invoked, second.lost) = (None, None);
        }),
    ];
    for (what, doctor) in ways {
        let mut changed = by_time.clone();
        let (first, second) = changed.split_at_mut(at + 1);
        doctor(&mut first[at], &mut second[0]);
        if check(&changed).is_ok() {
            return Err(format!("the checker has let pass {what}"));
        }
    }
    Ok(())
}

/// The same for other kinds of lock.
fn doctored_kinds(by_name: &[Vec<HoldRecord>], parts: &Parts) -> Result<(), String> {
    let believed = |at: usize| by_name[at].iter().find(|hold| hold.end() > hold.granted).cloned();
    let permit = parts.slots().find_map(believed);
    let (write, read) = (believed(parts.writes()), believed(parts.reads()));
    let (Some(permit), Some(write), Some(read)) = (permit, write, read) else {
        return Err("a kind of lock was never held, so nothing can be doctored".to_owned());
    };
    if crowd(&vec![permit; PERMITS as usize + 1], PERMITS as usize).is_none() {
        return Err("the checker has let pass one permit too many".to_owned());
    }
    // A reader that has not looked, and one with the token of a writer before.
    let beside = HoldRecord { invoked: write.invoked, granted: write.granted, ..read.clone() };
    let beside =
        HoldRecord { valid_until: write.end(), release_invoked: None, lost: None, ..beside };
    if conflicts(&[beside], std::slice::from_ref(&write)).is_empty() {
        return Err("the checker has let pass a read beside a write".to_owned());
    }
    let stale = HoldRecord { invoked: write.granted + 1, fence: write.fence - 1, ..read };
    if check_marks(&[stale], &[write]).is_ok() {
        return Err("the checker has let pass a reader with a token of the past".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doctored_history_is_refused() {
        let hold = |start| HoldRecord::new(1, start, start + 1, start + 1, start + 5);
        let parts = Parts::new(1, 1);
        let history = |plain: Vec<HoldRecord>, read: Vec<HoldRecord>| {
            [vec![plain], vec![vec![hold(3)]; PERMITS as usize + 1], vec![read]].concat()
        };
        let three = vec![hold(0), hold(10), hold(20)];
        assert_eq!(doctored(&history(three.clone(), vec![hold(9)]), &parts), Ok(()));
        assert!(doctored(&history(vec![hold(0)], vec![hold(9)]), &parts).is_err());
        assert!(doctored(&history(three, vec![]), &parts).is_err());
    }

    #[test]
    fn only_a_standstill_of_its_process_excuses_a_late_loss() {
        let loss = |late: u64, stalled: u64| {
            let (late, stalled) = (late * 1_000_000, stalled * 1_000_000);
            Loss { name: 0, at: late, reason: "MaxHold".to_owned(), late, stalled }
        };
        let judge = |losses: &[Loss]| {
            let verdict = judge(Phase::Storm, &[], losses, &[]);
            (verdict.violations.len(), verdict.excused)
        };
        assert_eq!(judge(&[loss(50, 0), loss(10, 900)]), (0, (0, 0)));
        assert_eq!(judge(&[loss(51, 0), loss(900, 849)]), (2, (0, 0)));
        assert_eq!(judge(&[loss(900, 850), loss(100, 60)]), (0, (2, 850_000_000)));
    }

    #[test]
    fn a_loss_has_a_fault_that_explains_it() {
        assert_eq!(TAKEN, format!("{:?}", distlock::LostReason::Taken));
        assert_eq!(EXPIRED, format!("{:?}", distlock::LostReason::Expired));
        let ttl = u64::try_from(Kind::Redis.ttl().as_nanos()).unwrap();
        let (begun, ended) = (2 * ttl, 3 * ttl);
        let strike = |class, lock: Option<&str>| Strike {
            begun,
            ended,
            lock: lock.map(str::to_owned),
            ..struck(class)
        };
        let (any, freed, own, other) = (
            strike(Class::K, None),
            strike(Class::F, None),
            strike(Class::F, Some("a")),
            strike(Class::F, Some("b")),
        );
        let seen = |strikes: &[Strike], reason: &str, at, late| {
            let losses = [Loss { name: 0, at, reason: reason.to_owned(), late, stalled: late }];
            let phases = [Phase::Calm, Phase::Storm, Phase::Break, Phase::Step, Phase::Ruin];
            let promises = phases.map(|phase| {
                let violations = judge(phase, strikes, &losses, &[]).violations;
                violations.iter().map(|violated| violated.promise).collect::<String>()
            });
            assert!(promises.iter().all(|promise| promise == &promises[0]), "{promises:?}");
            promises[0].clone()
        };
        for (strikes, taken, expired) in [
            (&[][..], "S3", "L2"),
            (&[any], "S3", ""),
            (&[freed], "", ""),
            (&[own], "", ""),
            (&[other], "S3", ""),
        ] {
            assert_eq!(seen(strikes, "Taken", begun, 0), taken, "{strikes:?}");
            assert_eq!(seen(strikes, "Expired", ended + ttl, 0), expired, "{strikes:?}");
            // The worker has set a limit.
            assert_eq!(seen(strikes, "MaxHold", 0, 0), "");
            // Before it, and more than a ttl after it; in time, and told late.
            assert_eq!(seen(strikes, "Taken", begun - 1, 0), "S3");
            assert_eq!(seen(strikes, "Expired", ended + ttl + 1, 0), "L2");
            assert_eq!(seen(strikes, "Expired", ended + ttl + 1, 1), expired, "{strikes:?}");
        }
    }

    fn struck(class: Class) -> Strike {
        Strike {
            number: 20,
            name: "all data is lost at once",
            class,
            begun: 0,
            ended: 0,
            acted: None,
            lock: None,
            failed: None,
        }
    }

    /// What is made of a phase with one lock.
    fn judge(
        phase: Phase,
        strikes: &[Strike],
        losses: &[Loss],
        holds: &[Vec<HoldRecord>],
    ) -> Verdict {
        let (names, registers) = (&["a".to_owned()][..], &[REGISTERS.map(Register::new)][..]);
        let (kind, parts) = (Kind::Redis, &Parts::new(1, 1));
        Evidence { kind, phase, names, parts, holds, registers, strikes, losses }.judge()
    }

    #[test]
    fn only_a_fault_that_has_met_the_hold_explains_two_holders() {
        let tick = 100_000_000;
        let waits = |client, asked: u64, told: u64, end: u64| {
            HoldRecord::new(client, asked * tick, told * tick, asked, end * tick)
        };
        let hold = |client, start, end| waits(client, start, start, end);
        // It waits for a holder before it acts, and for the next one after that.
        let strike = |class, at: u64, lock: Option<&str>| Strike {
            begun: (at - 2) * tick,
            ended: (at + 4) * tick,
            acted: Some((at * tick, at * tick)),
            lock: lock.map(str::to_owned),
            ..struck(class)
        };
        let ttl = u64::try_from(Kind::Redis.ttl().as_nanos()).unwrap() / tick;
        let count = |strikes: &[Strike], holds: &[HoldRecord]| {
            let verdict = judge(Phase::Break, strikes, &[], &[holds.to_vec()]);
            (verdict.violations.len(), verdict.broken.len(), verdict.ambiguous)
        };
        let long = [hold(1, 10, 10 + ttl), hold(2, 12, 14)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &long), (0, 1, 0));
        assert_eq!(count(&[strike(Class::F, 11, Some("a"))], &long), (0, 1, 0));
        let both = [strike(Class::F, 11, None), strike(Class::F, 12, None)];
        assert_eq!(count(&both, &long), (0, 0, 1));
        // Nothing was done.
        let idle = Strike { acted: None, ..strike(Class::F, 11, None) };
        assert_eq!(count(&[idle], &long), (1, 0, 0));
        for wrong in [
            strike(Class::U, 11, None),
            strike(Class::F, 11, Some("b")),
            // After the second grant, and before the first.
            strike(Class::F, 13, None),
            strike(Class::F, 9, None),
        ] {
            assert_eq!(count(&[wrong], &long), (1, 0, 0));
        }
        // A ttl after it, nobody may believe any more.
        let late = [hold(1, 10, 99), hold(2, 12 + ttl, 99)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &late), (1, 0, 0));
        // It was renewed after that, and so was its own.
        let renewed = [hold(1, 10, 12 + ttl), hold(2, 12, 14)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &renewed), (1, 0, 0));
        // The next one, and the one beside it, which no longer had anything to do with the strike.
        let third = [long.to_vec(), vec![hold(3, 13, 15)]].concat();
        assert_eq!(count(&[strike(Class::F, 11, None)], &third), (1, 2, 0));
        // The answer came after the strike; it was asked for before, or only then.
        let told_late = [waits(1, 7, 10, 9 + ttl), hold(2, 12, 14)];
        assert_eq!(count(&[strike(Class::F, 9, None)], &told_late), (0, 1, 0));
        assert_eq!(count(&[strike(Class::F, 8, None)], &told_late), (1, 0, 0));
        // It came even after that of the second: the fences tell which was the first.
        let told_last = [waits(1, 10, 13, 14), hold(2, 12, 20)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &told_last), (0, 1, 0));
        assert_eq!(count(&[strike(Class::F, 9, None)], &told_last), (1, 0, 0));
        // The worker has passed on in its cohort what it no longer had.
        let passed_on = [hold(1, 10, 11), hold(1, 12, 10 + ttl), hold(2, 13, 14)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &passed_on), (0, 1, 0));
        let of_another = [hold(3, 10, 11), hold(1, 12, 10 + ttl), hold(2, 13, 14)];
        assert_eq!(count(&[strike(Class::F, 11, None)], &of_another), (1, 0, 0));
        // The second has a limit, and so ends within a ttl: that does not make it the first.
        let limited = [hold(1, 10, 10 + ttl), HoldRecord { invoked: 0, ..hold(2, 12, 9 + ttl) }];
        assert_eq!(count(&[strike(Class::F, 11, None)], &limited), (0, 1, 0));
        // Where the fences may fall, they tell nothing.
        let [first, second] = limited;
        let fallen = vec![HoldRecord { fence: u64::MAX, ..first }, second];
        let broken = |phase| {
            judge(phase, &[strike(Class::F, 11, None)], &[], std::slice::from_ref(&fallen))
                .broken
                .len()
        };
        assert_eq!([Phase::Ruin, Phase::Break].map(broken), [1, 0]);
    }

    /// The violations of one phase, with these permits, writes and reads.
    fn of_kinds(
        phase: Phase,
        strikes: &[Strike],
        [one, other, writes, reads]: [&[HoldRecord]; 4],
    ) -> Vec<&'static str> {
        let parts = &Parts::new(1, 0);
        let names: Vec<_> = parts.names().collect();
        let (kind, registers) = (Kind::Redis, &[][..]);
        let holds = &[one, other, writes, reads].map(<[HoldRecord]>::to_vec)[..];
        let evidence =
            Evidence { kind, phase, names: &names, parts, holds, registers, strikes, losses: &[] };
        evidence.judge().violations.iter().map(|violated| violated.promise).collect()
    }

    #[test]
    fn a_contender_that_believes_without_a_look_is_noticed() {
        let tick = 100_000_000;
        let hold = |client, start: u64, fence, end: u64| {
            HoldRecord::new(client, start * tick, start * tick, fence, end * tick)
        };
        let write = [hold(1, 10, 5, 14)];
        let read = |start, fence| [hold(2, start, fence, start + 2)];
        let (calm, storm) = (Phase::Calm, Phase::Storm);
        for phase in [calm, storm] {
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &read(14, 5)]), [""; 0]);
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &read(12, 5)]), ["S1"]);
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &read(9, 4)]), ["S1"]);
            // With the token of a look before that write, or of a writer that is still to come.
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &read(14, 4)]), ["S2"]);
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &read(7, 5)]), ["S2"]);
            // Many read at a time.
            let many = [hold(2, 14, 5, 20), hold(3, 15, 5, 20), hold(2, 15, 5, 19)];
            assert_eq!(of_kinds(phase, &[], [&[], &[], &write, &many]), [""; 0]);
        }
        // The store has lost a hold: that of the writer, and not that of anybody else.
        let strike = |at: u64| Strike { acted: Some((at * tick, at * tick)), ..struck(Class::F) };
        let beside = [&[][..], &[], &write, &read(12, 5)];
        assert_eq!(of_kinds(Phase::Break, &[strike(11)], beside), [""; 0]);
        assert_eq!(of_kinds(Phase::Break, &[strike(13)], beside), ["S1"]);
    }

    #[test]
    fn a_permit_too_many_is_noticed() {
        let hold = |client, start: u64, end| HoldRecord::new(client, start, start, start, end);
        let (one, other) = ([hold(1, 10, 20)], [hold(2, 12, 22)]);
        assert_eq!(of_kinds(Phase::Calm, &[], [&one, &other, &[], &[]]), [""; 0]);
        let twice = [hold(1, 10, 20), hold(3, 15, 25)];
        let seen = of_kinds(Phase::Calm, &[], [&twice, &other, &[], &[]]);
        assert_eq!(seen, ["S1", "S1"], "two holders of a slot, and three of two permits");
    }
}
