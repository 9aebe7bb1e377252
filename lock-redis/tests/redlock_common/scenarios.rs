//! What Redlock must do under faults, as scenarios that also run on its known wrong variants.
//!
//! Each answers `Err` with what was seen if the promise does not hold. That the surroundings do not
//! work is a panic, so that a mutant cannot be "found" by a broken test.

use std::time::Duration;

use lock_core::{Attempt, Claim, FencingToken, LockBackend, Locks, Released, Renewal};
use lock_redis::{Bootstrap, RedlockBackend, RedlockConfig};
use lock_testkit::servers::Data;
use redis::Value;
use tokio::time::{Instant, sleep, timeout};

use super::common::scenes::Seen;
use super::common::{played_by_name, until};
use super::{COUNTER, Links, Masters, claim, granted};

const TTL: Duration = Duration::from_secs(10);

macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err(format!($($seen)+));
        }
    };
}

mod blocks;
mod looks;
mod renewals;

#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use blocks::{no_fence_of_a_block_is_given_again, only_its_own_block_is_taken_over};
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use looks::{
    a_floor_parts_fences_on_a_quorum, a_look_shows_who_has_a_quorum, a_minority_shows_nothing,
    too_few_marks_are_no_floor, what_may_be_held_is_held,
};
#[allow(unused_imports, reason = "each test target uses a part of it")]
pub(crate) use renewals::{
    a_key_of_another_type_concerns_its_lock_alone, a_late_request_ends_no_hold_sooner,
    a_renewal_is_believed_from_its_own_request, each_hold_of_a_batch_hears_its_own_answer, holds,
    nodes_that_fail_lose_nothing, renewed,
};

played_by_name! {
    a_minority_grants_nothing
    a_fence_stands_on_a_quorum
    partial_votes_are_given_back
    a_late_vote_is_given_back
    an_unanswered_node_is_released
    a_grant_that_is_over_is_given_back
    a_renewal_is_believed_from_its_own_request
    a_hold_that_was_interrupted_is_not_renewed
    nodes_that_fail_lose_nothing
    a_restarted_node_gives_no_vote
    a_flushed_node_gives_no_vote
    fences_rise_over_a_loss
    a_late_request_ends_no_hold_sooner
    no_fence_of_a_block_is_given_again
    only_its_own_block_is_taken_over
    a_seed_counts_for_every_lock
    fences_rise_over_a_loss_after_a_client_that_is_ahead
    each_hold_of_a_batch_hears_its_own_answer
    a_key_of_another_type_concerns_its_lock_alone
    a_minority_shows_nothing
    a_floor_parts_fences_on_a_quorum
}

async fn client(links: &Links) -> RedlockBackend {
    RedlockBackend::connect(links.config().unwrap()).await.unwrap()
}

async fn start() -> (Masters, Links) {
    let masters = Masters::start().await.unwrap();
    let links = masters.links().await.unwrap();
    (masters, links)
}

