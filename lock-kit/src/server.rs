//! What every store asks of a server: that it is not too old, and, for an operator, that its clock is right.
//!
//! ```
//! use lock_kit::server::MinimumVersion;
//!
//! const DEMO: MinimumVersion = MinimumVersion::new("Demo", [10, 6, 0], "older ones cannot skip locked rows");
//! assert!(DEMO.check("10.6.4-log").is_ok());
//! let error = DEMO.check("10.5.29").unwrap_err();
//! assert!(error.to_string().contains("10.5.29"), "{error}");
//! ```

use std::fmt;
use std::time::{Duration, SystemTime};

use lock_core::{Error, ErrorKind, Finding, Result};

/// The oldest supported version of one kind of server, and why it is that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumVersion {
    server: &'static str,
    version: [u32; 3],
    why: &'static str,
}

impl MinimumVersion {
    /// `why` says what older ones lack, for the error.
    pub const fn new(server: &'static str, version: [u32; 3], why: &'static str) -> Self {
        Self { server, version, why }
    }

    /// Checks the version as the server prints it: up to three numbers separated by dots, followed
    /// by anything. A missing number counts as 0.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) naming both versions if the server is older, and
    /// [`Store`](ErrorKind::Store) if the text does not begin with a number.
    pub fn check(&self, printed: &str) -> Result<()> {
        let found = parse(printed).ok_or_else(|| {
            let server = self.server;
            Error::new(ErrorKind::Store, format!("{server} reported {printed:?} as its version"))
        })?;
        if found < self.version {
            let server = self.server;
            return Err(Error::unsupported(format!(
                "this server is {server} {printed}: use {self} or newer; {}",
                self.why
            )));
        }
        Ok(())
    }
}

impl fmt::Display for MinimumVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "{} {major}.{minor}", self.server)?;
        if patch > 0 {
            write!(f, ".{patch}")?;
        }
        Ok(())
    }
}

/// The first three numbers of a printed version.
fn parse(printed: &str) -> Option<[u32; 3]> {
    let mut version = [0; 3];
    let numbers = printed.trim().trim_start_matches('v');
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(numbers.len());
    let mut parts = numbers[..end].split('.');
    version[0] = parts.next()?.parse().ok()?;
    for (slot, part) in version[1..].iter_mut().zip(parts) {
        *slot = part.parse().unwrap_or(0);
    }
    Some(version)
}

/// Less than this is not worth a word.
const TOLERATED: Duration = Duration::from_secs(1);

/// What is wrong with the wall clock of a server that showed the time `theirs` in answer to a
/// request that was sent at the first of `ours`, and answered at the second. Leases do not run on
/// wall clocks, but fencing tokens are carried by them when the data are lost.
pub fn clock_finding(
    server: &str,
    theirs: SystemTime,
    ours: (SystemTime, SystemTime),
) -> Option<Finding> {
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

    const DEMO: MinimumVersion =
        MinimumVersion::new("Demo", [3, 5, 5], "older ones have no containers");

    #[test]
    fn versions_compare_by_number() {
        for good in
            ["3.5.5", "v3.5.5", "3.10", "3.6beta1", "10.6.4-Demo-0+deb12u1", "15 (Debian 15.8)"]
        {
            assert!(DEMO.check(good).is_ok(), "{good}");
        }
        for old in ["3.4.14", "3.5", "3.5.4-rc1", "2"] {
            assert!(DEMO.check(old).is_err(), "{old}");
        }
    }

    #[test]
    fn an_old_server_is_named_with_what_is_needed() {
        let error = DEMO.check("3.4.14-x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("Demo 3.4.14-x") && text.contains("Demo 3.5.5"), "{text}");
    }

    #[test]
    fn a_version_is_shown_as_short_as_it_can_be() {
        assert_eq!(MinimumVersion::new("etcd", [3, 4, 0], "").to_string(), "etcd 3.4");
        assert_eq!(DEMO.to_string(), "Demo 3.5.5");
    }

    #[test]
    fn a_text_without_a_number_is_no_version() {
        assert_eq!(DEMO.check("unknown").unwrap_err().kind(), ErrorKind::Store);
        assert_eq!(DEMO.check("").unwrap_err().kind(), ErrorKind::Store);
    }

    #[test]
    fn a_slow_answer_is_no_skew() {
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let ours = (sent, sent + Duration::from_secs(5));
        let behind = clock_finding("s", sent - TOLERATED, ours);
        assert_eq!(behind, None, "not worth a word");
        for within in [0, 3, 5, 6] {
            assert_eq!(clock_finding("s", sent + Duration::from_secs(within), ours), None);
        }
        let behind = clock_finding("s", sent - Duration::from_secs(2), ours).unwrap();
        assert!(behind.what.contains("s is 2.0s behind"), "{behind}");
        let ahead = clock_finding("s", sent + Duration::from_secs(9), ours).unwrap();
        assert!(ahead.what.contains("s is 4.0s ahead of"), "{ahead}");
    }
}
