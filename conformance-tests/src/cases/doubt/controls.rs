//! Controls: what a harness says that it does to the store and its links shows in the calls. If it does not,
//! other cases pass without having met their fault.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{Claim, Error, Renewal};

use crate::Fault;
use crate::cases::tools::{after_restart, answered, holds, missed_its_turn, queues, within};
use crate::context::{Cx, Link, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Explain, Stop};
use crate::server::Server;

cases! {
    c02_a_fault_befalls_the_next_call [Faults]
        "a call whose request or answer is late takes as long, and one whose request or answer is lost fails, or makes another request";
    c02_a_fault_skips_as_many_requests_as_asked [Faults]
        "a fault that is to skip requests befalls the one after them";
    c02_an_answer_is_lost_after_the_store_has_acted [Faults]
        "a store does not act on a request that is lost or held up, and has acted where the answer is lost or late";
    c06_a_link_that_is_cut_brings_no_answer [Faults]
        "a call on a link that is cut off waits in vain, one on a link that refuses fails, and one after that is answered";
    c06_a_frozen_store_brings_no_answer [Alone]
        "a call of a store that stands still waits in vain, that of a new client, too, and one after that is answered";
    c06_a_restart_is_noticed [Alone]
        "a restart of the store costs a call its answer, a hold or a connection, or makes another process";
    c06_a_hold_is_broken_and_no_other []
        "a hold that the harness takes away is gone, and no other hold and no waiter with it";
}

/// How many requests the call makes, and how long it takes.
async fn measured<T>(
    cx: &Cx,
    link: &Link,
    call: impl Future<Output = Result<T, Error>>,
) -> Check<(Result<T, Error>, u64, Duration)> {
    let (before, start) = (link.requests().unwrap_or_default(), cx.now());
    let answer = call.await;
    let requests = link.requests().unwrap_or_default() - before;
    Ok((answer, requests, cx.now().since(start)))
}

/// The fewest requests of a renewal. The first calls may prepare what the others use.
async fn usual_requests(cx: &Cx, link: &Link, claim: &mut dyn Claim) -> Check<u64> {
    let mut usual = u64::MAX;
    for _ in 0..3 {
        usual = usual.min(measured(cx, link, claim.renew()).await?.1);
    }
    Ok(usual)
}

async fn c02_a_fault_befalls_the_next_call(cx: Cx) -> Check {
    let link = cx.link().await?;
    let before = link.requests().unwrap_or_default();
    let mut claim = holds(&cx, &link.backend, "lock").await?;
    if link.requests().is_ok_and(|now| now == before) {
        return Err(Stop::hindered("a lock was granted without a request that was counted"));
    }
    let usual = usual_requests(&cx, &link, &mut *claim).await?;
    let (short, long) = (cx.ttl() / 4, cx.over());
    for (fault, by) in [
        (Fault::DelayNextReply(short), short),
        (Fault::HoldNextRequest(short), short),
        (Fault::DelayNextReply(long), long),
    ] {
        link.inject(fault).await?;
        let (answer, requests, took) = measured(&cx, &link, claim.renew()).await?;
        // Before the long time is over, a client may have given up or asked again.
        let waits = by == short || (answer.is_ok() && requests <= usual && link.requests().is_ok());
        if waits && took + cx.tick() / 50 < by {
            return Err(Stop::missed(fault));
        }
        answered(&cx, cx.ttl() * 2, async || claim.renew().await).await?;
    }
    for fault in [Fault::LoseNextRequest, Fault::LoseNextReply] {
        link.inject(fault).await?;
        let (answer, requests, _) = measured(&cx, &link, claim.renew()).await?;
        if answer.is_ok() && requests <= usual && link.requests().is_ok() {
            return Err(Stop::missed(fault));
        }
        answered(&cx, cx.ttl() * 2, async || claim.renew().await).await?;
    }
    Ok(())
}

/// A client may look after the store besides, and a fault befall that.
const TIMES: usize = 3;

async fn c02_a_fault_skips_as_many_requests_as_asked(cx: Cx) -> Check {
    let link = cx.warm_link("warm-up").await?;
    let mut claim = holds(&cx, &link.backend, "lock").await?;
    link.requests()?;
    let usual = usual_requests(&cx, &link, &mut *claim).await?;
    let mut is_right = false;
    for _ in 0..TIMES {
        let calls = calls_until_struck(&cx, &link, (&mut *claim, usual)).await?;
        // The first renewal makes the requests to skip.
        is_right |= calls.is_some_and(|calls| calls > 1);
    }
    if !is_right {
        return Err(Stop::hindered(format_args!(
            "a fault was to skip the {usual} requests of a renewal, and never befell the next one"
        )));
    }
    Ok(())
}

