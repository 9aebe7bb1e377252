//! What looks have shown, against the holds that there were.

use lock_core::{FencingToken, Seen};

use super::HoldRecord;

/// What one look has shown of one name. Times are those of the holds.
#[derive(Clone, Debug)]
pub(crate) struct LookRecord {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) seen: Seen,
}

impl LookRecord {
    /// The hold that it shows; `None` if it shows that there is none.
    fn held(&self) -> Option<u64> {
        match &self.seen {
            Seen::Held { fence, .. } => Some(fence.map_or(0, FencingToken::get)),
            _ => None,
        }
    }

    /// Whether it shows a holder, and no token: of one that has not got the lock yet, as far as the store knows.
    fn is_undecided(&self) -> bool {
        matches!(self.seen, Seen::Held { fence: None, .. })
    }

    /// Whether it shows that nobody has the lock, and no floor.
    fn is_without_floor(&self) -> bool {
        matches!(self.seen, Seen::Free { floor: None })
    }

    /// The greatest token that was given at the moment that it shows, as far as it says.
    fn last(&self) -> u64 {
        match &self.seen {
            Seen::Held { fence: last, .. } | Seen::Free { floor: last } => {
                last.map_or(0, FencingToken::get)
            }
            _ => 0,
        }
    }

    /// Whether the hold that it shows is one of these, if it shows one. An attempt under way may be shown with a lower
    /// token than it gets.
    pub(crate) fn is_of(&self, holds: &[HoldRecord]) -> bool {
        let Seen::Held { fence, .. } = &self.seen else { return true };
        holds.iter().any(|hold| {
            let is_under_way = hold.invoked <= self.ended && hold.granted > self.begun;
            match fence {
                Some(fence) if fence.get() == hold.fence => true,
                Some(fence) => is_under_way && fence.get() < hold.fence,
                None => is_under_way,
            }
        })
    }

    /// What is wrong with it, if there was this hold, whose label is the number of its client.
    fn misses(&self, hold: &HoldRecord) -> Option<&'static str> {
        if self.is_undecided() {
            return None;
        }
        if self.is_without_floor() {
            let is_missed = hold.granted < self.begun && hold.end() > self.ended;
            return is_missed.then_some("it was not yet over");
        }
        if self.held() == Some(hold.fence) {
            let label = hold.client.to_string();
            let is_labelled = match &self.seen {
                Seen::Held { label: Some(shown), .. } => *shown == label,
                // Its holder may not have known of the grant yet.
                _ => hold.granted > self.begun,
            };
            return match () {
                () if hold.invoked > self.ended => Some("it was not yet asked for"),
                () if hold.released.is_some_and(|at| at < self.begun) => Some("it was over"),
                () if !is_labelled => Some("it has another label"),
                () => None,
            };
        }
        // Tokens rise, so the token says whether it is taken for an earlier hold or for a later one.
        if hold.fence <= self.last() {
            (hold.end() > self.ended).then_some("it was not yet over")
        } else {
            (hold.granted < self.begun).then_some("it had begun")
        }
    }

    /// Whether it shows an earlier state than one that was over before it began.
    fn is_behind(&self, earlier: &Self) -> bool {
        if [self, earlier].iter().any(|look| look.is_undecided() || look.is_without_floor()) {
            return false;
        }
        match (earlier.held(), self.held()) {
            // A floor may be anywhere between two tokens.
            (None, None) => false,
            (None, Some(_)) => self.last() <= earlier.last(),
            (Some(_), _) => self.last() < earlier.last(),
        }
    }
}

