//! Findings that several stores report.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use lock_core::kit::diagnosis;
//!
//! let now = SystemTime::now();
//! assert!(diagnosis::clock("the server at db:6000", now, (now, now)).is_none());
//! let ahead = now + Duration::from_secs(90);
//! let finding = diagnosis::clock("the server at db:6000", ahead, (now, now)).unwrap();
//! assert!(finding.what.contains("90.0s ahead"), "{finding}");
//! ```

use std::time::{Duration, SystemTime};

use crate::Finding;

/// Less than this is not worth a word.
const TOLERATED: Duration = Duration::from_secs(1);

/// What is wrong with the wall clock of a server that showed the time `theirs` in answer to a
/// request that was sent at the first of `ours`, and answered at the second. Leases do not run on
/// wall clocks, but fencing tokens are carried by them when the data are lost.
pub fn clock(server: &str, theirs: SystemTime, ours: (SystemTime, SystemTime)) -> Option<Finding> {
    let (sent, answered) = ours;
    let (apart, way) = match (theirs.duration_since(answered), sent.duration_since(theirs)) {
        (Ok(ahead), _) if ahead > TOLERATED => (ahead, "ahead of"),
        (_, Ok(behind)) if behind > TOLERATED => (behind, "behind"),
        _ => return None,
    };
    Some(Finding::warning(
        format!("the clock of {server} is {apart:.1?} {way} that of this machine"),
        "let NTP set both: leases are not affected, but after a loss of data the fencing tokens continue from the server's clock",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_no_skew() {
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let ours = (sent, sent + Duration::from_secs(5));
        let behind = clock("s", sent - TOLERATED, ours);
        assert_eq!(behind, None, "not worth a word");
        for within in [0, 3, 5, 6] {
            assert_eq!(clock("s", sent + Duration::from_secs(within), ours), None);
        }
        let behind = clock("s", sent - Duration::from_secs(2), ours).unwrap();
        assert!(behind.what.contains("s is 2.0s behind"), "{behind}");
        let ahead = clock("s", sent + Duration::from_secs(9), ours).unwrap();
        assert!(ahead.what.contains("s is 4.0s ahead of"), "{ahead}");
    }
}