/// How many renewals are made until a fault that skips so many requests has come, if it has come in time.
async fn calls_until_struck(
    cx: &Cx,
    link: &Link,
    (claim, skip): (&mut dyn Claim, u64),
) -> Check<Option<u64>> {
    let not_counted =
        || Stop::NotApplicable("this harness does not count what faults befall".into());
    let before = link.struck().ok_or_else(not_counted)?;
    let skipped = u32::try_from(skip).unwrap_or(u32::MAX);
    link.inject_after(skipped, Fault::DelayNextReply(cx.ttl() / 8)).await?;
    // A client of several servers may make one of these requests to each.
    for calls in 1..=skip + 1 {
        answered(cx, cx.ttl() * 2, async || claim.renew().await).await?;
        if link.struck() != Some(before) {
            return Ok(Some(calls));
        }
    }
    Ok(None)
}

/// In how many requests of a try a fault is looked for.
const MOST_REQUESTS: u32 = 8;

async fn c02_an_answer_is_lost_after_the_store_has_acted(cx: Cx) -> Check {
    let by = cx.ttl() / 2;
    for fault in [Fault::LoseNextRequest, Fault::HoldNextRequest(by)] {
        let begun = cx.now();
        let has_acted = acted_under(&cx, (0, 0), fault).await?;
        let is_early = fault == Fault::LoseNextRequest || cx.now().since(begun) < by;
        if has_acted == Some(true) && is_early {
            return Err(Stop::hindered(format_args!(
                "{fault:?} befell the only request of a try, and the store has acted on it"
            )));
        }
    }
    for fault in [Fault::LoseNextReply, Fault::DelayNextReply(by)] {
        // The request on which the store acts may be missed by chance: the client has made another one since.
        let mut round = 0;
        while acts_on_none(&cx, round, fault).await? {
            round += 1;
            if round == ROUNDS {
                return Err(Stop::hindered(format_args!(
                    "{fault:?} befell each request of a try, and the store has acted on none of them"
                )));
            }
        }
    }
    Ok(())
}

/// How often each request of a try is befallen.
const ROUNDS: u32 = 5;

/// Whether the fault has befallen requests of a try, and the store has acted on none of them.
async fn acts_on_none(cx: &Cx, round: u32, fault: Fault) -> Check<bool> {
    let mut has_befallen = false;
    for skip in 0..MOST_REQUESTS {
        match acted_under(cx, (round, skip), fault).await? {
            Some(true) => return Ok(false),
            Some(false) => has_befallen = true,
            None => {}
        }
    }
    Ok(has_befallen)
}

