//! Cases that need a second process: one that is killed, stopped, or simply separate.

use std::time::Duration;

use crate::cases::tools::{free_within, soon, still_held, take, take_for};
use crate::context::Cx;
use crate::context::child::{Order, Process, Reply};
use crate::context::history::{History, HoldRecord};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Explain, ensure, ensure_exactly, fail};

cases! {
    s01_processes_exclude_each_other [Processes]
        "a lock that another process holds is busy here, and vice versa"
        guards [TryAcquire/Free/OtherHolder, Release/Secure/Plain];
    s01_a_counter_of_many_processes_loses_no_increment [Processes]
        "increments of a number in a file by many processes under the lock are never lost, and their fences rise"
        guards [Acquire/Free/OtherHolder, Release/Secure/QueueBehind];
    l01_the_lock_of_a_killed_process_is_free_after_its_ttl [Processes]
        "after kill -9 of the holder a waiter gets the lock within the ttl, and not before it"
        guards [Acquire/Waiting/Expiry];
    l01_a_process_killed_while_it_waits_leaves_nothing [Processes]
        "a process that is killed while it waits never gets the lock"
        guards [Acquire/Waiting/Expiry];
    l05_a_killed_waiter_does_not_block_the_others [Processes]
        "a waiting process that is killed delays the other waiters by at most one ttl"
        guards [Acquire/Waiting/Expiry, Acquire/Waiting/QueueBehind];
    s05_a_stopped_process_finds_the_loss_first [Processes]
        "a process that was stopped for longer than the lease first reports Lost"
        guards [Token/Secure/Suspended, Signal/Secure/Suspended, Release/Lost/OtherHolder,
            Release/Lost/Suspended];
    s05_a_process_stopped_for_a_moment_keeps_its_lock [Processes]
        "a process that was stopped for less than its lease still holds the lock"
        guards [Token/Secure/Suspended];
    c01_a_lease_token_goes_to_another_process [Processes, Detach]
        "another process can attach to a lock that was detached here, and release it"
        guards [Attach/Detached/Plain, Detach/Secure/Plain];
}

const NAME: &str = "lock";

fn acquire(ttl: Duration, limit: Duration) -> Order {
    Order::Acquire { name: NAME.into(), ttl, limit }
}

fn named(order: fn(String) -> Order) -> Order {
    order(NAME.into())
}

fn token() -> Order {
    named(|name| Order::Token { name })
}

fn release() -> Order {
    named(|name| Order::Release { name })
}

async fn s01_processes_exclude_each_other(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let mut process = Process::start(&cx)?;
    let theirs = process.hold(&acquire(cx.long_ttl(), cx.ttl())).await?;
    still_held(&cx, &other, NAME, "while another process held it").await?;
    let answer = process.ask(&release()).await?;
    ensure!(answer == Reply::Done, "the other process's release was answered {answer:?}");
    let guard = take_for(&cx, &locks, NAME, cx.long_ttl()).await?;
    let ours = guard.token()?.get();
    ensure_exactly!(
        ours > theirs,
        "the fence {ours} does not rise over that of the other process, {theirs}"
    );
    let order = Order::Try { name: NAME.into(), ttl: cx.ttl() };
    let answer = process.ask(&order).await?;
    if answer != Reply::Busy {
        let seen = format!("the lock is held here, and the other process got {answer:?}");
        return cx.not_alone(NAME, 1, seen);
    }
    guard.release().await?;
    let next = process.hold(&order).await?;
    ensure_exactly!(next > ours, "the fence {next} of the other process does not rise over {ours}");
    let answer = process.ask(&Order::Exit).await?;
    ensure!(answer == Reply::Done, "the other process ended with {answer:?}");
    ensure!(cx.is_free(&other, NAME).await?, "a process that ended cleanly still has the lock");
    Ok(())
}

async fn s01_a_counter_of_many_processes_loses_no_increment(cx: Cx) -> Check {
    const PROCESSES: u32 = 4;
    const TIMES: u32 = 20;
    let folder = tempfile::tempdir().or_hindered("making a folder")?;
    let file = folder.path().join("counter");
    std::fs::write(&file, "0").or_hindered("writing the counter")?;
    let ttl = cx.round(cx.ttl() * 5);
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let mut process = Process::start(&cx)?;
        let order = Order::Count { name: NAME.into(), ttl, file: file.clone(), times: TIMES };
        process.tell(&order).await?;
        processes.push(process);
    }
    let history = History::default();
    for (client, process) in (0..).zip(&mut processes) {
        match process.answer().await? {
            Reply::Counted(holds) => {
                for hold in holds {
                    let mut record = HoldRecord::new(
                        client,
                        hold.invoked,
                        hold.granted,
                        hold.fence,
                        hold.valid_until,
                    );
                    record.release_invoked = Some(hold.release_invoked);
                    record.released = Some(hold.released);
                    history.add(record);
                }
            }
            other => fail!("a process that counts ended with {other:?}"),
        }
    }
    let checked = history.check();
    ensure_exactly!(checked.is_ok(), "{checked:?}");
    let counted = std::fs::read_to_string(&file).or_hindered("reading the counter")?;
    let expected = (PROCESSES * TIMES).to_string();
    ensure!(counted == expected, "{expected} increments of many processes made {counted}");
    ensure!(history.len().to_string() == expected, "{} holds were recorded", history.len());
    Ok(())
}

