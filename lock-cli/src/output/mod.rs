//! Output for people and for programs.

pub(crate) mod holder;
pub(crate) mod reporter;
pub(crate) mod whole;
pub(crate) mod writers;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::exit::ExitError;

/// Characters that move the cursor, reorder the text or are invisible: another client's name or
/// label must not be able to forge a line on a terminal.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// `text` with every unsafe character replaced.
fn replaced(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) { escape(c, &mut safe) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// `text` with unsafe characters as `\u{…}`.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    replaced(text, |c, safe| safe.extend(c.escape_default()))
}

/// `text` with its lines kept, for statements to copy. Those after the first are indented, so none of
/// them can pass for a line of this program.
pub(crate) fn lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n    ")
}

/// A name in quotes, escaped.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", escape(name).replace('"', "\\\""))
}

/// A duration for people: two units at most.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Minutes and seconds, for a running clock on the terminal.
pub(crate) fn stopwatch(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

/// RFC 3339 in UTC with milliseconds, which has years of four digits. What other programs have written may end later:
/// that is shown as the last moment that there is.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let last = UNIX_EPOCH + Duration::from_millis(253_402_300_799_999);
    humantime::format_rfc3339_millis(time.clamp(UNIX_EPOCH, last)).to_string()
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One line of JSON that is also safe on a terminal: all unsafe characters are inside strings,
/// where an escape means the same.
fn json_line(value: &Value) -> String {
    let text = value.to_string();
    let escape = |c: char, safe: &mut String| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            safe.push_str(&format!("\\u{unit:04x}"));
        }
    };
    replaced(&text, escape).into_owned()
}

/// An event as one line of JSON: in the file of events, if there is one, and on standard error, if it is shown there.
/// The README promises what it contains.
pub(crate) fn event(name: &str, mut fields: Value, is_shown: bool) {
    if !is_shown && !writers::has_events() {
        return;
    }
    fields["schema"] = json!(1);
    fields["event"] = json!(name);
    fields["time"] = json!(rfc3339(SystemTime::now()));
    let line = json_line(&fields);
    writers::to_events(&line);
    if is_shown {
        stderr_line(&line);
    }
}

/// A result: the object if JSON is wanted, else the text.
pub(crate) fn rendered(as_json: bool, mut object: Value, text: &str) -> String {
    if !as_json {
        return text.to_owned();
    }
    object["schema"] = json!(1);
    json_line(&object)
}

/// A result on standard output (see [`rendered`]), and the exit code of a program that has done its
/// work.
pub(crate) fn result(as_json: bool, object: Value, text: &str) -> Result<u8, ExitError> {
    page(format!("{}\n", rendered(as_json, object, text)).as_bytes())?;
    Ok(0)
}

/// A line on standard error; see [`writers`].
pub(crate) fn stderr_line(text: &str) {
    writers::to_stderr(format!("{text}\n"));
}

/// Prints on standard error what went wrong, in one or two lines.
pub(crate) fn failure(failure: &ExitError, as_json: bool) {
    if failure.said {
        return;
    }
    let fields = json!({
        "kind": failure.kind,
        "exit_code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
    });
    event("error", fields, as_json);
    if as_json {
        return;
    }
    let mut text = format!("distlock: {}", lines(&failure.message));
    if let Some(hint) = &failure.hint {
        let _ = write!(text, "\ndistlock: {}", lines(hint));
    }
    stderr_line(&text);
}

/// An event as one line of JSON on standard output. False if nobody reads it any more.
pub(crate) async fn line(mut event: Value) -> Result<bool, ExitError> {
    event["schema"] = json!(1);
    event["time"] = json!(rfc3339(SystemTime::now()));
    page_beside(format!("{}\n", json_line(&event))).await
}

/// Draws `text` on a terminal in the place of the `drawn` lines of the last time. False if it is
/// gone.
pub(crate) async fn redraw(text: &str, drawn: &mut usize) -> Result<bool, ExitError> {
    let up = if *drawn > 0 { format!("\x1b[{drawn}F") } else { String::new() };
    *drawn = text.lines().count();
    // Each line is cleared to its end, and what is below the last one, too.
    let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    page_beside(format!("{up}{lines}\x1b[J")).await
}

pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Some text on standard output. False if that is closed, as in `distlock list | head -1`: no error.
pub(crate) fn page(text: &[u8]) -> Result<bool, ExitError> {
    match stdout(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(ExitError::internal(format!("cannot write to standard output: {error}"))),
    }
}

/// The same beside the task, which awaits signals: a reader that does not read would keep it from them.
async fn page_beside(text: String) -> Result<bool, ExitError> {
    let written = spawn_blocking(move || page(text.as_bytes())).await;
    written.unwrap_or_else(|error| Err(ExitError::internal(format!("cannot write: {error}"))))
}

/// All of `bytes` on standard output.
pub(crate) fn stdout(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}

/// `text` in the colours of an ANSI code, where they are wanted: on a terminal, unless `NO_COLOR` is
/// set or the terminal is dumb.
pub(crate) fn painted(code: &str, text: &str) -> String {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let wanted = is_terminal() && !set("NO_COLOR") && !dumb;
    if wanted { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// What a table shows of something that may not be known.
pub(crate) fn cell(known: Option<impl ToString>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}

/// A table. On a terminal it is as wide as the terminal and its cells are wrapped; elsewhere every
/// row is one line.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(head).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        let width = u16::try_from(columns(stdout)).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.trim_fmt()
}

/// How wide a terminal is, in characters.
pub(crate) fn columns(terminal: impl AsFd) -> usize {
    let columns = rustix::termios::tcgetwinsize(terminal).map_or(0, |size| size.ws_col);
    usize::from(if columns == 0 { 80 } else { columns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor_or_turns_the_text() {
        assert_eq!(escape("plain ü 漢"), "plain ü 漢");
        assert_eq!(escape("a\x1b[2Jb\u{202e}c\u{2066}"), "a\\u{1b}[2Jb\\u{202e}c\\u{2066}");
        assert_eq!(quoted("a\"b\n"), "\"a\\\"b\\n\"");
    }

    #[test]
    fn a_statement_stays_on_its_lines_and_forges_none() {
        assert_eq!(
            lines("execute\nCREATE\x1b;\ndistlock: done"),
            "execute\n    CREATE\\u{1b};\n    distlock: done"
        );
    }

    #[test]
    fn json_is_the_same_value_after_escaping() {
        let value = json!({"label": "a\u{202e}\u{e0001}\"\n"});
        let line = json_line(&value);
        assert!(line.is_ascii(), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn each_time_can_be_written() {
        let second = Duration::from_secs(1);
        let far = UNIX_EPOCH + Duration::from_micros(i64::MAX.unsigned_abs());
        for (time, text) in [
            (UNIX_EPOCH - second, "1970-01-01T00:00:00.000Z"),
            (UNIX_EPOCH + second, "1970-01-01T00:00:01.000Z"),
            (far, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(time), text);
        }
    }

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (40, "40ms"),
            (3_250, "3.2s"),
            (59_900, "59s"),
            (192_000, "3m12s"),
            (7_500_000, "2h05m"),
            (190_000_000, "2d04h"),
        ] {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
        assert_eq!(stopwatch(Duration::from_secs(4_000)), "66:40");
    }
}
