//! A lock of any kind under its name, for people and for programs.

use distlock::admin::HolderInfo;
use distlock::kinds::{HeldAs, WholeHold, WholeLock};
use serde_json::{Value, json};

use crate::output::{cell, holder, quoted, short};

/// `"gpu" is held: 3 of 4 permits`, with a line for each holder below; an exclusive lock takes one line.
pub(crate) fn paragraph(whole: &WholeLock, permits: Option<u32>) -> String {
    let name = quoted(whole.key.name());
    let waiting = whole.waiters.filter(|waiters| *waiters > 0);
    let waiting = waiting.map(|waiters| format!("; {waiters} waiting")).unwrap_or_default();
    match exclusive(whole) {
        _ if whole.holds.is_empty() => format!("{name} is free{waiting}"),
        Some(alone) if whole.holds.len() == 1 => {
            format!("{name} is held by {}{waiting}", holder::with_owner(alone))
        }
        _ => {
            let what = summary(whole, permits);
            format!("{name} is held: {what}{waiting}{}", lines(&whole.holds))
        }
    }
}

/// Each of these on a line of its own, after what is before.
pub(crate) fn lines<H: std::borrow::Borrow<WholeHold>>(holds: &[H]) -> String {
    holds.iter().map(|hold| format!("\n  {}", who(hold.borrow()))).collect()
}

/// `permit 2: ci-7/4121 (held for 3m12s, fence 17, 21s left), owner 1c55fb34`.
pub(crate) fn who(hold: &WholeHold) -> String {
    with_role(hold, holder::with_owner(&hold.holder))
}

/// Its holder, after what that has, if it is not the lock itself.
fn with_role(hold: &WholeHold, holder: String) -> String {
    match hold.held_as {
        HeldAs::Permit(number) => format!("permit {number}: {holder}"),
        HeldAs::Reader => format!("reader: {holder}"),
        HeldAs::Writer => format!("writer: {holder}"),
        _ => holder,
    }
}

/// The cells of a table: who, since when, and until when without a renewal; of several the first that has
/// come, and the first that ends.
pub(crate) struct Cells {
    pub(crate) holder: Option<String>,
    pub(crate) owner: String,
    pub(crate) held_for: String,
    pub(crate) left: String,
    pub(crate) fence: String,
}

impl Cells {
    pub(crate) fn new(whole: &WholeLock, permits: Option<u32>) -> Self {
        let alone = match &whole.holds[..] {
            [hold] => Some(hold),
            _ => None,
        };
        let named = |hold: &WholeHold| with_role(hold, holder::name(&hold.holder));
        let summary = || (!whole.holds.is_empty()).then(|| summary(whole, permits));
        let holders = || whole.holds.iter().map(|hold| &hold.holder);
        Self {
            holder: alone.filter(|_| permits.is_none()).map(named).or_else(summary),
            owner: cell(alone.and_then(|hold| holder::owner(&hold.holder))),
            held_for: cell(holders().filter_map(|holder| holder.held_for).max().map(short)),
            left: cell(holders().filter_map(|holder| holder.expires_in).min().map(short)),
            // Those of two permits cannot be compared.
            fence: cell(alone.and_then(|hold| hold.holder.fence)),
        }
    }
}

/// `3 of 4 permits (0, 2, 3)`; what is used of it, in few words.
fn summary(whole: &WholeLock, permits: Option<u32>) -> String {
    let held_as = || whole.holds.iter().map(|hold| hold.held_as);
    let readers = held_as().filter(|held_as| *held_as == HeldAs::Reader).count();
    let numbers: Vec<_> = numbers(whole).collect();
    let mut parts: Vec<_> = exclusive(whole).map(holder::name).into_iter().collect();
    if !numbers.is_empty() {
        parts.push(permits_held(&numbers, permits));
    }
    if readers > 0 {
        parts.push(format!("{readers} reader{}", if readers == 1 { "" } else { "s" }));
    }
    if held_as().any(|held_as| held_as == HeldAs::Writer) {
        parts.push(if readers > 0 { "a writer is next" } else { "a writer" }.to_owned());
    }
    parts.join(", ")
}

/// How many permits there are is kept nowhere, so it is said only if the user knows it.
fn permits_held(numbers: &[u32], permits: Option<u32>) -> String {
    let listed =
        |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let Some(permits) = permits else {
        let plural = if numbers.len() == 1 { "" } else { "s" };
        return format!("{} permit{plural} ({})", numbers.len(), listed(numbers));
    };
    let (below, above) = numbers.split_at(numbers.partition_point(|number| *number < permits));
    let mut text = format!("{} of {permits} permits", below.len());
    if !below.is_empty() {
        text.push_str(&format!(" ({})", listed(below)));
    }
    if !above.is_empty() {
        text.push_str(&format!(" and {} above", listed(above)));
    }
    text
}

fn numbers(whole: &WholeLock) -> impl Iterator<Item = u32> {
    whole.holds.iter().filter_map(|hold| match hold.held_as {
        HeldAs::Permit(number) => Some(number),
        _ => None,
    })
}

fn exclusive(whole: &WholeLock) -> Option<&HolderInfo> {
    let found = whole.holds.iter().find(|hold| hold.held_as == HeldAs::Exclusive);
    found.map(|hold| &hold.holder)
}

/// What is known about a name; without any information it is free.
pub(crate) fn json(whole: &WholeLock, backend: &str, permits: Option<u32>) -> Value {
    let held = numbers(whole).count();
    let of_permits =
        (held > 0 || permits.is_some()).then(|| json!({ "held": held, "of": permits }));
    json!({
        "name": whole.key.name(),
        "backend": backend,
        "held": !whole.holds.is_empty(),
        "holder": exclusive(whole).map(holder::holder_json),
        "holders": whole.holds.iter().map(hold_json).collect::<Vec<_>>(),
        "permits": of_permits,
        "waiters": whole.waiters,
    })
}

/// The holder, with what it has.
pub(crate) fn hold_json(hold: &WholeHold) -> Value {
    let mut object = holder::holder_json(&hold.holder);
    let (held_as, number) = match hold.held_as {
        HeldAs::Permit(number) => ("permit", Some(number)),
        HeldAs::Reader => ("reader", None),
        HeldAs::Writer => ("writer", None),
        _ => ("exclusive", None),
    };
    object["as"] = json!(held_as);
    object["slot"] = json!(number);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_above_the_number_are_told_apart() {
        assert_eq!(permits_held(&[2], None), "1 permit (2)");
        assert_eq!(permits_held(&[0, 2, 3], None), "3 permits (0, 2, 3)");
        assert_eq!(permits_held(&[0, 2, 3], Some(4)), "3 of 4 permits (0, 2, 3)");
        assert_eq!(permits_held(&[0, 7], Some(4)), "1 of 4 permits (0) and 7 above");
        assert_eq!(permits_held(&[7, 9], Some(4)), "0 of 4 permits and 7, 9 above");
    }
}
