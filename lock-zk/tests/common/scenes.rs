//! Scenes specific to ZooKeeper, which the suite does not cover. `tests/scenes.rs` plays them, and
//! `tests/mutants.rs` with mistakes built in. A scene ends with an error if it saw one.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::time::Duration;

use lock_core::{Attempt, LockBackend, LockKey, Renewal, Victim};
use lock_testkit::servers::{PeerLink, ZooKeeper};
use tokio::time::Instant;

use super::{DEFAULT, SESSION, SLACK, backend, backend_at, children, claim, granted, plain};

pub(crate) type Seen = Result<(), String>;

/// The tokens rise also when the node of the lock was removed in between, and the sequence numbers
/// have begun again.
pub(crate) async fn fences_rise_over_a_new_queue() -> Seen {
    let servers = super::server().await;
    let (ours, plain) = (backend(&servers).await, plain(&servers).await);
    let mut last = 0;
    for round in 0..3 {
        for _ in 0..4 {
            let mut holder = claim(&ours, "lock", true);
            let fence = granted(&mut *holder).await.get();
            holder.release().await.unwrap();
            if fence <= last {
                return Err(format!(
                    "violated: in round {round} the fence {fence} came after {last}"
                ));
            }
            last = fence;
        }
        // The server removes an empty container automatically.
        super::until("the node of the lock is removed", SLACK * 2, async || {
            plain.check_stat("/locks/lock").await.unwrap().is_none()
        })
        .await;
    }
    Ok(())
}