/// Waits up to `limit` until the node has no such key.
async fn gone_within(masters: &Masters, node: usize, name: &str, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while masters.has(node, name).await {
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

fn is_granted(attempt: &lock_core::Result<Attempt>) -> bool {
    matches!(attempt, Ok(Attempt::Granted { .. }))
}

/// A client that reaches one node of three gets nothing, while another one gets the lock from the
/// other two.
pub(crate) async fn a_minority_grants_nothing() -> Seen {
    let (masters, cut_off) = start().await;
    let cut_off_client = client(&cut_off).await;
    let links = masters.links().await.unwrap();
    let other = client(&links).await;
    for proxy in &cut_off.0[1..] {
        proxy.refuse_new(true);
        proxy.cut(conformance_tests::server::Cut::Reset);
    }
    links.0[0].refuse_new(true);
    links.0[0].cut(conformance_tests::server::Cut::Reset);
    let mut holder = claim(&other, "lock", TTL);
    let _ = holder.try_acquire().await;
    granted(&mut *holder).await;
    let mut alone = claim(&cut_off_client, "lock", TTL);
    for _ in 0..3 {
        let seen = alone.try_acquire().await;
        ensure!(!is_granted(&seen), "violated: two holders: {seen:?}");
    }
    Ok(())
}

/// The established fence is what a quorum of nodes show, although their counters differed.
pub(crate) async fn a_fence_stands_on_a_quorum() -> Seen {
    let (masters, links) = start().await;
    // It has not seen the marks that are set now, so its proposal is below them.
    let backend = client(&links).await;
    let ahead = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ahead = u64::try_from((ahead + Duration::from_secs(3600)).as_micros()).unwrap();
    for node in 0..3 {
        let mark = (ahead + 10 * node as u64).to_string();
        masters.command(node, &["HSET", "distlock\u{1e}quorum", "mark", &mark]).await;
    }
    let mut claim = claim(&backend, "lock", TTL);
    let fence = granted(&mut *claim).await;
    let mut showing = 0;
    for node in 0..3 {
        let shown = masters.vote(node, "lock").await;
        showing += usize::from(shown.get(COUNTER) == Some(&fence.to_string()));
    }
    ensure!(showing >= 2, "the fence {fence} is shown by {showing} of 3 nodes");
    ensure!(fence > ahead, "the fence {fence} is not above the marks");
    Ok(())
}

/// A try that did not get a quorum leaves no vote behind when it answers.
pub(crate) async fn partial_votes_are_given_back() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    masters.occupy(0..2).await;
    let mut claim = claim(&backend, "lock", TTL);
    let seen = claim.try_acquire().await.unwrap();
    assert!(matches!(seen, Attempt::Busy { .. }), "{seen:?}");
    // Two nodes decide, and the third one's vote is given back right behind its answer.
    ensure!(
        gone_within(&masters, 2, "lock", Duration::from_millis(500)).await,
        "the third node's vote was kept"
    );
    Ok(())
}

/// A vote that a slow node gives after the try has failed is given back as well.
pub(crate) async fn a_late_vote_is_given_back() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    // The nodes know the scripts from then on, so one request is the whole try.
    let mut first = claim(&backend, "other", TTL);
    granted(&mut *first).await;
    first.release().await.unwrap();
    masters.occupy(0..2).await;
    links.0[2].stall();
    for proxy in &links.0[..2] {
        // So that the request to the third node is on its way when the others decide.
        proxy.delay(Duration::from_millis(50), Duration::ZERO);
    }
    let mut claim = claim(&backend, "lock", TTL);
    let seen = claim.try_acquire().await.unwrap();
    assert!(matches!(seen, Attempt::Busy { .. }), "{seen:?}");
    sleep(Duration::from_millis(300)).await;
    links.0[2].pass();
    sleep(Duration::from_millis(300)).await;
    ensure!(
        gone_within(&masters, 2, "lock", Duration::from_secs(2)).await,
        "the late vote of the third node was kept"
    );
    Ok(())
}

/// A node that did not answer the acquire is released when it can be reached, although the old connection's
/// bytes arrive after the new one's.
pub(crate) async fn an_unanswered_node_is_released() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    // The third node knows both scripts from then on: what is stalled below is one request that takes the lock.
    let mut first = claim(&backend, "other", TTL);
    granted(&mut *first).await;
    until("the third vote", TTL, async || masters.has(2, "other").await).await;
    first.release().await.unwrap();
    until("its release", TTL, async || !masters.has(2, "other").await).await;
    let before = links.0[2].connections();
    links.0[2].stall_present();
    let mut holder = claim(&backend, "lock", Duration::from_secs(30));
    granted(&mut *holder).await;
    // Else the release would travel behind the acquire.
    until("the end of the silent connection", TTL, async || {
        let _ = backend.ping().await;
        links.0[2].connections() > before
    })
    .await;
    assert_eq!(holder.release().await.unwrap(), Released::Freed);
    sleep(Duration::from_millis(500)).await;
    assert!(
        !masters.has(2, "lock").await,
        "the acquire has arrived already, or the node has joined"
    );
    // A vote raises what the node has counted to.
    let mark = async || masters.command(2, &["HGET", "distlock\u{1e}quorum", "mark"]).await;
    let before = mark().await;
    links.0[2].pass();
    until("the late vote", Duration::from_secs(1), async || mark().await != before).await;
    ensure!(
        gone_within(&masters, 2, "lock", Duration::from_secs(3)).await,
        "the third node still has the lock of a holder that released it"
    );
    Ok(())
}

/// A node that was restarted without its data gives no vote before the longest ttl has passed, and
/// then the fences go on above all that were given.
pub(crate) async fn a_restarted_node_gives_no_vote() -> Seen {
    loses_its_data("restart").await
}

/// The same after `FLUSHALL`, which leaves the process running.
pub(crate) async fn a_flushed_node_gives_no_vote() -> Seen {
    loses_its_data("flush").await
}

