//! What locks of other kinds make of their exclusive locks, against the holds that there were.

use super::HoldRecord;

/// More holds than `most` that were believed in at the same time, at the first such moment; `None` if there was none.
pub fn crowd(holds: &[HoldRecord], most: usize) -> Option<Vec<HoldRecord>> {
    let mut inside: Vec<&HoldRecord> = Vec::new();
    for hold in by_grant(holds.iter()) {
        inside.retain(|other| other.end() > hold.granted);
        inside.push(hold);
        if inside.len() > most {
            return Some(inside.into_iter().cloned().collect());
        }
    }
    None
}

/// Each pair of holds that must not be beside each other, a write and any other hold, of which one was granted while the
/// holder of the other, which was granted before, still believed in it. The earlier one is first. In order of time.
pub fn conflicts(reads: &[HoldRecord], writes: &[HoldRecord]) -> Vec<(HoldRecord, HoldRecord)> {
    let mut all: Vec<_> = by_grant(reads.iter()).into_iter().map(|read| (read, false)).collect();
    all.extend(by_grant(writes.iter()).into_iter().map(|write| (write, true)));
    all.sort_by_key(|(hold, _)| hold.granted);
    let (mut found, mut believed) = (Vec::new(), Vec::<(&HoldRecord, bool)>::new());
    for (hold, is_write) in all {
        believed.retain(|(earlier, _)| earlier.end() > hold.granted);
        let beside = believed.iter().filter(|(_, has_written)| is_write || *has_written);
        found.extend(beside.map(|(earlier, _)| ((*earlier).clone(), hold.clone())));
        believed.push((hold, is_write));
    }
    found
}

/// The tokens of readers and writers, for a store that may have broken exclusion: of two holds of which one had been
/// granted before the other was asked for, a later writer has a greater one, and a later reader none that is below
/// that of the writer.
///
/// # Errors
///
/// The first hold with a token that is too small.
pub fn check_marks(reads: &[HoldRecord], writes: &[HoldRecord]) -> Result<(), String> {
    let marked = |is_write| move |hold| (hold, is_write);
    let holds = reads.iter().map(marked(false)).chain(writes.iter().map(marked(true)));
    let mut earlier: Vec<(&HoldRecord, bool)> = holds.collect();
    let mut later = earlier.clone();
    earlier.sort_by_key(|(hold, _)| hold.granted);
    later.sort_by_key(|(hold, _)| hold.invoked);
    let mut earlier = earlier.into_iter().peekable();
    let (mut read, mut write): (Option<&HoldRecord>, Option<&HoldRecord>) = (None, None);
    for (hold, is_write) in later {
        while let Some((before, wrote)) = earlier.next_if(|(it, _)| it.granted < hold.invoked) {
            let mark = if wrote { &mut write } else { &mut read };
            if mark.is_none_or(|mark| mark.fence < before.fence) {
                *mark = Some(before);
            }
        }
        let is_refused = |mark: &&HoldRecord| match is_write {
            true => hold.fence <= mark.fence,
            false => hold.fence < mark.fence,
        };
        let marks = [write, read.filter(|_| is_write)];
        if let Some(mark) = marks.into_iter().flatten().find(is_refused) {
            return Err(format!("the token is too small: {mark} before {hold}"));
        }
    }
    Ok(())
}

