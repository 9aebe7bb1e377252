//! What a store holds, beside a file that says so. Clients of other versions and of other languages read the same
//! data, so a change of it is to be seen as a change of that file.
//!
//! What differs from run to run is named by its shape: `OWNER-1` is the first id of 32 hexadecimal digits, `ID-1` the
//! first of 16, and `TIME-us` a time within ten minutes of now, in microseconds; so a time that is stored in another unit is
//! seen, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    let text = named(&lines.join("\n"), now) + "\n";
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

/// The text with names for what differs from run to run.
fn named(text: &str, now: Duration) -> String {
    let (mut all, mut word, mut ids) = (String::new(), String::new(), BTreeMap::new());
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

fn name_of(word: &str, now: Duration, ids: &mut BTreeMap<String, String>) -> String {
    if let Some(time) = time_of(word, now) {
        return time.to_owned();
    }
    let is_hex = word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let kind = match word.len() {
        32 if is_hex => "OWNER",
        16 if is_hex => "ID",
        _ => return word.to_owned(),
    };
    let number = ids.values().filter(|name| name.starts_with(kind)).count() + 1;
    ids.entry(word.to_owned()).or_insert_with(|| format!("{kind}-{number}")).clone()
}

fn time_of(word: &str, now: Duration) -> Option<&'static str> {
    let number: u64 = word.parse().ok()?;
    let units: [(&str, fn(u64) -> Duration); 3] = [
        ("TIME-s", Duration::from_secs),
        ("TIME-ms", Duration::from_millis),
        ("TIME-us", Duration::from_micros),
    ];
    let is_near = |time: Duration| time.abs_diff(now) < AROUND;
    units.iter().find(|(_, time)| is_near(time(number))).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_run_to_run_is_named() {
        let now = Duration::from_secs(1_795_733_245);
        let (a, b) = ("63ba1543ebd56f746430641458e88a8b", "0123456789abcdef0123456789abcdef");
        let text = format!(
            "{a} 1|{b}|fc7938ee9ad58523 {a}\n1795733305275 1795733245 1795733245274418 60000"
        );
        let told = "OWNER-1 1|OWNER-2|ID-1 OWNER-1\nTIME-ms TIME-s TIME-us 60000";
        assert_eq!(named(&text, now), told);
        // In another unit, or too far away.
        let text = "17957332452 1795734000 1795733245274418000";
        assert_eq!(named(text, now), text);
        assert_eq!(lasts(Duration::from_millis(59_696)), "60 s");
    }
}