async fn loses_its_data(how: &str) -> Seen {
    let ttl = Duration::from_secs(6);
    let masters = Masters::start().await.unwrap();
    let links = masters.links().await.unwrap();
    let config = links.config().unwrap().max_ttl(ttl);
    let backend = RedlockBackend::connect(config).await.unwrap();
    // The first holder has the votes of nodes 0 and 1. Then node 0 forgets its vote.
    links.0[2].stall();
    let mut first = claim(&backend, "lock", ttl);
    let sent = Instant::now();
    let fence = granted(&mut *first).await;
    if how == "flush" {
        masters.command(0, &["FLUSHALL"]).await;
    } else {
        masters.0[0].restart(Data::Lose).await.unwrap();
    }
    let links = masters.links().await.unwrap();
    let config = links.config().unwrap().max_ttl(ttl);
    let other = RedlockBackend::connect(config).await.unwrap();
    let mut second = claim(&other, "lock", ttl);
    let mut tries = 0;
    loop {
        let seen = second.try_acquire().await;
        if let Ok(Attempt::Granted { token, .. }) = seen {
            // A grant that is answered later than that was right, on however slow a machine.
            let believes = sent.elapsed() < ttl;
            ensure!(!believes, "a second holder, while the first one believes: {token}");
            ensure!(token.get() > fence, "the fence {token} does not rise over {fence}");
            break;
        }
        tries += 1;
        ensure!(sent.elapsed() < Duration::from_secs(30), "the lock is not free 30 s later");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(tries > 0, "the machine is too slow for a ttl of {ttl:?}");
    drop(first);
    second.release().await.unwrap();
    // When it votes again, a quorum with it and without node 1 is as good as any.
    let why = timeout(Duration::from_secs(15), async {
        while other.not_voting().is_some() {
            sleep(Duration::from_millis(50)).await;
        }
    });
    why.await.expect("the node is not admitted again");
    links.0[1].stall();
    let mut third = claim(&other, "lock", ttl);
    let third_fence = granted(&mut *third).await;
    ensure!(third_fence > fence, "the fence {third_fence} does not rise over {fence}");
    Ok(())
}

/// A's hold rests on nodes 0 and 1. It ends on node 1, and another client holds the lock on nodes 1
/// and 2 with a greater fence. Then A's request for node 2 arrives there at last.
async fn interrupted(links: &Links, masters: &Masters) -> (Box<dyn Claim>, u64, u64) {
    let a_client = client(links).await;
    // The nodes know the scripts from then on, so one request is the whole try.
    let mut first = claim(&a_client, "other", TTL);
    granted(&mut *first).await;
    first.release().await.unwrap();
    links.0[2].stall_present();
    for proxy in &links.0[..2] {
        // So that the request to the third node is on its way when the others decide.
        proxy.delay(Duration::from_millis(50), Duration::ZERO);
    }
    let mut a = claim(&a_client, "lock", TTL);
    let fence = granted(&mut *a).await;
    masters.command(1, &["DEL", "lock"]).await;
    let other_links = masters.links().await.unwrap();
    let other = client(&other_links).await;
    let mut b = claim(&other, "lock", TTL);
    let between = granted(&mut *b).await;
    assert!(between > fence, "{between} after {fence}");
    b.release().await.unwrap();
    links.0[2].pass();
    until("the late request", Duration::from_secs(3), async || masters.has(2, "lock").await).await;
    sleep(Duration::from_millis(300)).await;
    // The lock of somebody else stands on node 1, so that nodes 0 and 2 decide.
    masters.occupy(1..2).await;
    (a, fence, between)
}

/// A second try of a claim returns the token of the first one only if no other client can have held
/// the lock in between.
pub(crate) async fn an_old_fence_does_not_come_back() -> Seen {
    let (masters, links) = start().await;
    let (mut a, fence, between) = interrupted(&links, &masters).await;
    let again = granted(&mut *a).await;
    ensure!(again > between, "{again} after {between} (and {fence} before)");
    Ok(())
}

/// A hold that another client's hold has interrupted is lost.
pub(crate) async fn a_hold_that_was_interrupted_is_not_renewed() -> Seen {
    let (masters, links) = start().await;
    let (mut a, fence, between) = interrupted(&links, &masters).await;
    let seen = a.renew().await;
    ensure!(
        !matches!(seen, Ok(Renewal::Alive { .. })),
        "{fence} was renewed after {between} was granted"
    );
    Ok(())
}

/// A quorum whose answers come when the ttl is over has granted nothing, and keeps nothing.
pub(crate) async fn a_grant_that_is_over_is_given_back() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut first = claim(&backend, "other", TTL);
    granted(&mut *first).await;
    for proxy in &links.0 {
        proxy.delay(Duration::from_millis(300), Duration::ZERO);
    }
    // Twice 300 ms are the way there and back.
    let mut late = claim(&backend, "lock", Duration::from_millis(500));
    let seen = late.try_acquire().await;
    ensure!(!is_granted(&seen), "granted when the lock was over: {seen:?}");
    for node in 0..3 {
        let limit = Duration::from_millis(150);
        ensure!(gone_within(&masters, node, "lock", limit).await, "node {node} kept its vote");
    }
    Ok(())
}