/// Those in which anybody believed, in order of their grants.
fn by_grant<'a>(holds: impl Iterator<Item = &'a HoldRecord>) -> Vec<&'a HoldRecord> {
    let mut believed: Vec<_> = holds.filter(|hold| hold.end() > hold.granted).collect();
    believed.sort_by_key(|hold| hold.granted);
    believed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::seed::Seeded;

    fn hold(client: u32, granted: u64, fence: u64, end: u64) -> HoldRecord {
        HoldRecord::new(client, granted, granted, fence, end)
    }

    fn clients(holds: &[HoldRecord]) -> Vec<u32> {
        holds.iter().map(|hold| hold.client).collect()
    }

    #[test]
    fn so_many_permits_and_no_more() {
        let two = [hold(1, 0, 1, 10), hold(2, 5, 1, 20), hold(3, 10, 2, 30)];
        assert_eq!(crowd(&two, 2), None);
        let third = [two.to_vec(), vec![hold(4, 19, 1, 21)]].concat();
        assert_eq!(crowd(&third, 2).map(|holds| clients(&holds)), Some(vec![2, 3, 4]));
        // Nobody believed in it.
        let lost_at_once = [two.to_vec(), vec![hold(4, 19, 1, 18)]].concat();
        assert_eq!(crowd(&lost_at_once, 2), None);
    }

    #[test]
    fn many_may_read_and_one_may_write() {
        let reads = [hold(1, 0, 1, 10), hold(2, 5, 1, 20)];
        let conflicts_of = |write| {
            let found = conflicts(&reads, &[write]);
            found.iter().map(|(one, other)| (one.client, other.client)).collect::<Vec<_>>()
        };
        assert_eq!(conflicts_of(hold(3, 20, 2, 30)), []);
        assert_eq!(conflicts_of(hold(3, 19, 2, 30)), [(2, 3)]);
        assert_eq!(conflicts_of(hold(3, 7, 2, 9)), [(1, 3), (2, 3)]);
        assert_eq!(conflicts(&[], &[hold(1, 0, 1, 9), hold(2, 8, 2, 12)]).len(), 1);
        assert_eq!(conflicts(&[hold(1, 8, 1, 9)], &[hold(2, 0, 1, 12)]).len(), 1);
    }

    #[test]
    fn a_writer_passes_both_marks_and_a_reader_one() {
        let read = |fence| hold(1, 0, fence, 5);
        let write = |fence| hold(2, 10, fence, 15);
        assert!(check_marks(&[read(7), hold(3, 1, 4, 5)], &[write(8)]).is_ok());
        assert!(check_marks(&[read(7)], &[write(7)]).is_err());
        assert!(check_marks(&[hold(1, 20, 8, 25)], &[write(8)]).is_ok());
        assert!(check_marks(&[hold(1, 20, 7, 25)], &[write(8)]).is_err());
        assert!(check_marks(&[], &[hold(1, 0, 8, 5), write(8)]).is_err());
        // They were asked for at the same time, so nobody knows which one came first.
        let early = HoldRecord { invoked: 0, ..write(3) };
        assert!(check_marks(&[read(7)], &[early]).is_ok());
    }

    /// Against a look at each pair.
    #[test]
    fn each_pair_counts() {
        let mut chance = Seeded::announced("each_pair_counts");
        for round in 0..20_000 {
            let mut some = || {
                let (at, length) = (chance.below(12), chance.below(5));
                HoldRecord::new(
                    0,
                    at.saturating_sub(chance.below(3)),
                    at,
                    chance.below(6),
                    at + length,
                )
            };
            let (reads, writes) = ([some(), some()], [some(), some()]);
            let beside = |one: &HoldRecord, other: &HoldRecord| {
                one.granted.max(other.granted) < one.end().min(other.end())
            };
            let mut pairs = usize::from(beside(&writes[0], &writes[1]));
            let mut falls = false;
            for write in &writes {
                pairs += reads.iter().filter(|read| beside(read, write)).count();
                let before = reads.iter().chain(&writes).filter(|it| it.granted < write.invoked);
                falls |= before.into_iter().any(|it| write.fence <= it.fence);
                let after = reads.iter().filter(|read| write.granted < read.invoked);
                falls |= after.into_iter().any(|read| read.fence < write.fence);
            }
            let told = format!("seed {}, round {round}: {reads:?} {writes:?}", chance.seed());
            assert_eq!(conflicts(&reads, &writes).len(), pairs, "{told}");
            assert_eq!(check_marks(&reads, &writes).is_err(), falls, "{told}");
        }
    }
}
