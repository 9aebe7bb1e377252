//! The pauses between tries to open a stream.

use std::time::Duration;

/// The first and the longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A stream that has worked for so long has failed by chance.
const WORKED: Duration = Duration::from_secs(1);

/// How often in a row a stream was of no use.
#[derive(Debug, Default)]
pub(crate) struct BackOff(u32);

impl BackOff {
    /// A stream has failed after it had worked for `lasted`. The pause before the next one; `None` if
    /// not all of `members` have been tried since one worked.
    ///
    /// The first answer of a stream says little: a member may answer, and then refuse.
    pub(crate) fn failed(&mut self, lasted: Duration, members: usize) -> Option<Duration> {
        self.0 = if lasted >= WORKED { 1 } else { self.0.saturating_add(1) };
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        let round = self.0.checked_sub(members).filter(|round| *round > 0)?;
        Some(PAUSE.0.saturating_mul(1 << round.min(8)).min(PAUSE.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_when_all_members_have_failed() {
        let mut back_off = BackOff::default();
        let pauses: Vec<_> = (0..12).map(|_| back_off.failed(Duration::ZERO, 3)).collect();
        assert_eq!(pauses[..3], [None; 3]);
        let shown: Vec<_> = pauses[3..].iter().flatten().map(Duration::as_millis).collect();
        assert_eq!(shown, [40, 80, 160, 320, 640, 1000, 1000, 1000, 1000]);
        // A stream that breaks as soon as it has answered has not worked.
        assert_eq!(back_off.failed(WORKED / 2, 3), Some(PAUSE.1));
        assert_eq!(back_off.failed(WORKED, 3), None);
    }
}
