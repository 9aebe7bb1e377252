//! `distlock watch`: who holds some locks, live.

mod story;

use std::time::Duration;

use distlock::LockInfo;
use distlock::clock::Clock;
use serde_json::{Value, json};

use self::story::{Change, Story};
use crate::args::WatchArgs;
use crate::exit::Failure;
use crate::holder;
use crate::output::{self, escape, short};
use crate::patience::until_signal;
use crate::store::Store;

const HEAD: [&str; 7] = ["NAME", "HOLDER", "HELD FOR", "TIME LEFT", "WAITING", "CHANGES", "LOST"];

pub(crate) async fn watch(args: WatchArgs) -> Result<u8, Failure> {
    if args.every < Duration::from_millis(50) {
        return Err(Failure::usage("--every is too short: ask the store every 50ms at most"));
    }
    let store = until_signal(Store::open(&args.store, None)).await?;
    let watching = until_signal(follow(&args, &store)).await;
    store.close().await;
    watching
}

/// Asks again and again, until a signal comes or nobody reads the output any more.
async fn follow(args: &WatchArgs, store: &Store) -> Result<u8, Failure> {
    let clock = store.locks.clock();
    let mut stories: Vec<_> = args.names.iter().map(|name| Story::new(name)).collect();
    let on_terminal = !args.store.json && output::is_terminal();
    let mut drawn = 0;
    loop {
        let mut trouble = None;
        for story in &mut stories {
            let answer = store.locks.inspect(story.name()).await;
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
                return Ok(0);
            }
        }
        if on_terminal {
            let text = picture(&stories, trouble.as_deref());
            if !output::redraw(&text, &mut drawn)? {
                return Ok(0);
            }
        } else if let Some(trouble) = trouble {
            output::event("warning", json!({ "message": trouble }));
        }
        clock.sleep(args.every).await;
    }
}

/// One line of JSON for one change.
fn event(story: &Story, backend: &str, change: Change) -> Value {
    let mut object = holder::lock_json(story.name(), backend, story.info());
    object["event"] = json!(change.name());
    object["changes"] = json!(story.changes());
    object["lost"] = json!(story.lost());
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
    let unknown = || "-".to_owned();
    let holder = story.info().and_then(|info| info.holder.as_ref());
    let waiters = story.info().and_then(|info: &LockInfo| info.waiters);
    [
        escape(story.name()).into_owned(),
        holder.map_or_else(|| "free".to_owned(), holder::name),
        holder.and_then(|h| h.held_for).map_or_else(unknown, short),
        holder.and_then(|h| h.expires_in).map_or_else(unknown, short),
        waiters.map_or_else(unknown, |n| n.to_string()),
        story.changes().to_string(),
        story.lost().to_string(),
    ]
}
