//! What a store holds, beside a file that says so. Clients of other versions and of other languages read the same
//! data, so a change of it is to be seen as a change of that file.
//!
//! What differs from run to run is named by its shape: `HEX32-1` is the first id of 32 hexadecimal digits, `UUID-1` the
//! first in that form, and `TIME-us` a time within ten minutes of now, in microseconds; so a time that is stored in
//! another unit is seen, too. `BOOT-us` is the same by the clock of the boot.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Clock, SystemClock};

/// The variable that has the file written, as in the suite.
const WRITE: &str = "LOCK_TEST_EXPECT_WRITE";

/// How far from now a time may be: leases end in the future.
const AROUND: Duration = Duration::from_secs(600);

/// Compares `lines` with `tests/golden/NAME.txt` of the crate in the folder `of`.
///
/// # Panics
///
/// If they differ, or the file was written: then it is to be read by somebody.
pub fn check(of: &str, name: &str, lines: &[String]) {
    let path = Path::new(of).join("tests/golden").join(format!("{name}.txt"));
    let text = named(&lines.join("\n"), Now::read()) + "\n";
    if std::env::var_os(WRITE).is_some() {
        let folder = path.parent().expect("a file is in a folder");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(&path, text).expect("a file");
        panic!("written: {}; read it, and run this without {WRITE}", path.display());
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == golden,
        "the store holds something else than {} says (with {WRITE}=1 this test writes it):\n{text}\ninstead of\n{golden}",
        path.display()
    );
}

/// About how long an entry lasts, in tens of seconds.
pub fn lasts(left: Duration) -> String {
    format!("{} s", (left.as_secs() + 5) / 10 * 10)
}

/// The wall clock, and that of the boot.
#[derive(Clone, Copy)]
struct Now(Duration, Duration);

impl Now {
    fn read() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        Self(wall, Duration::from_nanos(SystemClock::default().now().as_nanos()))
    }

    fn name(self, number: u64) -> Option<&'static str> {
        let Self(wall, boot) = self;
        let is_near = |time: Duration, now: Duration| time.abs_diff(now) < AROUND;
        let micros = Duration::from_micros(number);
        match () {
            () if is_near(Duration::from_secs(number), wall) => Some("TIME-s"),
            () if is_near(Duration::from_millis(number), wall) => Some("TIME-ms"),
            () if is_near(micros, wall) => Some("TIME-us"),
            // A machine may have been started a moment ago, and small numbers are no times.
            () if is_near(micros, boot) && micros > Duration::from_secs(1) => Some("BOOT-us"),
            () => None,
        }
    }
}

/// The text with names for what differs from run to run.
fn named(text: &str, now: Now) -> String {
    let (mut all, mut word, mut ids) = (String::new(), String::new(), BTreeMap::new());
    let text = with_uuids(text);
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
        } else {
            all += &name_of(&word, now, &mut ids);
            word.clear();
            all.push(c);
        }
    }
    all.truncate(all.len() - 1);
    all
}

/// Each UUID as one word of 33 letters.
fn with_uuids(text: &str) -> String {
    let is_one = |part: &&str| {
        part.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
    };
    let (mut all, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let uuid = rest.get(..36).filter(is_one);
        all +=
            &uuid.map_or_else(|| first.to_string(), |uuid| format!("u{}", uuid.replace('-', "")));
        rest = &rest[uuid.map_or(first.len_utf8(), str::len)..];
    }
    all
}

fn name_of(word: &str, now: Now, ids: &mut BTreeMap<String, String>) -> String {
    if let Some(time) = word.parse().ok().and_then(|number| now.name(number)) {
        return time.to_owned();
    }
    let is_hex = |word: &str| word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let kind = match word.len() {
        33 if word.strip_prefix('u').is_some_and(is_hex) => "UUID".to_owned(),
        length @ (16 | 32 | 40) if is_hex(word) => format!("HEX{length}"),
        _ => return word.to_owned(),
    };
    let number = ids.values().filter(|name| name.starts_with(&kind)).count() + 1;
    ids.entry(word.to_owned()).or_insert_with(|| format!("{kind}-{number}")).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_run_to_run_is_named() {
        let now = Now(Duration::from_secs(1_795_733_245), Duration::from_secs(58_569));
        let (a, b) = ("63ba1543ebd56f746430641458e88a8b", "0123456789abcdef0123456789abcdef");
        let text = format!(
            "{a} 1|{b}|fc7938ee9ad58523 {a}\n1795733305275 1795733245 1795733245274418 60000 58570000001"
        );
        let told = "HEX32-1 1|HEX32-2|HEX16-1 HEX32-1\nTIME-ms TIME-s TIME-us 60000 BOOT-us";
        assert_eq!(named(&text, now), told);
        let node = "_c_445802b8-5426-8c58-7533-441c51b320d6-lock-0000000001";
        assert_eq!(named(node, now), "_c_UUID-1-lock-0000000001");
        // In another unit, or too far away.
        let text = "17957332452 1795734000 1795733245274418000";
        assert_eq!(named(text, now), text);
        assert_eq!(lasts(Duration::from_millis(59_696)), "60 s");
    }
}
