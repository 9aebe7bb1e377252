//! A call under a lock, with a time limit.
//!
//! Two players of a game are ready at the same moment and must get the same question: the first one
//! in picks and stores it, the second one finds it. And a balance of 100 must not pay for two
//! orders of 100. Both read, decide, and then write; the lock makes the three one step.
//!
//! **What the lock gives:** one call at a time, by `Lock::run`, which waits, renews, releases, and
//! drops the call if the lock is lost. The limit counts for everything together: a call that is cut
//! short gives up its place or its lock in the background. **What it does not give:** it cannot
//! stop a call that is paused just before its write, so each write compares the fence. Nor does it
//! say how far a call got that was cut short: its write may have been on the way.
//!
//! ```sh
//! cargo run -p distlock-examples --bin call -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' question game-1
//! cargo run -p distlock-examples --bin call -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' pay 100
//! ```

use std::error::Error;
use std::time::Duration;

use distlock::{Held, Locks};
use sqlx::AnyPool;

/// For waiting and working together.
const LIMIT: Duration = Duration::from_secs(8);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, call, argument] = &arguments[..] else {
        return Err("usage: call STORE DATABASE question GAME|pay AMOUNT".into());
    };
    let locks = distlock::connect(store).await?;
    sqlx::any::install_default_drivers();
    let database = AnyPool::connect(database).await?;
    locks.named("call:setup")?.run(async |_| set_up(&database).await).await??;

    let answer = match call.as_str() {
        "question" => {
            let name = format!("game:{argument}");
            under_lock(&locks, &name, async |held| question(held, &database, argument).await).await
        }
        "pay" => {
            let amount = argument.parse()?;
            under_lock(&locks, "account:1", async |held| pay(held, &database, amount).await).await
        }
        other => Err(format!("{other:?} is no call: use question or pay").into()),
    };
    // Also after an error: what a call has left behind is cleaned up before the program ends.
    locks.close(Duration::from_secs(5)).await?;
    println!("{}", answer?);
    Ok(())
}

/// Waits for the lock and runs `call` under it, for at most [`LIMIT`].
async fn under_lock<T>(
    locks: &Locks,
    name: &str,
    call: impl AsyncFnOnce(Held) -> Result<T>,
) -> Result<T> {
    match tokio::time::timeout(LIMIT, locks.named(name)?.run(call)).await {
        Ok(answer) => answer?,
        Err(_) => Err(format!("{name} is busy: no answer within {LIMIT:?}").into()),
    }
}

/// The question of a game: that of the player who came first.
async fn question(held: Held, database: &AnyPool, game: &str) -> Result<String> {
    let fence = held.token()?.as_i64();
    let new = "INSERT INTO games VALUES ($1, NULL, 0) ON CONFLICT (id) DO NOTHING";
    sqlx::query(new).bind(game).execute(database).await?;
    // A read presents the fence, too: a late write of an earlier player is refused from here on.
    let stored = "UPDATE games SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING question";
    let stored = sqlx::query_scalar::<_, Option<String>>(stored).bind(fence).bind(game);
    let stored = stored.fetch_optional(database).await?.ok_or("a later player was here")?;
    if let Some(question) = stored {
        return Ok(question);
    }
    let pick = "SELECT question FROM questions ORDER BY random() LIMIT 1";
    let picked: String = sqlx::query_scalar(pick).fetch_one(database).await?;
    let store = sqlx::query("UPDATE games SET question = $1 WHERE id = $2 AND fence = $3");
    let store = store.bind(&picked).bind(game).bind(fence).execute(database).await?;
    if store.rows_affected() == 0 {
        return Err("a later player was here".into());
    }
    Ok(picked)
}

/// Pays from the account, if it has enough.
async fn pay(held: Held, database: &AnyPool, amount: i64) -> Result<String> {
    let fence = held.token()?.as_i64();
    let balance = "UPDATE accounts SET fence = $1 WHERE id = 1 AND fence <= $1 RETURNING balance";
    let balance: Option<i64> =
        sqlx::query_scalar(balance).bind(fence).fetch_optional(database).await?;
    let balance = balance.ok_or("a later payment was here")?;
    if balance < amount {
        return Err(format!("not paid: the balance is {balance}").into());
    }
    let pay = sqlx::query("UPDATE accounts SET balance = $1 WHERE id = 1 AND fence = $2");
    let pay = pay.bind(balance - amount).bind(fence).execute(database).await?;
    if pay.rows_affected() == 0 {
        return Err("not paid: a later payment was here".into());
    }
    Ok(format!("paid {amount}"))
}

/// A hundred questions, and an account with a balance of 100.
async fn set_up(database: &AnyPool) -> sqlx::Result<()> {
    for step in [
        "CREATE TABLE IF NOT EXISTS questions (question TEXT PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS games (id TEXT PRIMARY KEY, question TEXT, fence BIGINT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS accounts (
            id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL)",
        "INSERT INTO accounts VALUES (1, 100, 0) ON CONFLICT (id) DO NOTHING",
    ] {
        sqlx::query(step).execute(database).await?;
    }
    for number in 1..=100 {
        let add = "INSERT INTO questions VALUES ($1) ON CONFLICT (question) DO NOTHING";
        sqlx::query(add).bind(format!("How much is {number} × 7?")).execute(database).await?;
    }
    Ok(())
}