/// Checks all looks at one name against all its holds, which none but a release has ended, and which have passed
/// [`check`](super::check).
///
/// # Errors
///
/// The first look that shows no state that the name has had between its beginning and its end.
pub(crate) fn check_looks(holds: &[HoldRecord], looks: &[LookRecord]) -> Result<(), String> {
    for look in looks {
        for hold in holds {
            if let Some(why) = look.misses(hold) {
                return Err(format!("{look:?} does not fit the hold of {hold}: {why}"));
            }
        }
        let earlier = |other: &&LookRecord| other.ended < look.begun;
        if let Some(earlier) = looks.iter().filter(earlier).find(|it| look.is_behind(it)) {
            return Err(format!("{look:?} shows an earlier state than {earlier:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two holds, of which the second has waited for the end of the first.
    fn holds() -> [HoldRecord; 2] {
        let hold = |client, invoked, granted, fence, release, released| HoldRecord {
            release_invoked: Some(release),
            released: Some(released),
            ..HoldRecord::new(client, invoked, granted, fence, u64::MAX)
        };
        [hold(1, 10, 12, 5, 20, 23), hold(2, 15, 24, 7, 30, 32)]
    }

    fn token(fence: u64) -> Option<FencingToken> {
        FencingToken::new(fence).ok()
    }

    fn free(begun: u64, ended: u64, floor: u64) -> LookRecord {
        LookRecord { begun, ended, seen: Seen::Free { floor: token(floor) } }
    }

    fn held(begun: u64, ended: u64, fence: u64, client: u32) -> LookRecord {
        let seen = Seen::Held { fence: token(fence), label: Some(client.to_string()) };
        LookRecord { begun, ended, seen }
    }

    #[test]
    fn a_state_that_there_was_is_no_mistake() {
        for look in [
            free(1, 2, 0),
            free(1, 2, 4),
            held(11, 11, 5, 1),
            free(11, 11, 4),
            held(13, 14, 5, 1),
            held(21, 22, 5, 1),
            free(21, 22, 5),
            free(21, 22, 6),
            held(21, 22, 7, 2),
            held(25, 26, 7, 2),
            held(31, 31, 7, 2),
            free(31, 31, 7),
            free(33, 34, 7),
            free(33, 34, 99),
            // From the very first to the very last.
            held(1, 40, 7, 2),
            free(1, 40, 6),
        ] {
            assert_eq!(check_looks(&holds(), std::slice::from_ref(&look)), Ok(()), "{look:?}");
            assert!(look.is_of(&holds()));
        }
        let in_order = [free(1, 2, 4), held(13, 14, 5, 1), held(21, 22, 7, 2), free(33, 34, 7)];
        assert_eq!(check_looks(&holds(), &in_order), Ok(()));
        // Nobody has been given a token between the two.
        assert_eq!(check_looks(&holds(), &[free(33, 34, 9), free(35, 36, 8)]), Ok(()));
    }

    #[test]
    fn each_mistake_is_seen() {
        for (look, why) in [
            (held(1, 2, 5, 1), "not yet asked for"),
            (free(1, 2, 5), "not yet over"),
            (free(13, 14, 4), "had begun"),
            (free(13, 14, 5), "not yet over"),
            (held(13, 14, 7, 2), "not yet over"),
            // The floor has passed the token of one that waits.
            (free(16, 17, 7), "not yet over"),
            (free(21, 22, 7), "not yet over"),
            (held(16, 17, 5, 2), "another label"),
            (held(25, 26, 5, 1), "was over"),
            (free(25, 26, 6), "had begun"),
            (held(33, 34, 7, 2), "was over"),
            (free(33, 34, 6), "had begun"),
        ] {
            let seen = check_looks(&holds(), std::slice::from_ref(&look)).unwrap_err();
            assert!(seen.contains(why), "{look:?}: {seen}");
        }
        for looks in [
            [held(21, 21, 7, 2), held(22, 22, 5, 1)],
            [free(21, 21, 5), held(22, 22, 5, 1)],
            [held(21, 21, 7, 2), free(22, 22, 6)],
        ] {
            let seen = check_looks(&holds(), &looks).unwrap_err();
            assert!(seen.contains("an earlier state"), "{seen}");
        }
        // An attempt under way may get a greater token than is shown.
        assert!(held(21, 22, 6, 1).is_of(&holds()));
        for other in [held(21, 22, 8, 1), held(25, 26, 6, 1)] {
            assert!(!other.is_of(&holds()), "{other:?}");
        }
    }
}
