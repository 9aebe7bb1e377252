//! The checker against a search that tries every order and every point in time.

use super::{HoldRecord, check};
use crate::context::seed::Seeded;

const HISTORIES: u32 = 100_000;
/// No history lasts longer: five holds of at most four units, seen a few units later.
const LAST: u64 = 32;

#[test]
fn the_checker_agrees_with_a_search_of_all_placements() {
    let mut chance = Seeded::announced("the_checker_agrees_with_a_search_of_all_placements");
    let mut legal = 0;
    for round in 0..HISTORIES {
        let mut holds = legal_history(&mut chance);
        if round % 2 == 1 {
            corrupt(&mut holds, &mut chance);
        }
        let possible = some_placement(&mut holds.clone(), 0, 0);
        assert_eq!(
            check(&holds).is_ok(),
            possible,
            "seed {}, round {round}: {holds:#?}: {:?}",
            chance.seed(),
            check(&holds)
        );
        legal += u32::from(possible);
        assert!(possible || round % 2 == 1, "a legal history was refused, seed {}", chance.seed());
    }
    // Both answers must have been put to the test.
    assert!(
        (HISTORIES / 2..HISTORIES * 9 / 10).contains(&legal),
        "{legal} of {HISTORIES} are legal"
    );
}

/// One to five holds, placed one after the other and then blurred into what an observer sees.
fn legal_history(chance: &mut Seeded) -> Vec<HoldRecord> {
    let (mut now, mut fence) = (0, 0);
    let mut holds = Vec::new();
    for client in 0..=u32::try_from(chance.below(5)).unwrap_or(0) {
        let granted = now + chance.below(3);
        let ended = granted + chance.below(3);
        now = ended;
        fence += 1 + chance.below(2);
        let seen = granted + chance.below(3);
        let mut hold =
            HoldRecord::new(client, granted.saturating_sub(chance.below(3)), seen, fence, ended);
        match chance.below(4) {
            0 => {}
            1 => hold.lost = Some(ended),
            _ => {
                hold.valid_until = ended + chance.below(4);
                hold.release_invoked = Some(ended.saturating_sub(chance.below(2)));
                hold.released = (chance.below(3) > 0).then(|| ended + chance.below(3));
            }
        }
        holds.push(hold);
    }
    holds
}

fn corrupt(holds: &mut [HoldRecord], chance: &mut Seeded) {
    let count = u64::try_from(holds.len()).unwrap_or(1);
    let (one, other) = (pick(count, chance), pick(count, chance));
    match chance.below(4) {
        0 => {
            let fence = holds[one].fence;
            holds[one].fence = holds[other].fence;
            holds[other].fence = fence;
        }
        1 => holds[one].fence = holds[other].fence,
        2 => {
            let hold = &mut holds[one];
            hold.valid_until += 1 + chance.below(4);
            hold.lost = None;
            hold.release_invoked = hold.release_invoked.map(|at| at + 2);
        }
        _ => {
            let hold = &mut holds[one];
            hold.granted = hold.granted.saturating_sub(1 + chance.below(3));
            hold.invoked = hold.invoked.min(hold.granted);
        }
    }
}

fn pick(count: u64, chance: &mut Seeded) -> usize {
    usize::try_from(chance.below(count)).unwrap_or(0)
}

/// Whether the holds can be put one after the other, from `now` on and with fences above `fence`.
/// Tries every order, and every moment of a grant and of an end.
fn some_placement(left: &mut Vec<HoldRecord>, now: u64, fence: u64) -> bool {
    if left.is_empty() {
        return true;
    }
    for i in 0..left.len() {
        if left[i].fence <= fence {
            continue;
        }
        let hold = left.remove(i);
        let latest_end = hold.released.unwrap_or(LAST);
        for granted in hold.invoked.max(now)..=hold.granted {
            for ended in granted.max(hold.end())..=latest_end {
                if some_placement(left, ended, hold.fence) {
                    left.insert(i, hold);
                    return true;
                }
            }
        }
        left.insert(i, hold);
    }
    false
}

#[test]
fn what_is_wrong_is_said() {
    let hold = |client, granted, fence, end| HoldRecord::new(client, granted, granted, fence, end);
    let overlap = check(&[hold(1, 0, 1, 10), hold(2, 5, 2, 20)]).unwrap_err().to_string();
    assert!(overlap.contains("two holders at once for 5 ns"), "{overlap}");
    let twice = check(&[hold(1, 0, 1, 10), hold(2, 15, 1, 20)]).unwrap_err().to_string();
    assert!(twice.contains("given twice"), "{twice}");
    let back = check(&[hold(1, 0, 2, 10), hold(2, 15, 1, 20)]).unwrap_err().to_string();
    assert!(back.contains("do not rise"), "{back}");
    assert_eq!(check(&[hold(1, 0, 1, 10), hold(2, 10, 2, 20)]), Ok(()));
}
