//! `distlock watch`: who holds some locks, live.

use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::kinds::{WholeHold, WholeLock};
use serde_json::{Value, json};

use crate::args::StoreArgs;
use crate::exit::ExitError;
use crate::output::whole::{self, Cells};
use crate::output::{self, cell, escape};
use crate::store::OpenStore;

const HEAD: [&str; 7] = ["NAME", "HOLDER", "HELD FOR", "TIME LEFT", "WAITING", "CHANGES", "LOST"];

pub(crate) async fn watch(
    names: Vec<String>,
    store: StoreArgs,
    permits: Option<u32>,
    every: Duration,
) -> Result<u8, ExitError> {
    if every < Duration::from_millis(50) {
        return Err(ExitError::usage("--every is too short: the minimum is 50ms"));
    }
    let on_terminal = !store.json && output::is_terminal();
    OpenStore::with_until_signal(&store, async |opened| {
        let stories = names.iter().map(|name| Story::new(name, permits)).collect();
        follow(stories, opened, every, on_terminal).await
    })
    .await?;
    Ok(0)
}

/// Asks again and again, until nobody reads the output any more.
async fn follow(
    mut stories: Vec<Story>,
    store: &OpenStore,
    every: Duration,
    on_terminal: bool,
) -> Result<(), ExitError> {
    let clock = store.locks.clock();
    let mut drawn = 0;
    loop {
        let mut trouble = None;
        for story in &mut stories {
            let answer = store.locks.inspect_whole(story.name.as_str()).await;
            // A wrong name or a missing right will not mend itself.
            let found = match answer {
                Err(error) if error.is_retryable() => {
                    trouble = Some(error.to_string());
                    continue;
                }
                answer => store.describe(answer)?,
            };
            let object = whole::json(&found, store.locks.backend_name(), story.permits);
            let change = story.look(found, clock.now());
            if let Some(change) = change.filter(|_| !on_terminal)
                && !output::line(event(story, object, change)).await?
            {
                return Ok(());
            }
        }
        if on_terminal {
            let text = picture(&stories, trouble.as_deref());
            if !output::redraw(&text, &mut drawn).await? {
                return Ok(());
            }
        } else if let Some(trouble) = trouble {
            output::event("warning", json!({ "message": trouble }), true);
        }
        clock.sleep(every).await;
    }
}

/// One line of JSON for one change.
fn event(story: &Story, mut object: Value, change: &str) -> Value {
    object["event"] = json!(change);
    object["changes"] = json!(story.changes);
    object["lost"] = json!(story.lost);
    object
}

fn picture(stories: &[Story], trouble: Option<&str>) -> String {
    let mut text = output::table(HEAD, stories.iter().map(row));
    if let Some(trouble) = trouble {
        text.push_str(&format!("\nnot up to date: {}", escape(trouble)));
    }
    text
}

fn row(story: &Story) -> [String; 7] {
    let cells = story.seen.as_ref().map(|seen| Cells::new(seen, story.permits));
    let shown = |cell: fn(&Cells) -> &String| {
        cells.as_ref().map_or_else(|| "-".to_owned(), |cells| cell(cells).clone())
    };
    let holder = cells.as_ref().and_then(|cells| cells.holder.clone());
    [
        escape(&story.name).into_owned(),
        holder.unwrap_or_else(|| "free".to_owned()),
        shown(|cells| &cells.held_for),
        shown(|cells| &cells.left),
        cell(story.seen.as_ref().and_then(|seen| seen.waiters)),
        story.changes.to_string(),
        story.lost.to_string(),
    ]
}

/// What has been seen of one name so far.
#[derive(Debug, Default)]
struct Story {
    name: String,
    permits: Option<u32>,
    /// Nothing before the first look.
    seen: Option<WholeLock>,
    /// How often the lock, or a part of it, has changed hands or become free.
    changes: u64,
    /// How many holds ended because nobody renewed them. Others were released, or taken away.
    lost: u64,
    /// Until when the present holds last without a renewal, as last seen.
    ends: Vec<(WholeHold, ClockInstant)>,
}

impl Story {
    fn new(name: &str, permits: Option<u32>) -> Self {
        Self { name: name.to_owned(), permits, ..Self::default() }
    }