async fn l01_the_lock_of_a_killed_process_is_free_after_its_ttl(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let mut process = Process::start(&cx)?;
    let ttl = cx.round(cx.ttl() * 2);
    let before = cx.now();
    let theirs = process.hold(&acquire(ttl, cx.ttl())).await?;
    process.kill().await?;
    let killed = cx.now();
    let limit = ttl + cx.lapse();
    let waiter = locks.named(NAME)?;
    let guard =
        soon(&cx, limit, "a waiter gets the lock of a killed process", waiter.acquire()).await??;
    let (since_grant, since_kill) = (cx.now().since(before), cx.now().since(killed));
    ensure_exactly!(
        since_grant >= ttl,
        "{since_grant:?} after a grant for {ttl:?} another client got the lock"
    );
    ensure!(since_kill <= limit, "{since_kill:?} after the kill the lock was free");
    ensure_exactly!(
        guard.token()?.get() > theirs,
        "the fence does not rise over that of the killed process"
    );
    guard.release().await?;
    Ok(())
}

async fn l01_a_process_killed_while_it_waits_leaves_nothing(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let guard = take_for(&cx, &locks, NAME, cx.long_ttl()).await?;
    let mut process = Process::start(&cx)?;
    process.ask(&Order::Wait { name: NAME.into(), ttl: cx.ttl() }).await?;
    cx.sleep(cx.ttl() / 2).await;
    process.kill().await?;
    guard.release().await?;
    let limit = cx.over();
    free_within(&cx, &other, NAME, limit, "after a process that waited was killed").await
}

async fn l05_a_killed_waiter_does_not_block_the_others(cx: Cx) -> Check {
    let (locks, others) = (cx.locks().await?, cx.locks().await?);
    let guard = take_for(&cx, &locks, NAME, cx.long_ttl()).await?;
    let (mut dies, mut lives) = (Process::start(&cx)?, Process::start(&cx)?);
    for process in [&mut dies, &mut lives] {
        process.ask(&Order::Wait { name: NAME.into(), ttl: cx.ttl() }).await?;
    }
    let lock = others.named(NAME)?;
    let waiting = tokio::spawn(async move { lock.acquire().await?.release().await });
    cx.sleep(cx.ttl() / 2).await;
    dies.kill().await?;
    guard.release().await?;
    let limit = cx.over();
    let result = named(|name| Order::Result { name });
    soon(&cx, limit, "the waiting process that lives gets the lock", lives.hold(&result)).await??;
    lives.ask(&release()).await?;
    soon(&cx, limit, "a waiter of this process gets the lock", waiting).await???;
    Ok(())
}

async fn s05_a_stopped_process_finds_the_loss_first(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let mut process = Process::start(&cx)?;
    let theirs = process.hold(&acquire(cx.ttl(), cx.ttl())).await?;
    // Stopped right after its answer: a process that is stopped inside a request can keep the whole
    // store busy, which is another matter.
    process.pause()?;
    let limit = cx.over();
    let waiter = locks.named(NAME)?;
    let guard =
        soon(&cx, limit, "a waiter gets the lock of a stopped process", waiter.acquire()).await??;
    ensure_exactly!(
        guard.token()?.get() > theirs,
        "the fence does not rise over that of the stopped process"
    );
    cx.sleep(cx.ttl()).await;
    process.tell(&token()).await?;
    process.resume()?;
    match process.answer().await? {
        Reply::Lost { reason } => {
            ensure!(
                reason == "Expired",
                "after it was stopped the process says that it lost by {reason}"
            );
        }
        other => fail!("the first thing that a process reports after it was stopped is {other:?}"),
    }
    match process.ask(&release()).await? {
        Reply::Lost { .. } => {}
        other => fail!("the release of a process that was stopped was answered {other:?}"),
    }
    cx.sleep(cx.ttl()).await;
    guard.check().await.demanded("the next holder, after the stopped process went on")?;
    guard.release().await?;
    Ok(())
}

async fn s05_a_process_stopped_for_a_moment_keeps_its_lock(cx: Cx) -> Check {
    let other = cx.backend().await?;
    let mut process = Process::start(&cx)?;
    let ttl = cx.round(cx.ttl() * 4);
    let fence = process.hold(&acquire(ttl, cx.ttl())).await?;
    process.pause()?;
    cx.sleep(ttl / 4).await;
    process.resume()?;
    let again = process.hold(&token()).await?;
    ensure!(
        again == fence,
        "a process that was stopped for a moment has the fence {again}, not {fence}"
    );
    cx.sleep(ttl).await;
    process.hold(&token()).await?;
    still_held(&cx, &other, NAME, "after its holder was stopped for a moment").await?;
    Ok(())
}

async fn c01_a_lease_token_goes_to_another_process(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.backend().await?);
    let guard = take(&cx, &locks, NAME).await?;
    let fence = guard.token()?.get();
    let token = guard.detach().await?.to_text();
    let mut process = Process::start(&cx)?;
    let attached = process.hold(&Order::Attach { name: NAME.into(), ttl: cx.ttl(), token }).await?;
    ensure!(
        attached == fence,
        "attaching in another process changed the fence {fence} to {attached}"
    );
    still_held(&cx, &other, NAME, "while another process is attached").await?;
    let detached = process.ask(&named(|name| Order::Detach { name })).await?;
    let Reply::Lease { token } = detached else {
        fail!("a detach over there was answered {detached:?}")
    };
    locks.named(NAME)?.attach(&token.parse()?).await?.release().await?;
    ensure!(cx.is_free(&other, NAME).await?, "a lock that came back was released, and is taken");
    Ok(())
}