/// Microseconds of the wall clock.
pub(crate) fn micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// A node comes back without its last writes, and with what it had counted to before. It counts on from its seed
/// all the same, where no clock helps.
pub(crate) async fn a_seed_counts_for_every_lock() -> Seen {
    let ttl = Duration::from_secs(1);
    let (masters, links) = start().await;
    let record = "distlock\u{1e}quorum";
    let settings = || links.config().unwrap().max_ttl(ttl);
    // It does not see the marks that are set now, so its proposal is below them.
    let late = RedlockBackend::connect(settings()).await.unwrap();
    let ahead = (micros() + 3_600_000_000).to_string();
    masters.each(0..3, &["HSET", record, "mark", &ahead]).await;
    let holder = RedlockBackend::connect(settings()).await.unwrap();
    let fence = granted(&mut *claim(&holder, "lock", ttl)).await;
    // The first node had written an older counter to its disk, and the third one had no part.
    masters.command(0, &["HSET", record, "mark", "1"]).await;
    masters.command(2, &["DEL", "lock"]).await;
    masters.0[0].restart(Data::Keep).await.unwrap();
    // It is noticed although the others have granted the lock before it answers.
    links.0[0].delay(Duration::from_millis(20), Duration::ZERO);
    let admitted = timeout(Duration::from_secs(20), async {
        let field = async |field| masters.command(0, &["HGET", record, field]).await;
        let before = field("nonce").await;
        let admitted = Value::BulkString(b"admitted".to_vec());
        while field("nonce").await == before || field("state").await != admitted {
            // Whatever comes of it: it makes the client look after the node.
            let _ = claim(&holder, "other", Duration::from_millis(100)).try_acquire().await;
            sleep(Duration::from_millis(150)).await;
        }
    });
    admitted.await.expect("the node is not admitted again");
    masters.command(2, &["HSET", record, "mark", "1"]).await;
    links.0[1].stall();
    let next = granted(&mut *claim(&late, "lock", ttl)).await;
    ensure!(next > fence, "the fence {next} does not rise over {fence}");
    Ok(())
}

/// All nodes are restarted with their data, and lose everything soon after: what the restart has put the
/// fences ahead of the clocks is over when the nodes vote again.
pub(crate) async fn fences_rise_over_a_loss() -> Seen {
    for nodes in [3, 5] {
        let masters = Masters::start_number(nodes).await.unwrap();
        let settings = || RedlockConfig::from_url(&masters.url("&lock_max_ttl=1s")).unwrap();
        let holder = RedlockBackend::connect(settings()).await.unwrap();
        let first = granted(&mut *claim(&holder, "lock", Duration::from_secs(1))).await;
        for server in &masters.0 {
            server.restart(Data::Keep).await.unwrap();
        }
        let kept = granted_in_time(settings()).await;
        ensure!(kept > first, "{nodes} nodes: {kept} after {first}, with all data");
        for server in &masters.0 {
            server.restart(Data::Lose).await.unwrap();
        }
        let next = granted_in_time(settings().bootstrap(Bootstrap::Wait)).await;
        ensure!(next > kept, "{nodes} nodes: {next} after {kept}");
    }
    Ok(())
}

/// A client proposes fences that are an hour ahead, as one does whose clock is. Then all data is lost, and
/// another client goes on once the nodes vote again.
pub(crate) async fn fences_rise_over_a_loss_after_a_client_that_is_ahead() -> Seen {
    let (masters, links) = start().await;
    let settings = || links.config().unwrap().max_ttl(Duration::from_secs(1));
    RedlockBackend::connect(settings()).await.unwrap();
    let record = "distlock\u{1e}quorum";
    let ahead = (micros() + 3_600_000_000).to_string();
    masters.command(2, &["HSET", record, "mark", &ahead]).await;
    // It proposes above the greatest mark that it has seen.
    let early = RedlockBackend::connect(settings()).await.unwrap();
    masters.command(2, &["HSET", record, "mark", "1", "floor", "1"]).await;
    let fence = granted(&mut *claim(&early, "lock", Duration::from_secs(1))).await;
    ensure!(fence > micros(), "its proposal counted for nothing");
    for server in &masters.0 {
        server.restart(Data::Lose).await.unwrap();
    }
    let next = granted_in_time(settings().bootstrap(Bootstrap::Wait)).await;
    ensure!(next > fence, "the fence {next} does not rise over {fence}");
    Ok(())
}

/// The fence that a client gets as soon as the nodes vote.
async fn granted_in_time(config: RedlockConfig) -> u64 {
    let locks = Locks::new(RedlockBackend::connect(config).await.unwrap());
    let lock = locks.named("lock").unwrap().ttl(Duration::from_secs(1));
    lock.acquire_timeout(Duration::from_secs(20)).await.unwrap().token().unwrap().get()
}

/// A guard for tests that wait as users do.
pub(crate) async fn acquire(locks: &Locks, name: &str, limit: Duration) -> FencingToken {
    let guard = locks.named(name).unwrap().acquire_timeout(limit).await.unwrap();
    let token = guard.token().unwrap();
    guard.release().await.unwrap();
    token
}
