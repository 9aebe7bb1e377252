//! What a look at a quorum must show.

use std::time::Duration;

use lock_core::{FencingToken, LockBackend, Seen as Shown};
use redis::Value;

use super::super::common::{floor, look};
use super::super::{Masters, claim, granted, request};
use super::{Seen, TTL, client, micros, start};

const RECORD: &str = "distlock\u{1e}quorum";

fn held(fence: u64, label: Option<&str>) -> Shown {
    let fence = Some(FencingToken::new(fence).unwrap());
    Shown::Held { fence, label: label.map(str::to_owned) }
}

/// What a look shows of `lock`.
async fn shown(backend: &impl LockBackend) -> Shown {
    look(backend, &["lock"]).await.unwrap().remove(0)
}

async fn set_mark(masters: &Masters, node: usize, mark: u64) {
    masters.command(node, &["HSET", RECORD, "mark", &mark.to_string()]).await;
}

/// What nobody shows but a minority is no answer: the others may have granted the lock.
pub(crate) async fn a_minority_shows_nothing() -> Seen {
    let (masters, links) = start().await;
    let looks = client(&links).await;
    let other_links = masters.links().await.unwrap();
    let other = client(&other_links).await;
    masters.command(2, &["SET", "lock", "foreign"]).await;
    let mut holder = claim(&other, "lock", TTL);
    granted(&mut *holder).await;
    masters.command(2, &["DEL", "lock"]).await;
    (0..2).for_each(|node| links.0[node].stall());
    let seen = look(&looks, &["lock"]).await;
    ensure!(seen.is_err(), "one node of three shows {seen:?}");
    Ok(())
}

/// The first node is behind, and the third one has counted far for other names. The floor is just the fence that was
/// given: the next one is counted without the third node.
pub(crate) async fn a_floor_parts_fences_on_a_quorum() -> Seen {
    let (masters, links) = start().await;
    let looks = client(&links).await;
    // Neither sees the marks that are set now, which are so far ahead that no proposal is above them.
    let other_links = masters.links().await.unwrap();
    let (early, late) = (client(&other_links).await, client(&other_links).await);
    let ahead = micros() + 3_600_000_000;
    for node in 0..3 {
        set_mark(&masters, node, ahead).await;
    }
    masters.command(0, &["SET", "lock", "foreign"]).await;
    let mut block = early.claim(request("lock", TTL).with_fences(3)).unwrap();
    let last = granted(&mut *block).await + 2;
    block.release().await.unwrap();
    masters.command(0, &["DEL", "lock"]).await;
    set_mark(&masters, 2, last + 1_000).await;
    // So that the first node is the first to answer.
    for link in &links.0[1..] {
        link.delay(Duration::from_millis(30), Duration::ZERO);
    }
    let floor = floor(&looks, "lock").await?;
    ensure!(floor >= last, "the floor {floor} is below the fence {last}");
    masters.command(2, &["SET", "lock", "foreign"]).await;
    let next = granted(&mut *claim(&late, "lock", TTL)).await;
    ensure!(next > floor, "the fence {next} is not above the floor {floor}");
    Ok(())
}

/// A holder, also where one node shows another vote or none; a client of another kind; and nobody, where a minority
/// shows a vote.
pub(crate) async fn a_look_shows_who_has_a_quorum() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let labelled = request("lock", TTL).with_label(Some("host-7|a".to_owned())).with_fences(2);
    let mut holder = backend.claim(labelled).unwrap();
    let fence = granted(&mut *holder).await;
    let right = held(fence, Some("host-7|a"));
    for spoil in
        [&["PING"][..], &["DEL", "lock"], &["SET", "lock", "foreign"], &["LPUSH", "lock", "x"]]
    {
        masters.command(1, &["DEL", "lock"]).await;
        masters.command(1, spoil).await;
        let seen = shown(&backend).await;
        ensure!(seen == right, "{spoil:?}: {seen:?} instead of {right:?}");
    }
    let Value::BulkString(vote) = masters.command(0, &["GET", "lock"]).await else { panic!() };
    let vote = String::from_utf8(vote).unwrap();
    holder.release().await.unwrap();
    masters.each(0..3, &["DEL", "lock"]).await;
    for (nodes, value) in [(0..1, "foreign"), (1..2, vote.as_str()), (0..0, "")] {
        masters.each(nodes.clone(), &["SET", "lock", value]).await;
        let floor = floor(&backend, "lock").await?;
        ensure!(floor == fence + 1, "{nodes:?}: {floor} after {fence}");
        masters.each(0..3, &["DEL", "lock"]).await;
    }
    masters.each(1..3, &["SET", "lock", "foreign", "PX", "300"]).await;
    let foreign = Shown::Held { fence: None, label: None };
    let seen = shown(&backend).await;
    ensure!(seen == foreign, "{seen:?} instead of {foreign:?}");
    tokio::time::sleep(Duration::from_millis(350)).await;
    floor(&backend, "lock").await?;
    Ok(())
}

/// One node shows a vote, one shows none, and the third one is silent: it may be that somebody has the lock. Then
/// only one fence is possible.
pub(crate) async fn what_may_be_held_is_held() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut holder = claim(&backend, "lock", TTL);
    let fence = granted(&mut *holder).await;
    masters.command(1, &["DEL", "lock"]).await;
    for silent in [2, 0] {
        links.0[silent].stall();
        let seen = shown(&backend).await;
        // The silent one may show a greater fence.
        ensure!(
            seen == Shown::Held { fence: None, label: None },
            "without node {silent}: {seen:?}"
        );
        links.0[silent].pass();
    }
    // Two fences are possible where the third node joined late, and the fence is what the silent one shows.
    let vote = masters.vote(2, "lock").await;
    let later = format!("{}.{}", holder_of(&masters, 2).await, vote.join("|"));
    let later = later.replace(&fence.to_string(), &(fence + 5).to_string());
    masters.command(2, &["SET", "lock", &later]).await;
    set_mark(&masters, 2, fence + 5).await;
    links.0[1].stall();
    let seen = shown(&backend).await;
    ensure!(seen == Shown::Held { fence: None, label: None }, "of two fences: {seen:?}");
    Ok(())
}

/// The owner that has the vote of this node.
async fn holder_of(masters: &Masters, node: usize) -> String {
    let Value::BulkString(value) = masters.command(node, &["GET", "lock"]).await else { panic!() };
    String::from_utf8(value).unwrap().split('.').next().unwrap().to_owned()
}

/// Two nodes that answer have counted differently, and the third one is silent: no number is known that parts earlier
/// fences from later ones, until the next grant of any name.
pub(crate) async fn too_few_marks_are_no_floor() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut other = claim(&backend, "other", TTL);
    granted(&mut *other).await;
    links.0[2].stall();
    floor(&backend, "lock").await?;
    set_mark(&masters, 1, micros() + 5_000_000).await;
    let seen = look(&backend, &["lock"]).await;
    ensure!(seen.is_err(), "the marks differ, and {seen:?}");
    let fence = granted(&mut *claim(&backend, "another", TTL)).await;
    let floor = floor(&backend, "lock").await?;
    ensure!(floor >= fence, "{floor} after {fence}");
    Ok(())
}
