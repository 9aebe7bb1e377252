//! Who holds a lock, as its keys say.

use std::time::Duration;

use lock_core::{FencingToken, HolderInfo, HolderMark};

/// Fences as a record has them: the first, and how many there are if it is more than one.
pub(super) fn in_record(first: FencingToken, fences: u32) -> String {
    if fences > 1 { format!("{first}+{fences}") } else { first.to_string() }
}

/// The first of the fences in a record.
pub(super) fn first_of(fences: &str) -> Option<u64> {
    fences.split('+').next()?.parse().ok()
}

/// `mark` names the hold, and is the owner of one of ours; `left` is how long it has, and `now` the server's clock in µs. The
/// record is fences, owner, since when, client and label; one of another owner is a leftover.
pub(super) fn holder(mark: &[u8], record: &[u8], left: Option<Duration>, now: u64) -> HolderInfo {
    let mut info = HolderInfo::new(None);
    info.mark = Some(HolderMark::new(mark.to_vec()));
    info.expires_in = left;
    let (mark, record) = (String::from_utf8_lossy(mark), String::from_utf8_lossy(record));
    let fields: Vec<_> = record.splitn(5, '|').collect();
    if let [fences, owner, since, _client, label] = fields[..]
        && owner == mark
    {
        info.owner = owner.parse().ok();
        info.fence = first_of(fences).and_then(|first| FencingToken::answered(first).ok());
        info.label = (!label.is_empty()).then(|| label.to_owned());
        let held = since.parse().ok().and_then(|since: u64| now.checked_sub(since));
        info.held_for = held.map(Duration::from_micros);
    } else {
        // A client that is not this library. Its value may be a secret, so it is not shown.
        info.label = Some("a client that is not distlock".to_owned());
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_who_holds_and_since_when() {
        let owner = "00112233445566778899aabbccddeeff";
        let token = |n| FencingToken::new(n).unwrap();
        assert_eq!(in_record(token(7), 1), "7");
        assert_eq!(in_record(token(7), 2), "7+2");
        for (fences, label, shown) in [("7", "", None), ("7+2", "web|3", Some("web|3"))] {
            assert_eq!(first_of(fences), Some(7));
            let record = format!("{fences}|{owner}|1000|client|{label}");
            let info = holder(owner.as_bytes(), record.as_bytes(), None, 3000);
            assert_eq!(info.owner.unwrap().to_hex(), owner);
            assert_eq!((info.fence, info.label.as_deref()), (Some(token(7)), shown));
            assert_eq!(info.held_for, Some(Duration::from_millis(2)));
            let other = holder(b"someone", record.as_bytes(), None, 3000);
            assert_eq!((other.owner, other.fence, other.held_for), (None, None, None));
            assert_eq!(other.label.as_deref(), Some("a client that is not distlock"));
        }
        assert_eq!(first_of("x"), None);
    }
}