/// Whether a try that a fault ends, after it has skipped some requests, has taken the lock; `None` if none has
/// come, or if the client has made another request since, which may have given the lock back or taken it.
async fn acted_under(cx: &Cx, (round, skip): (u32, u32), fault: Fault) -> Check<Option<bool>> {
    // What another round has left is not taken for the work of this one.
    let (link, name) = (cx.warm_link("warm-up").await?, format!("{round} {fault:?} after {skip}"));
    let request = cx.request_for(&name, cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = link.backend.claim(request)?;
    let made = link.requests()?;
    link.inject_after(skip, fault).await?;
    let has_failed = claim.try_acquire().await.is_err();
    let is_free = cx.is_free(&cx.backend().await?, &name).await?;
    let is_the_last = link.requests()? == made + u64::from(skip) + 1;
    Ok((has_failed && is_the_last).then_some(!is_free))
}

/// A claim that has the lock for longer than the case takes, and gives its calls up early.
async fn impatient(cx: &Cx, link: &Link) -> Check<Box<dyn Claim>> {
    let request = cx.request_for("lock", cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = link.backend.claim(request)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

/// Nobody can know so soon that there will be no answer.
fn at_once(cx: &Cx) -> Duration {
    cx.ttl() / 32
}

/// A call on a link, or of a store, that is silent.
async fn waits_in_vain<T: Debug>(
    cx: &Cx,
    what: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Check {
    let start = cx.now();
    match call.await {
        Ok(answer) => {
            Err(Stop::hindered(format_args!("{what}, and a call is answered {answer:?}")))
        }
        Err(error) if cx.now().since(start) < at_once(cx) => {
            Err(Stop::hindered(format_args!("{what}, and a call fails at once: {error}")))
        }
        Err(_) => Ok(()),
    }
}

async fn c06_a_link_that_is_cut_brings_no_answer(cx: Cx) -> Check {
    for fault in [Fault::Partition, Fault::Refuse] {
        let link = cx.link().await?;
        let mut claim = impatient(&cx, &link).await?;
        link.inject(fault).await?;
        if fault == Fault::Partition {
            waits_in_vain(&cx, "a link is cut off", claim.check()).await?;
        } else if let Ok(answer) = claim.check().await {
            return Err(Stop::hindered(format_args!(
                "a link refuses, and a check is answered {answer:?}"
            )));
        }
        link.inject(Fault::Heal).await?;
        answered(&cx, cx.ttl() * 4, async || claim.release().await).await?;
        // It stays healed.
        cx.sleep(cx.ttl()).await;
        let later = answered(&cx, cx.ttl() * 2, async || claim.release().await).await;
        later.or_hindered("a release on a link that was healed a while ago")?;
    }
    Ok(())
}

async fn c06_a_frozen_store_brings_no_answer(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let request = cx.request_for("lock", cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = backend.claim(request)?;
    granted(&mut *claim).await?;
    cx.store().freeze().await?;
    let checked = waits_in_vain(&cx, "the store is frozen", claim.check()).await;
    let newcomer = async {
        let mut claim = cx.claim(&cx.client().await?.backend, "other")?;
        Check::Ok(claim.try_acquire().await?)
    };
    let newcomer = within(&cx, cx.ttl() / 4, newcomer).await;
    cx.store().thaw().await?;
    checked?;
    if let Some(Ok(answer)) = newcomer {
        return Err(Stop::hindered(format_args!(
            "the store is frozen, and a try of a new client is answered {answer:?}"
        )));
    }
    answered(&cx, cx.ttl() * 4, async || claim.release().await).await?;
    Ok(())
}

/// Less than any server takes to start.
const RESTART: Duration = Duration::from_millis(5);

async fn c06_a_restart_is_noticed(cx: Cx) -> Check {
    let client = cx.client().await?;
    let process = || cx.store().server().and_then(Server::id);
    let kills = || cx.store().server().map(Server::kills);
    let connections = || client.faults.as_ref().and_then(|faults| faults.connections());
    let mut claim = holds(&cx, &client.backend, "lock").await?;
    let mut asks = holds(&cx, &client.backend, "other").await?;
    let (old_process, old_kills, old_connections) = (process(), kills(), connections());
    for _ in 0..3 {
        asks.check().await?;
    }
    // A client that connects for each call would tell a restart by that.
    let stays_connected = old_connections.is_some() && connections() == old_connections;
    let (mut failed, start) = (false, cx.now());
    {
        let calls = async {
            loop {
                failed |= asks.check().await.is_err();
                cx.sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            biased;
            restarted = cx.store().restart() => restarted?,
            () = calls => {}
        }
    }
    let took = cx.now().since(start);
    let checked = after_restart(&cx, async || claim.check().await).await?;
    if old_kills.is_some() && kills() == old_kills {
        return Err(Stop::hindered("the store was restarted, and its server was not killed"));
    }
    if failed || checked == Renewal::Lost || process() != old_process {
        return Ok(());
    }
    let reconnects = async {
        while connections() == old_connections {
            let _ = asks.check().await;
            cx.sleep(Duration::from_millis(10)).await;
        }
    };
    if stays_connected && within(&cx, cx.ttl(), reconnects).await.is_some() {
        return Ok(());
    }
    if took < RESTART {
        return Err(Stop::hindered("the store was restarted, and no call has noticed it"));
    }
    Err(Stop::NotApplicable("while a part of this store restarts the others answer".to_owned()))
}

async fn c06_a_hold_is_broken_and_no_other(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let mut broken = holds(&cx, &a, "lock").await?;
    let (mut others, mut waiter) = (Vec::new(), queues(&cx, &b, "lock").await?);
    for name in ["loc", "lock ", "lock a", "other"] {
        others.push((name, holds(&cx, &a, name).await?));
    }
    cx.store().break_hold(&cx.key("lock")?).await?;
    let turn = cx.now();
    // Whoever has a place has the lock by now.
    if cx.capabilities().fair && waiter.check().await? == Renewal::Lost {
        missed_its_turn(&cx, turn)?;
        return Err(Stop::hindered(
            "the hold of \"lock\" was taken away, and a waiter has lost its place",
        ));
    }
    waiter.release().await?;
    match broken.check().await? {
        Renewal::Lost => {}
        answer => {
            return Err(Stop::hindered(format_args!(
                "a hold was taken away, and a check of it is answered {answer:?}"
            )));
        }
    }
    for (name, other) in &mut others {
        if other.check().await? == Renewal::Lost {
            return Err(Stop::hindered(format_args!(
                "the hold of \"lock\" was taken away, and {name:?} is lost with it"
            )));
        }
        other.release().await?;
    }
    Ok(())
}
