//! Controls: what a harness says that it does to the store and its links shows in the calls. If it does not,
//! other cases pass without having met their fault.

use std::time::Duration;

use lock_core::{Claim, Error, Renewal};

use crate::Fault;
use crate::cases::tools::{after_restart, answered, holds, within};
use crate::context::{Cx, Link, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop};
use crate::server::Server;

cases! {
    c02_a_fault_befalls_the_next_call [Faults]
        "a call whose request or answer is late takes as long, and one whose request or answer is lost fails, or makes another request";
    c06_a_link_that_is_cut_brings_no_answer [Faults]
        "a call on a link that is cut off or refused is not answered, and one after that is";
    c06_a_frozen_store_brings_no_answer [Alone]
        "a call of a store that stands still is not answered, and one after that is";
    c06_a_restart_is_noticed [Alone]
        "a restart of the store costs a call its answer, a hold or a connection, or makes another process";
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

async fn c02_a_fault_befalls_the_next_call(cx: Cx) -> Check {
    let link = cx.link().await?;
    let mut claim = holds(&cx, &link.backend, "lock").await?;
    // The first calls may prepare what the others use.
    let mut usual = u64::MAX;
    for _ in 0..3 {
        usual = usual.min(measured(&cx, &link, claim.renew()).await?.1);
    }
    let by = cx.ttl() / 4;
    for fault in [Fault::DelayNextReply(by), Fault::HoldNextRequest(by)] {
        link.inject(fault).await?;
        let (_, _, took) = measured(&cx, &link, claim.renew()).await?;
        if took + cx.tick() / 50 < by {
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

/// A claim that has the lock for longer than the case takes, and gives its calls up early.
async fn impatient(cx: &Cx, link: &Link) -> Check<Box<dyn Claim>> {
    let request = cx.request_for("lock", cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = link.backend.claim(request)?;
    granted(&mut *claim).await?;
    Ok(claim)
}

async fn c06_a_link_that_is_cut_brings_no_answer(cx: Cx) -> Check {
    for fault in [Fault::Partition, Fault::Refuse] {
        let link = cx.link().await?;
        let mut claim = impatient(&cx, &link).await?;
        link.inject(fault).await?;
        if let Ok(answer) = claim.check().await {
            return Err(Stop::hindered(format_args!(
                "after {fault:?} a check is answered {answer:?}"
            )));
        }
        link.inject(Fault::Heal).await?;
        answered(&cx, cx.ttl() * 4, async || claim.release().await).await?;
    }
    Ok(())
}

async fn c06_a_frozen_store_brings_no_answer(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let request = cx.request_for("lock", cx.long_ttl())?.with_call_timeout(cx.ttl() / 4);
    let mut claim = backend.claim(request)?;
    granted(&mut *claim).await?;
    cx.store().freeze().await?;
    let answer = claim.check().await;
    cx.store().thaw().await?;
    if let Ok(answer) = answer {
        return Err(Stop::hindered(format_args!(
            "the store was frozen, and a check is answered {answer:?}"
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
    let connections = || client.faults.as_ref().and_then(|faults| faults.connections());
    let mut claim = holds(&cx, &client.backend, "lock").await?;
    let mut asks = holds(&cx, &client.backend, "other").await?;
    let (old_process, old_connections) = (process(), connections());
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
