//! The edit lock of a web page.
//!
//! Several people share an account and open the same order. The page asks for the lock every two
//! seconds and sends back the text that it was given; each request may reach another process. Whoever
//! has the text keeps the lock; everybody else is told who edits. When the page is closed, the
//! renewals stop and the lock lapses.
//!
//! ```sh
//! cargo run -p distlock --example edit_lock
//! ```

use std::time::Duration;

use distlock::{ErrorKind, LeaseToken, Locks, Result};

const TTL: Duration = Duration::from_secs(5);

/// What the page gets to see.
#[derive(Debug)]
pub(crate) enum Answer {
    /// You edit; send this text back within five seconds.
    Yours(String),
    /// Somebody else edits.
    Taken(String),
}

/// One request of the page, in whichever process it arrives.
async fn edit_order(locks: &Locks, order: u32, user: &str, text: Option<&str>) -> Result<Answer> {
    let name = format!("edit:order:{order}");
    let guard = match text.map(str::parse::<LeaseToken>).transpose()? {
        Some(token) => match locks.attach(token).await {
            Ok(guard) => Some(guard),
            // The page was away for too long; perhaps the lock is free.
            Err(error) if matches!(error.kind(), ErrorKind::Lost(_)) => None,
            Err(error) => return Err(error),
        },
        None => None,
    };
    let guard = match guard {
        Some(guard) => guard,
        None => {
            match locks.lock(name.clone())?.ttl(TTL).no_renew().label(user).try_acquire().await? {
                Some(guard) => guard,
                None => {
                    let holder = locks.inspect(name).await?.and_then(|info| info.holder);
                    let who = holder.and_then(|holder| holder.label);
                    return Ok(Answer::Taken(who.unwrap_or_else(|| "somebody".to_owned())));
                }
            }
        }
    };
    // The lock outlives this request: it belongs to whoever has the text.
    Ok(Answer::Yours(guard.detach().await?.to_text()))
}

/// Two people and two processes; returns what the second person was told, before and after the first
/// one has closed the page.
///
/// # Errors
///
/// What the store says.
pub(crate) async fn run(url: &str) -> Result<(Answer, Answer)> {
    let (one, two) = (distlock::connect(url).await?, distlock::connect(url).await?);
    let mut ann = edit_order(&one, 42, "ann", None).await?;
    let bob = edit_order(&two, 42, "bob", None).await?;
    for process in [&two, &one] {
        if let Answer::Yours(text) = &ann {
            ann = edit_order(process, 42, "ann", Some(text)).await?; // the heartbeat
        }
    }
    // The page is closed: it gives the lock up, rather than let everybody wait for five seconds.
    if let Answer::Yours(text) = ann {
        two.attach(text.parse()?).await?.release().await?;
    }
    Ok((bob, edit_order(&one, 42, "bob", None).await?))
}

#[allow(dead_code, reason = "the tests include this file as a module")]
#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://edit".to_owned());
    let (before, after) = run(&url).await?;
    if let Answer::Taken(who) = before {
        println!("bob is told that {who} edits");
    }
    println!(
        "bob, after ann has left: {}",
        if matches!(after, Answer::Yours(_)) { "edits" } else { "waits" }
    );
    Ok(())
}
