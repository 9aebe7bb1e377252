//! `distlock watch`: who holds some locks, live.

use std::time::Duration;

use distlock::clock::{Clock, ClockInstant};
use distlock::{HolderMark, LockInfo};
use serde_json::{Value, json};

use crate::args::StoreArgs;
use crate::exit::ExitError;
use crate::output::{self, cell, escape, holder, short};
use crate::store::OpenStore;

const HEAD: [&str; 7] = ["NAME", "HOLDER", "HELD FOR", "TIME LEFT", "WAITING", "CHANGES", "LOST"];

pub(crate) async fn watch(
    names: Vec<String>,
    store: StoreArgs,
    every: Duration,
) -> Result<u8, ExitError> {
    if every < Duration::from_millis(50) {
        return Err(ExitError::usage("--every is too short: ask the store every 50ms at most"));
    }
    let on_terminal = !store.json && output::is_terminal();
    OpenStore::with_until_signal(&store, async |opened| {
        follow(&names, opened, every, on_terminal).await
    })
    .await?;
    Ok(0)
}

/// Asks again and again, until nobody reads the output any more.
async fn follow(
    names: &[String],
    store: &OpenStore,
    every: Duration,
    on_terminal: bool,
) -> Result<(), ExitError> {
    let clock = store.locks.clock();
    let mut stories: Vec<_> = names.iter().map(|name| Story::new(name)).collect();
    let mut drawn = 0;
    loop {
        let mut trouble = None;
        for story in &mut stories {
            let answer = store.locks.inspect(story.name.as_str()).await;
            // A wrong name or a missing right will not mend itself.
            let info = match answer {
                Err(error) if error.is_retryable() => {
                    trouble = Some(error.to_string());
                    continue;
                }
                answer => store.describe(answer)?,
            };
            let change = story.look(info, clock.now());
            if let Some(change) = change.filter(|_| !on_terminal)
                && !output::line(event(story, store.locks.backend_name(), change))?
            {
                return Ok(());
            }
        }
        if on_terminal {
            let text = picture(&stories, trouble.as_deref());
            if !output::redraw(&text, &mut drawn)? {
                return Ok(());
            }
        } else if let Some(trouble) = trouble {
            output::event("warning", json!({ "message": trouble }));
        }
        clock.sleep(every).await;
    }
}

/// One line of JSON for one change.
fn event(story: &Story, backend: &str, change: &str) -> Value {
    let mut object = holder::lock_json(&story.name, backend, story.info.as_ref());
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
    let info = story.info.as_ref();
    let holder = info.and_then(|info| info.holder.as_ref());
    [
        escape(&story.name).into_owned(),
        holder.map_or_else(|| "free".to_owned(), holder::name),
        cell(holder.and_then(|h| h.held_for).map(short)),
        cell(holder.and_then(|h| h.expires_in).map(short)),
        cell(info.and_then(|info| info.waiters)),
        story.changes.to_string(),
        story.lost.to_string(),
    ]
}

/// What has been seen of one lock so far.
#[derive(Debug, Default)]
struct Story {
    name: String,
    info: Option<LockInfo>,
    /// Not before the first look.
    looked: bool,
    /// How often the lock has changed hands or become free.
    changes: u64,
    /// How many holds ended because nobody renewed them. Others were released, or taken away.
    lost: u64,
    /// Until when the present hold lasts without a renewal, as last seen.
    ends_at: Option<ClockInstant>,
}

impl Story {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Notes what the store shows at `now`, and names what is new: the `first` look, another hold
    /// (`taken`), none after one (`freed`), or more or fewer that wait (`queue`).
    fn look(&mut self, info: Option<LockInfo>, now: ClockInstant) -> Option<&'static str> {
        let before = std::mem::replace(&mut self.info, info);
        let first = !std::mem::replace(&mut self.looked, true);
        let (was, is) = (mark(before.as_ref()), mark(self.info.as_ref()));
        let same_hold = was == is;
        if !same_hold && was.is_some() && self.ends_at.is_some_and(|end| now >= end) {
            self.lost += 1;
        }
        let left = self.info.as_ref().and_then(|info| info.holder.as_ref()?.expires_in);
        self.ends_at = left.map(|left| now + left);
        if first {
            return Some("first");
        }
        if !same_hold {
            self.changes += 1;
            return Some(if is.is_some() { "taken" } else { "freed" });
        }
        let waiters = |info: Option<&LockInfo>| info.and_then(|info| info.waiters).unwrap_or(0);
        (waiters(before.as_ref()) != waiters(self.info.as_ref())).then_some("queue")
    }
}

/// What tells one hold from every other.
fn mark(info: Option<&LockInfo>) -> Option<HolderMark> {
    Some(info?.holder.as_ref()?.mark.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::{HolderInfo, LockKey, OwnerId};

    use super::*;

    fn held(owner: u8, left: u64, waiters: usize) -> Option<LockInfo> {
        let mut holder = HolderInfo::new(OwnerId::from_bytes([owner; 16]));
        holder.expires_in = Some(Duration::from_secs(left));
        Some(LockInfo::new(LockKey::new("", "a").unwrap(), Some(holder), Some(waiters)))
    }

    #[test]
    fn only_a_hold_whose_lease_has_run_out_counts_as_lost() {
        let at = |seconds: u64| ClockInstant::from_nanos(seconds * 1_000_000_000);
        let mut story = Story::new("a");
        assert_eq!(story.look(None, at(1)), Some("first"));
        assert_eq!(story.look(None, at(2)), None);
        assert_eq!(story.look(held(1, 10, 0), at(3)), Some("taken"));
        assert_eq!(story.look(held(1, 10, 1), at(6)), Some("queue"));
        // Released ten seconds early, and handed over.
        assert_eq!(story.look(held(2, 10, 0), at(7)), Some("taken"));
        assert_eq!((story.changes, story.lost), (2, 0));
        // Not renewed since.
        assert_eq!(story.look(None, at(17)), Some("freed"));
        assert_eq!((story.changes, story.lost), (3, 1));
        assert_eq!(story.look(held(3, 10, 0), at(40)), Some("taken"));
        assert_eq!(story.look(None, at(41)), Some("freed"));
        assert_eq!((story.changes, story.lost), (5, 1));
    }
}
