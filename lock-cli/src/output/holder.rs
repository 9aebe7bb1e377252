//! Who holds a lock, for people and for programs.

use std::time::SystemTime;

use distlock::admin::HolderInfo;
use serde_json::{Value, json};

use crate::output::{escape, millis, rfc3339, short};

/// The owner's first digits: enough to tell two holders apart and to name one in `release --owner`,
/// too few to act as the holder.
pub(crate) fn owner(holder: &HolderInfo) -> Option<String> {
    holder.owner.map(|owner| owner.short())
}

/// Who holds it, with the owner's first digits where `status` and `release` need them.
pub(crate) fn with_owner(holder: &HolderInfo) -> String {
    let id = owner(holder).map(|id| format!(", owner {id}")).unwrap_or_default();
    format!("{}{id}", sentence(holder))
}

/// `ci-7/4121 (held for 3m12s, fence 17, 21s left)`.
pub(crate) fn sentence(holder: &HolderInfo) -> String {
    let held_for = holder.held_for.map(|held| format!("held for {}", short(held)));
    let left = holder.expires_in.map(|left| format!("{} left", short(left)));
    with_facts(holder, [held_for, fence(holder), left])
}

/// `ci-7/4121 (3m12s, fence 17)`, for a line that has to be short.
pub(crate) fn brief(holder: &HolderInfo) -> String {
    with_facts(holder, [holder.held_for.map(short), fence(holder)])
}

fn fence(holder: &HolderInfo) -> Option<String> {
    holder.fence.map(|fence| format!("fence {fence}"))
}

fn with_facts<const N: usize>(holder: &HolderInfo, facts: [Option<String>; N]) -> String {
    let (who, facts) = (name(holder), facts.into_iter().flatten().collect::<Vec<_>>());
    if facts.is_empty() { who } else { format!("{who} ({})", facts.join(", ")) }
}

/// The label, else the owner's first digits.
pub(crate) fn name(holder: &HolderInfo) -> String {
    match (&holder.label, owner(holder)) {
        (Some(label), _) => escape(label).into_owned(),
        (None, Some(owner)) => format!("owner {owner}"),
        (None, None) => "an unnamed client".to_owned(),
    }
}

pub(crate) fn holder_json(holder: &HolderInfo) -> Value {
    let now = SystemTime::now();
    let since = holder.held_for.and_then(|held| now.checked_sub(held));
    let until = holder.expires_in.and_then(|left| now.checked_add(left));
    json!({
        "owner": owner(holder),
        "label": holder.label,
        "fence": holder.fence.map(distlock::FencingToken::get),
        "held_for_ms": holder.held_for.map(millis),
        "held_since": since.map(rfc3339),
        "expires_in_ms": holder.expires_in.map(millis),
        "expires_at": until.map(rfc3339),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::FencingToken;
    use distlock::admin::OwnerId;

    use super::*;

    fn ours() -> HolderInfo {
        let owner = OwnerId::from_bytes([0xab; 16]);
        let mut holder = HolderInfo::new(owner);
        holder.owner = Some(owner);
        holder
    }

    #[test]
    fn the_sentence_tells_what_is_known() {
        let mut holder = ours();
        assert_eq!(sentence(&holder), "owner abababab");
        holder.label = Some("ci-7\x1b[2J".to_owned());
        holder.held_for = Some(Duration::from_secs(192));
        holder.fence = Some(FencingToken::new(17).unwrap());
        holder.expires_in = Some(Duration::from_secs(21));
        assert_eq!(sentence(&holder), "ci-7\\u{1b}[2J (held for 3m12s, fence 17, 21s left)");
        assert_eq!(brief(&holder), "ci-7\\u{1b}[2J (3m12s, fence 17)");
    }

    #[test]
    fn the_owner_is_not_given_away() {
        let holder = ours();
        assert_eq!(holder_json(&holder)["owner"], "abababab");
    }
}
