//! What the renewals of many holds, which travel together, must not mix up.

use std::time::Duration;

use conformance_tests::server::Cut;
use lock_core::{Claim, LockBackend, Renewal, Result};
use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::common::{requests, scenes};
use super::super::{Masters, claim, granted};
use super::{Seen, TTL, client, start};

type Claims = Vec<Box<dyn Claim>>;

/// Claims that hold `lock0`, `lock1` and so on.
pub(crate) async fn holds(backend: &impl LockBackend, number: usize) -> Claims {
    let mut claims = Vec::new();
    for n in 0..number {
        let mut claim = claim(backend, &format!("lock{n}"), TTL);
        granted(&mut *claim).await;
        claims.push(claim);
    }
    claims
}

/// Renews all of them at the same time.
pub(crate) async fn renewed(claims: &mut Claims) -> Vec<Result<Renewal>> {
    let mut renewing = JoinSet::new();
    for (number, mut claim) in claims.drain(..).enumerate() {
        renewing.spawn(async move { (number, claim.renew().await, claim) });
    }
    let mut renewed = renewing.join_all().await;
    renewed.sort_by_key(|(number, ..)| *number);
    let (answers, all) = renewed.into_iter().map(|(_, answer, claim)| (answer, claim)).unzip();
    *claims = all;
    answers
}

fn is_alive(answer: &Result<Renewal>) -> bool {
    matches!(answer, Ok(Renewal::Alive { .. }))
}

/// For how many milliseconds the node keeps the key.
async fn left(masters: &Masters, node: usize, name: &str) -> i64 {
    match masters.command(node, &["PTTL", name]).await {
        Value::Int(left) => left,
        other => panic!("{other:?}"),
    }
}

/// Three of eight locks are another client's by now: those three are lost and stay as they are, and the
/// other five live on.
pub(crate) async fn each_hold_of_a_batch_hears_its_own_answer() -> Seen {
    const THEIRS: usize = 3;
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut claims = holds(&backend, 8).await;
    for n in 0..THEIRS {
        masters.each(0..3, &["SET", &format!("lock{n}"), "foreign", "PX", "5000"]).await;
    }
    let mut plain = masters.plain(0).await;
    for _ in 0..3 {
        let before = requests(&mut plain).await;
        let answers = renewed(&mut claims).await;
        assert!(requests(&mut plain).await - before < 8, "they did not travel together");
        for (n, answer) in answers.iter().enumerate() {
            let is_right = match answer {
                Ok(Renewal::Lost) => n < THEIRS,
                answer => n >= THEIRS && is_alive(answer),
            };
            ensure!(is_right, "lock{n}, of which the first {THEIRS} are lost, heard {answer:?}");
        }
    }
    for node in 0..3 {
        for n in 0..THEIRS {
            let left = left(&masters, node, &format!("lock{n}")).await;
            ensure!(left <= 5000, "node {node} keeps the lock of another client for {left} ms");
        }
    }
    Ok(())
}

/// Whether a hold is lost is not known where the nodes do not answer.
pub(crate) async fn nodes_that_fail_lose_nothing() -> Seen {
    let (_masters, links) = start().await;
    let backend = client(&links).await;
    let mut claims = holds(&backend, 4).await;
    for proxy in &links.0[1..] {
        proxy.refuse_new(true);
        proxy.cut(Cut::Reset);
    }
    for answer in renewed(&mut claims).await {
        assert!(!is_alive(&answer), "{answer:?}");
        ensure!(answer.is_err(), "two nodes cannot be reached, and a claim heard {answer:?}");
    }
    for proxy in &links.0[1..] {
        proxy.refuse_new(false);
    }
    let end = Instant::now() + Duration::from_secs(5);
    while !renewed(&mut claims).await.iter().all(is_alive) {
        ensure!(Instant::now() < end, "the holds were not renewed afterwards");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Something else has taken the key of one lock on two nodes. That lock is lost, and the others are renewed as
/// ever.
pub(crate) async fn a_key_of_another_type_concerns_its_lock_alone() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut claims = holds(&backend, 8).await;
    // Not the first one, which may travel alone.
    masters.each(0..2, &["DEL", "lock7"]).await;
    masters.each(0..2, &["LPUSH", "lock7", "x"]).await;
    for _ in 0..3 {
        for (n, answer) in renewed(&mut claims).await.iter().enumerate() {
            let is_right =
                if n == 7 { matches!(answer, Ok(Renewal::Lost)) } else { is_alive(answer) };
            ensure!(is_right, "lock{n} heard {answer:?}");
        }
    }
    Ok(())
}

/// At no node either.
pub(crate) async fn a_late_request_ends_no_hold_sooner() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    scenes::a_late_request_ends_no_hold_sooner(&backend, &masters.0).await
}

/// A renewal is believed in for no longer than the nodes keep the lock, however late the answers come.
pub(crate) async fn a_renewal_is_believed_from_its_own_request() -> Seen {
    let (masters, links) = start().await;
    let backend = client(&links).await;
    let mut holder = holds(&backend, 1).await.remove(0);
    for proxy in &links.0 {
        proxy.delay(Duration::from_millis(300), Duration::ZERO);
    }
    let called = Instant::now();
    let answer = holder.renew().await;
    let Ok(Renewal::Alive { valid_for: Some(valid_for) }) = answer else { panic!("{answer:?}") };
    for node in 0..3 {
        let left = left(&masters, node, "lock0").await;
        let kept = called.elapsed() + Duration::from_millis(u64::try_from(left).unwrap());
        ensure!(valid_for <= kept, "believed in for {valid_for:?}, and kept for {kept:?}");
    }
    Ok(())
}