/// The client gives its session up to a server that would shorten it, and the server knows it still: the
/// node of the old session is no hold of the new one.
pub(crate) async fn a_node_of_an_old_session_is_not_trusted() -> Seen {
    const LONG: Duration = Duration::from_secs(6);
    let servers = super::server().await;
    let ours = super::connect(super::hosts(&servers), "lock_session_timeout=6s").await;
    let other = super::connect(super::hosts(&servers), "lock_session_timeout=6s").await;
    let mut holder = claim(&ours, "lock", true);
    let first = granted(&mut *holder).await;
    servers.allow_sessions(Duration::from_millis(500), SESSION).unwrap();
    servers.restart().await.unwrap();
    super::until("the session is given up", LONG, async || {
        matches!(holder.check().await, Ok(Renewal::Lost))
    })
    .await;
    servers.allow_sessions(Duration::from_millis(500), LONG).unwrap();
    servers.restart().await.unwrap();
    // As if the first grant had never been handed out: the same claim tries again.
    let second = super::acquired(&mut *holder).await;
    if second <= first {
        return Err(format!(
            "violated: the node of the old session was taken for ours: fence {second}"
        ));
    }
    let end = Instant::now() + LONG + Duration::from_secs(1);
    while Instant::now() < end {
        let mut probe = claim(&other, "lock", false);
        if let Ok(Attempt::Granted { .. }) = probe.try_acquire().await {
            return Err("violated: two holders".into());
        }
        if holder.check().await.unwrap() == Renewal::Lost {
            return Err("the new hold has ended with the old session".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    holder.release().await.unwrap();
    Ok(())
}

/// The requests that keep a session wait for the leader, and what comes behind them waits with
/// them, so they should be rare where a server is to answer on its own.
const SELDOM: &str = "lock_session_timeout=30s";

/// While no leader answers, nothing is prolonged and nothing is confirmed: a follower goes on
/// answering reads, and does not know which nodes are gone.
pub(crate) async fn a_renewal_needs_the_leader() -> Seen {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let leader = servers.leader().unwrap();
    let ours = backend_at(&servers, (leader + 1) % 3, SELDOM).await;
    let (mut renewed, mut checked) = (claim(&ours, "one", true), claim(&ours, "two", true));
    granted(&mut *renewed).await;
    granted(&mut *checked).await;
    for _ in 0..3 {
        servers.freeze_one(leader).unwrap();
        // What was under way may still have been answered.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (renewal, check) = tokio::join!(renewed.renew(), checked.check());
        servers.thaw_one(leader).unwrap();
        for (what, answer) in [("renewal", renewal), ("check", check)] {
            if let Ok(answer) = answer {
                return Err(format!(
                    "the leader was frozen, and the answer to a {what} is {answer:?}"
                ));
            }
        }
        for claim in [&mut renewed, &mut checked] {
            super::until("it is renewed", SLACK, async || claim.renew().await.is_ok()).await;
        }
    }
    Ok(())
}

/// A lock that was taken away is not confirmed by a server that has not heard of it yet.
pub(crate) async fn a_server_that_is_behind_confirms_nothing() -> Seen {
    let (servers, link) = ZooKeeper::with_distant_follower().await.unwrap();
    let ours = backend_at(&servers, 0, SELDOM).await;
    let operator = backend_at(&servers, servers.leader().unwrap(), DEFAULT).await;
    for round in 0..5 {
        let mut holder = super::held(&ours, "lock").await;
        link.stall();
        let key = LockKey::new("", "lock").unwrap();
        operator.admin().unwrap().force_release(&key, &Victim::Anybody).await.unwrap();
        let (answer, ()) = tokio::join!(holder.check(), passes_again(&link));
        match answer {
            Ok(Renewal::Lost) | Err(_) => {}
            Ok(answer) => return Err(format!("in round {round} a check says {answer:?}")),
        }
        holder.release().await.unwrap();
    }
    Ok(())
}

/// What asks the leader waits until then; what the server answers by itself does not.
async fn passes_again(link: &PeerLink) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    link.pass();
}

/// What a follower answers while the leader is frozen does not prolong a session: the leader hears
/// of it only later, or never.
pub(crate) async fn a_read_prolongs_nothing() -> Seen {
    let timeout = Duration::from_secs(16);
    let servers = ZooKeeper::ensemble().await.unwrap();
    let leader = servers.leader().unwrap();
    let parameters = "lock_session_timeout=16s&lock_tick_time=100ms";
    let ours = backend_at(&servers, (leader + 1) % 3, parameters).await;
    let mut holder = super::held(&ours, "lock").await;
    // On a busy machine the client may give up its connection meanwhile, and nothing is seen.
    for _ in 0..5 {
        tokio::time::sleep(timeout / 4).await;
        servers.freeze_one(leader).unwrap();
        let frozen = Instant::now();
        // The client gives its connection up after a quarter of the session.
        tokio::time::sleep(Duration::from_secs(3)).await;
        // It is answered as soon as the leader goes on, before the follower reports anything.
        let start = Instant::now();
        let (answer, ()) = tokio::join!(holder.renew(), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            servers.thaw_one(leader).unwrap();
        });
        match answer {
            Ok(Renewal::Alive { valid_for: Some(valid_for) }) => {
                let until = start + valid_for;
                let heard = frozen + timeout;
                return if until > heard {
                    let more = until.duration_since(heard);
                    Err(format!("counted on {more:?} more than the leader can have heard of"))
                } else {
                    Ok(())
                };
            }
            Ok(other) => panic!("the session is alive, and the answer is {other:?}"),
            Err(_) => {}
        }
        super::until("a renewal is answered", SLACK, async || holder.renew().await.is_ok()).await;
    }
    panic!("no renewal was answered across a freeze of the leader");
}

/// A waiter is not served by a server that has not yet heard that its node was taken away, and that
/// another client holds the lock.
pub(crate) async fn a_server_that_is_behind_grants_nothing() -> Seen {
    const ROUNDS: usize = 8;
    let (servers, link) = ZooKeeper::with_distant_follower().await.unwrap();
    let ours = backend_at(&servers, 0, SELDOM).await;
    let operator = backend_at(&servers, servers.leader().unwrap(), DEFAULT).await;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let mut holder = super::held(&operator, "lock").await;
        let mut waiter = claim(&ours, "lock", true);
        super::busy(&mut *waiter).await;
        if round % 2 == 0 {
            let (released, changed) =
                tokio::join!(holder.release(), tokio::time::timeout(SLACK, waiter.changed()));
            released.unwrap();
            changed.expect("the release wakes").unwrap();
        } else {
            // It polls, without having been woken.
            holder.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        link.stall();
        let key = LockKey::new("", "lock").unwrap();
        operator.admin().unwrap().force_release(&key, &Victim::Anybody).await.unwrap();
        let mut other = claim(&operator, "lock", true);
        let fence = granted(&mut *other).await;
        let (answer, ()) = tokio::join!(waiter.try_acquire(), passes_again(&link));
        match answer {
            Ok(Attempt::Granted { token, .. }) => {
                return Err(format!(
                    "violated: in round {round} the fence {token} was granted while {fence} was held"
                ));
            }
            Ok(_) => refused += 1,
            Err(_) => {}
        }
        for claim in [&mut waiter, &mut other] {
            super::until("it is released", SLACK, async || claim.release().await.is_ok()).await;
        }
    }
    assert!(refused > ROUNDS / 2, "only {refused} looks of {ROUNDS} were answered");
    Ok(())
}

/// How many requests one hand-over costs, with a few waiters and with many.
pub(crate) async fn a_hand_over_wakes_one_waiter(many: usize) -> Seen {
    let few = requests_per_hand_over(8).await;
    let more = requests_per_hand_over(many).await;
    println!("requests per hand-over: {few:.1} with 8 waiters, {more:.1} with {many}");
    if more > few * 1.5 + 2.0 {
        return Err(format!(
            "a hand-over costs {few:.1} requests with 8 waiters, {more:.1} with {many}"
        ));
    }
    Ok(())
}

/// The answer to a release proves the grant of the one behind it, and of nobody else: one request for both.
pub(crate) async fn a_release_hands_the_lock_to_the_next() -> Seen {
    /// A few requests may keep the session meanwhile, but not each time.
    const ROUNDS: u32 = 5;
    let servers = super::server().await;
    let ours = super::connect(super::hosts(&servers), SELDOM).await;
    let mut least = u64::MAX;
    for round in 1..=ROUNDS {
        let name = format!("lock {round}");
        let mut holder = super::held(&ours, &name).await;
        let mut waiter = claim(&ours, &name, true);
        super::busy(&mut *waiter).await;
        let before = requests(&servers);
        holder.release().await.unwrap();
        granted(&mut *waiter).await;
        least = least.min(requests(&servers) - before);
        waiter.release().await.unwrap();
    }
    // The server counts the question how many there were, too.
    if least > 2 {
        return Err(format!("a hand-over took {} requests", least - 1));
    }
    nobody_else_is_handed(&ours).await
}

async fn nobody_else_is_handed(ours: &impl LockBackend) -> Seen {
    let mut holder = super::held(ours, "lock").await;
    let [mut second, mut third, mut fourth] = [(); 3].map(|()| claim(ours, "lock", true));
    super::busy(&mut *second).await;
    super::busy(&mut *third).await;
    holder.release().await.unwrap();
    let fence = granted(&mut *second).await;
    super::busy(&mut *fourth).await;
    third.release().await.unwrap();
    for (waiter, what) in [(&mut third, "who has left"), (&mut fourth, "who gave up nothing")] {
        if let Attempt::Granted { .. } = waiter.try_acquire().await.unwrap() {
            return Err(format!("violated: two holders: {what} was handed a lock that is held"));
        }
    }
    second.release().await.unwrap();
    let next = granted(&mut *fourth).await;
    if next <= fence {
        return Err(format!("violated: the fence {next} came after {fence}"));
    }
    third.release().await.unwrap();
    fourth.release().await.unwrap();
    Ok(())
}

/// The node of the next one was removed, and it has not heard of that yet.
pub(crate) async fn a_release_proves_no_place_that_is_gone() -> Seen {
    let servers = super::server().await;
    let (ours, plain) = (backend(&servers).await, plain(&servers).await);
    let mut holder = super::held(&ours, "lock").await;
    let first = children(&plain, "lock").await;
    let mut waiter = claim(&ours, "lock", true);
    super::busy(&mut *waiter).await;
    let mut places = children(&plain, "lock").await;
    places.retain(|place| !first.contains(place));
    plain.delete(&format!("/locks/lock/{}", places[0]), None).await.unwrap();
    holder.release().await.unwrap();
    granted(&mut *waiter).await;
    if children(&plain, "lock").await.is_empty() {
        return Err("violated: a lock is held without a node".into());
    }
    waiter.release().await.unwrap();
    Ok(())
}

/// The requests of all clients as the server counts them, without the pings.
async fn requests_per_hand_over(waiters: usize) -> f64 {
    const HAND_OVERS: usize = 6;
    let servers = super::server().await;
    // A long session, so that renewals and pings do not spoil the count.
    let ours = backend_at(&servers, 0, "lock_session_timeout=60s").await;
    let locks = super::locks(ours, Duration::from_secs(60));
    let holder = locks.named("lock").unwrap().acquire().await.unwrap();
    let (served, mut serving) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        let (lock, served) = (locks.named("lock").unwrap(), served.clone());
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.send(guard).unwrap();
        });
    }
    let plain = plain(&servers).await;
    super::until("all wait", Duration::from_secs(120), async || {
        children(&plain, "lock").await.len() == waiters + 1
    })
    .await;
    drop(plain);
    // Their watches are set.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = requests(&servers);
    let mut guard = holder;
    for _ in 0..HAND_OVERS {
        guard.release().await.unwrap();
        guard = serving.recv().await.unwrap();
    }
    // What the last one has caused.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = requests(&servers);
    tasks.abort_all();
    f64::from(u32::try_from(after - before).unwrap()) / 6.0
}

/// How many requests the first server has received.
pub(crate) fn requests(servers: &ZooKeeper) -> u64 {
    let answer = servers.ask(0, "srvr").unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("Received: ")).unwrap();
    line.trim().parse().unwrap()
}
