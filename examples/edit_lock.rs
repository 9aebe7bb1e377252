//! The edit lock of a web page.
//!
//! Several people share an account and open the same order. The page asks for the lock every two
//! seconds and sends back the text that it was given; each request may reach another process. The
//! bearer of the text keeps the lock; everybody else is told who is editing. When the page is
//! closed, the renewals stop and the lock lapses.
//!
//! The text comes back from a browser, so none of it is trusted: it is used with the lock of the
//! order in the request, and the store compares the rest.
//!
//! ```sh
//! cargo run -p distlock --example edit_lock
//! ```

use std::time::Duration;

use distlock::{ErrorKind, LeaseToken, Lock, Locks, Result};

const TTL: Duration = Duration::from_secs(5);

/// What the page is told.
#[derive(Debug)]
pub(crate) enum Answer {
    /// You are editing; send this text back within five seconds.
    Yours(String),
    /// Someone else is editing.
    Taken(String),
}

/// The lock of an order. Every request uses the same settings, which are not in the text.
fn lock_of(locks: &Locks, order: u32, user: &str) -> Result<Lock> {
    Ok(locks.named(format!("edit:order:{order}"))?.ttl(TTL).no_renew().label(user))
}

/// One request of the page, in whichever process it arrives. It may be dropped at any point, when
/// the browser disconnects: that never releases a lock whose text the page has.
async fn edit_order(locks: &Locks, order: u32, user: &str, text: Option<&str>) -> Result<Answer> {
    let lock = lock_of(locks, order, user)?;
    if let Some(text) = text {
        match lock.renew(&text.parse::<LeaseToken>()?).await {
            Ok(_) => return Ok(Answer::Yours(text.to_owned())),
            // The page was away too long; perhaps the lock is free.
            Err(error) if matches!(error.kind(), ErrorKind::Lost(_)) => {}
            Err(error) => return Err(error),
        }
    }
    match lock.try_acquire().await? {
        // The lock outlives this request: it belongs to the bearer of the text.
        Some(guard) => Ok(Answer::Yours(guard.detach().await?.to_text())),
        None => {
            let holder = locks.inspect(lock.key().name()).await?.and_then(|info| info.holder);
            let who = holder.and_then(|holder| holder.label);
            Ok(Answer::Taken(who.unwrap_or_else(|| "someone".to_owned())))
        }
    }
}

/// The page is closed: it gives up the lock, rather than make others wait for five seconds.
async fn close_page(locks: &Locks, order: u32, user: &str, text: &str) -> Result<()> {
    lock_of(locks, order, user)?.release(text.parse()?).await.map(drop)
}

/// Two people and two processes; returns what the second person was told, before and after the
/// first one closed the page.
///
/// # Errors
///
/// Any error of the store.
pub(crate) async fn run(url: &str) -> Result<(Answer, Answer)> {
    let (one, two) = (distlock::connect(url).await?, distlock::connect(url).await?);
    let mut ann = edit_order(&one, 42, "ann", None).await?;
    let bob = edit_order(&two, 42, "bob", None).await?;
    for process in [&two, &one] {
        if let Answer::Yours(text) = &ann {
            ann = edit_order(process, 42, "ann", Some(text)).await?; // the heartbeat
        }
    }
    if let Answer::Yours(text) = ann {
        // The text of one order is useless for another.
        let error = edit_order(&one, 43, "ann", Some(&text)).await.expect_err("not of this order");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        close_page(&two, 42, "ann", &text).await?;
    }
    let after = edit_order(&one, 42, "bob", None).await?;
    for process in [one, two] {
        process.close(TTL).await?;
    }
    Ok((bob, after))
}

#[allow(dead_code, reason = "the tests include this file as a module")]
#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://edit".to_owned());
    let (before, after) = run(&url).await?;
    if let Answer::Taken(who) = before {
        println!("bob is told that {who} is editing");
    }
    println!(
        "bob, after ann has left: {}",
        if matches!(after, Answer::Yours(_)) { "edits" } else { "waits" }
    );
    Ok(())
}