    /// Notes what the store shows at `now`, and names what is new: the `first` look, another hold
    /// (`taken`), one less (`freed`), or more or fewer that wait (`queue`).
    fn look(&mut self, found: WholeLock, now: ClockInstant) -> Option<&'static str> {
        let with_end = |hold: &WholeHold| Some((hold.clone(), now + hold.holder.expires_in?));
        let ends = found.holds.iter().filter_map(with_end).collect();
        let ended = std::mem::replace(&mut self.ends, ends).into_iter();
        let ended = ended.filter(|(hold, end)| now >= *end && !has(&found, hold)).count();
        self.lost += u64::try_from(ended).unwrap_or(0);
        let before = self.seen.replace(found);
        let (Some(before), Some(found)) = (before, &self.seen) else { return Some("first") };
        let taken = found.holds.iter().filter(|hold| !has(&before, hold)).count();
        let freed = before.holds.iter().filter(|hold| !has(found, hold)).count();
        // One that changes hands is one change.
        self.changes += u64::try_from(taken.max(freed)).unwrap_or(0);
        match (taken, freed) {
            (1.., _) => Some("taken"),
            (0, 1..) => Some("freed"),
            (0, 0) => {
                let is_longer = before.waiters.unwrap_or(0) != found.waiters.unwrap_or(0);
                is_longer.then_some("queue")
            }
        }
    }
}

/// Whether it has this very hold, and no later one.
fn has(whole: &WholeLock, hold: &WholeHold) -> bool {
    let is_same =
        |other: &WholeHold| (&other.part, &other.holder.mark) == (&hold.part, &hold.holder.mark);
    whole.holds.iter().any(is_same)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::LockKey;
    use distlock::admin::{HolderInfo, LockInfo, OwnerId};

    use super::*;

    /// These are held: a name, an owner, and how many seconds are left.
    fn held(holds: &[(&str, u8, u64)], waiters: usize) -> WholeLock {
        let info = |(name, owner, left): &(&str, u8, u64)| {
            let mut holder = HolderInfo::new(OwnerId::from_bytes([*owner; 16]));
            holder.expires_in = Some(Duration::from_secs(*left));
            LockInfo::new(LockKey::new("", *name).unwrap(), Some(holder), None)
        };
        let waiting = LockInfo::new(LockKey::new("", "a").unwrap(), None, Some(waiters));
        WholeLock::group(holds.iter().map(info).chain([waiting])).pop().unwrap()
    }

    fn at(seconds: u64) -> ClockInstant {
        ClockInstant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn only_a_hold_whose_lease_has_run_out_counts_as_lost() {
        let mut story = Story::new("a", None);
        assert_eq!(story.look(held(&[], 0), at(1)), Some("first"));
        assert_eq!(story.look(held(&[], 0), at(2)), None);
        assert_eq!(story.look(held(&[("a", 1, 10)], 0), at(3)), Some("taken"));
        assert_eq!(story.look(held(&[("a", 1, 10)], 1), at(6)), Some("queue"));
        // Released ten seconds early, and handed over.
        assert_eq!(story.look(held(&[("a", 2, 10)], 0), at(7)), Some("taken"));
        assert_eq!((story.changes, story.lost), (2, 0));
        // Not renewed since.
        assert_eq!(story.look(held(&[], 0), at(17)), Some("freed"));
        assert_eq!((story.changes, story.lost), (3, 1));
        assert_eq!(story.look(held(&[("a", 3, 10)], 0), at(40)), Some("taken"));
        assert_eq!(story.look(held(&[], 0), at(41)), Some("freed"));
        assert_eq!((story.changes, story.lost), (5, 1));
    }

    #[test]
    fn each_permit_has_a_story_and_a_hand_over_is_one_change() {
        let mut story = Story::new("a", Some(2));
        assert_eq!(story.look(held(&[("a~~p0", 1, 10)], 0), at(1)), Some("first"));
        let both = [("a~~p0", 1, 10), ("a~~p1", 2, 10)];
        assert_eq!(story.look(held(&both, 0), at(2)), Some("taken"));
        assert_eq!(story.look(held(&both, 0), at(3)), None);
        assert_eq!(story.look(held(&[("a~~p0", 3, 10), both[1]], 0), at(4)), Some("taken"));
        assert_eq!((story.changes, story.lost), (2, 0));
        assert_eq!(story.look(held(&[("a~~p0", 3, 10)], 0), at(14)), Some("freed"));
        assert_eq!((story.changes, story.lost), (3, 1));
    }
}
