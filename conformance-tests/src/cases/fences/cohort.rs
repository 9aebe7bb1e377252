//! Holds that the tasks of one process pass on: cohorts.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use lock_core::{Error, FencingToken, Lock, LockGuard, LostReason};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Fault;
use crate::cases::queue::fairness::arrived;
use crate::cases::tools::{
    STEPS, drop_after_steps, edited, free_soon, got, is_lost, soon, turns, waits,
};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded, Stop, ensure, ensure_exactly};

cases! {
    s01_holds_of_cohorts_never_overlap [Blocks]
        "increments of a counter under a lock that is passed on are never lost, and their tokens rise"
        guards [Release/Secure/QueueBehind, Acquire/Waiting/QueueBehind];
    s02_a_hold_is_passed_on_with_a_greater_token [Blocks]
        "tasks that pass a hold on get it in the order of their arrival, with rising tokens"
        guards [Acquire/Waiting/OtherReleases, DropGuard/Secure/QueueBehind];
    s02_a_passed_hold_attaches_with_its_token [Blocks, Detach]
        "a lease token of a hold that was passed on attaches with the fence of its guard, and with none outside of the block"
        guards [Detach/Secure/QueueBehind, Attach/Detached/Plain];
    s04_a_task_that_leaves_a_cohort_leaves_nothing [Blocks]
        "a task that is dropped at any moment around a pass does not keep the lock from the next"
        guards [Acquire/Waiting/Dropped];
    s05_a_lost_hold_is_not_passed_on [Blocks]
        "a hold that the store has said was taken away is not passed on"
        guards [Release/Lost/QueueBehind];
    s05_a_hold_that_has_ended_is_not_passed_on [Blocks]
        "a hold that has reached max_hold, or the end of its lease, is not passed on"
        guards [Release/Lost/QueueBehind];
    s05_a_hold_in_doubt_is_not_passed_on [Blocks, Faults]
        "a hold whose last renewal failed is released, and not passed on"
        guards [Release/AtRisk/QueueBehind];
    s05_only_equal_tasks_join_a_cohort [Blocks]
        "a task with another ttl, max_hold, label or cohort gets a hold of its own, in its turn"
        guards [Acquire/Waiting/QueueBehind];
    l03_a_cohort_ends_after_so_many_holders [Blocks, Fair]
        "whoever waits elsewhere gets the lock after one cohort, however many tasks wait here"
        guards [Acquire/Waiting/QueueBehind];
    l03_a_cohort_ends_with_its_time [Blocks, Fair]
        "whoever waits elsewhere gets the lock when the time of a cohort is over"
        guards [Acquire/Waiting/QueueBehind];
}

/// A lock of one client, which its tasks pass on.
async fn cohort(cx: &Cx, holders: u32) -> Check<Lock> {
    Ok(cx.locks().await?.named("lock")?.ttl(cx.long_ttl()).cohort(holders))
}

/// A task that waits for the lock, behind those that do so already.
async fn joins(cx: &Cx, lock: &Lock) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = lock.clone();
    let mut waiting = Box::pin(async move { lock.acquire().await });
    // It takes its place when it is polled for the first time. A task might be polled after the next one.
    let first = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
    let task = tokio::spawn(async move {
        match first {
            Poll::Ready(got) => got,
            Poll::Pending => waiting.await,
        }
    });
    turns(cx, 4).await;
    task
}

async fn gets(cx: &Cx, task: JoinHandle<Result<LockGuard, Error>>, what: &str) -> Check<LockGuard> {
    Ok(soon(cx, cx.lapse() + cx.long_ttl(), what, task).await???)
}

/// The first of these tasks that gets the lock, and how many are before it. It is no longer one of them.
async fn first_of(
    cx: &Cx,
    tasks: &mut Vec<JoinHandle<Result<LockGuard, Error>>>,
) -> Check<(usize, LockGuard)> {
    let first = poll_fn(|context| {
        let polled = tasks.iter_mut().map(|task| Pin::new(task).poll(context)).enumerate();
        let mut ready = polled.filter_map(|(at, polled)| match polled {
            Poll::Ready(got) => Some((at, got)),
            Poll::Pending => None,
        });
        ready.next().map_or(Poll::Pending, Poll::Ready)
    });
    let (at, got) = soon(cx, cx.lapse() + cx.long_ttl(), "a task gets the lock", first).await?;
    tasks.remove(at);
    Ok((at, got??))
}

async fn s01_holds_of_cohorts_never_overlap(cx: Cx) -> Check {
    let locks = [cohort(&cx, 4).await?, cohort(&cx, 4).await?];
    let counter = Arc::new(Mutex::new((0_u32, None)));
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (lock, counter, cx) = (locks[task % 2].clone(), Arc::clone(&counter), cx.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..8 {
                let guard = lock.acquire().await?;
                let token = guard.token()?;
                let (read, before) = *counter.lock().expect("the counter");
                turns(&cx, 2).await;
                ensure_exactly!(Some(token) > before, "{token} was given after {before:?}");
                *counter.lock().expect("the counter") = (read + 1, Some(token));
                if task % 3 == 0 { drop(guard) } else { guard.release().await.map(drop)? }
            }
            Check::Ok(())
        }));
    }
    for task in tasks {
        soon(&cx, Duration::from_secs(20) + cx.slack(), "all tasks get the lock", task).await???;
    }
    let (count, _) = *counter.lock().expect("the counter");
    ensure_exactly!(count == 64, "64 increments made {count}");
    Ok(())
}

async fn s02_a_hold_is_passed_on_with_a_greater_token(cx: Cx) -> Check {
    let lock = cohort(&cx, 8).await?;
    let mut holder = got(&lock).await?;
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(joins(&cx, &lock).await);
    }
    for turn in 0..12 {
        let before = holder.token()?;
        if turn % 2 == 0 {
            drop(holder)
        } else {
            holder.release().await.map(drop)?
        }
        let (skipped, next) = first_of(&cx, &mut tasks).await?;
        ensure!(skipped == 0, "task {} got the lock before task {turn}", turn + skipped);
        holder = next;
        let token = holder.token()?;
        ensure_exactly!(token > before, "{before} was passed on, and {token} got");
    }
    holder.release().await?;
    Ok(())
}

async fn s02_a_passed_hold_attaches_with_its_token(cx: Cx) -> Check {
    let (a, b) = (cohort(&cx, 8).await?, cohort(&cx, 8).await?);
    let holder = got(&a).await?;
    let next = joins(&cx, &a).await;
    holder.release().await?;
    let guard = gets(&cx, next, "the next task gets the lock").await?;
    let fence = guard.token()?;
    let token = guard.detach().await?;
    let with = |more: i64| {
        edited(&token, |fields| {
            fields["f"] = (fence.get().cast_signed() + more).into();
            if let Some(block) = fields.get_mut("s")
                && more < 0
            {
                // The same end, so that it looks like a longer block.
                block[0] = (block[0].as_i64().unwrap_or_default() + more).into();
                block[1] = (block[1].as_i64().unwrap_or_default() - more).into();
            }
        })
    };
    for more in [8, 1 << 32, -8] {
        let answer = match with(more) {
            Ok(token) => b.attach(&token).await.map(drop),
            Err(_) => continue,
        };
        let refused = answer.is_err_and(|error| !error.is_retryable());
        ensure!(refused, "a fence that was raised by {more} out of its block attaches");
    }
    let attached = b.attach(&token).await?;
    let again = attached.token()?;
    ensure_exactly!(again == fence, "{fence} was detached, and {again} is attached");
    let text = attached.detach().await?;
    let renewed = a.renew(&text).await?.fence;
    ensure_exactly!(renewed == fence, "{fence} was detached, and {renewed} is renewed");
    a.release(text).await?;
    got(&a).await?.release().await?;
    Ok(())
}

async fn s04_a_task_that_leaves_a_cohort_leaves_nothing(cx: Cx) -> Check {
    let (lock, probe) = (cohort(&cx, 8).await?, cx.backend().await?);
    for steps in 0..STEPS {
        let holder = got(&lock).await?;
        let (first, second) = (lock.clone(), lock.clone());
        let dropped = tokio::spawn({
            let cx = cx.clone();
            async move { drop_after_steps(&cx, steps + 4, first.acquire()).await }
        });
        turns(&cx, 4).await;
        let patient = tokio::spawn(async move { second.acquire().await });
        turns(&cx, 2).await;
        drop(holder);
        let what =
            format!("the task behind one that was dropped after {steps} turns gets the lock");
        drop(dropped.await?);
        gets(&cx, patient, &what).await?.release().await?;
        free_soon(&cx, &probe, "lock", &what).await?;
    }
    Ok(())
}

/// Whether the next task has got a hold from the store, and not what is left of the one with
/// `fences` tokens from `first` on.
async fn has_its_own(
    cx: &Cx,
    task: JoinHandle<Result<LockGuard, Error>>,
    (first, fences): (FencingToken, u32),
    after: &str,
) -> Check {
    let guard = gets(cx, task, &format!("the task behind {after} gets the lock")).await?;
    let token = guard.token();
    if matches!(&token, Err(error) if error.lost_reason() == Some(LostReason::MaxHold)) {
        return Err(Stop::late("the next hold has reached its max_hold, too"));
    }
    let token = token.demanded("the token of the next holder")?;
    let last = first.get() + u64::from(fences) - 1;
    ensure_exactly!(token.get() > last, "{after} was passed on: {token} is in its block");
    guard.release().await?;
    Ok(())
}

async fn s05_a_lost_hold_is_not_passed_on(cx: Cx) -> Check {
    let lock = cohort(&cx, 8).await?;
    let holder = got(&lock).await?;
    let block = (holder.token()?, 8);
    let next = joins(&cx, &lock).await;
    cx.store().break_hold(&cx.key("lock")?).await?;
    let lost = holder.check().await;
    ensure!(lost.is_err() && is_lost(&holder), "a hold that was taken away is checked: {lost:?}");
    drop(holder);
    has_its_own(&cx, next, block, "a hold that was taken away").await
}

async fn s05_a_hold_that_has_ended_is_not_passed_on(cx: Cx) -> Check {
    let lock = cohort(&cx, 8).await?.max_hold(Duration::from_millis(10));
    let holder = got(&lock).await?;
    let block = (holder.token()?, 8);
    let next = joins(&cx, &lock).await;
    let reason = holder.lost().await;
    ensure!(reason == LostReason::MaxHold, "the longest hold ended as {reason:?}");
    drop(holder);
    has_its_own(&cx, next, block, "a hold that has reached max_hold").await?;
    // Within the time of a cohort a lease ends only if it is very short.
    let shortest = Duration::from_millis(30);
    if !cx.is_virtual() || cx.capabilities().min_ttl > shortest {
        return Ok(());
    }
    let lock = cohort(&cx, 8).await?.ttl(shortest).no_renew();
    let holder = got(&lock).await?;
    let block = (holder.token()?, 8);
    let next = joins(&cx, &lock).await;
    cx.sleep(Duration::from_millis(29)).await;
    ensure!(is_lost(&holder), "a lease of 30 ms is not lost after 29");
    drop(holder);
    has_its_own(&cx, next, block, "a hold whose lease has ended").await
}

async fn s05_a_hold_in_doubt_is_not_passed_on(cx: Cx) -> Check {
    let link = cx.link().await?;
    let lock = cx.locks_on(&link.backend).named("lock")?.ttl(cx.long_ttl()).cohort(8);
    let holder = got(&lock).await?;
    let block = (holder.token()?, 8);
    let next = joins(&cx, &lock).await;
    link.inject(Fault::LoseNextRequest).await?;
    let renewed = holder.renew().await;
    if renewed.is_ok() {
        return Err(Stop::NotApplicable("this store repeats a renewal that was lost".into()));
    }
    drop(holder);
    has_its_own(&cx, next, block, "a hold whose renewal failed").await
}

async fn s05_only_equal_tasks_join_a_cohort(cx: Cx) -> Check {
    let lock = cohort(&cx, 8).await?;
    let others = [
        ("ttl", lock.clone().ttl(cx.round(cx.long_ttl() * 3 / 4))),
        ("max_hold", lock.clone().max_hold(cx.long_ttl())),
        ("label", lock.clone().label("another")),
        ("cohort", lock.clone().cohort(2)),
        ("cohort of one", lock.clone().cohort(1)),
    ];
    for (what, other) in others {
        let holder = got(&lock).await?;
        let block = (holder.token()?, 8);
        let next = joins(&cx, &other).await;
        holder.release().await?;
        has_its_own(&cx, next, block, &format!("a hold with another {what}")).await?;
    }
    Ok(())
}

/// A process with many tasks passes a lock on while a task elsewhere waits for it: how many of the
/// many are served before that.
async fn served_before_the_other(
    cx: &Cx,
    (tasks, holders): (usize, u32),
    hold: Duration,
) -> Check<usize> {
    let (lock, elsewhere) = (cohort(cx, holders).await?, cx.locks().await?);
    let holder = got(&lock).await?;
    let (served, mut order) = mpsc::unbounded_channel();
    for _ in 0..tasks {
        let (task, served, cx) = (joins(cx, &lock).await, served.clone(), cx.clone());
        tokio::spawn(async move {
            let guard = task.await??;
            let _ = served.send(true);
            cx.sleep(hold).await;
            guard.release().await?;
            Check::Ok(())
        });
    }
    let other = waits(cx, &elsewhere, "lock")?;
    arrived(cx, &elsewhere, 1).await?;
    tokio::spawn(async move {
        let guard = other.await??;
        let _ = served.send(false);
        guard.release().await?;
        Check::Ok(())
    });
    holder.release().await?;
    let mut before = 0;
    let limit = Duration::from_secs(20) + cx.slack();
    while let Some(true) = soon(cx, limit, "the task elsewhere gets the lock", order.recv()).await?
    {
        before += 1;
    }
    Ok(before)
}

async fn l03_a_cohort_ends_after_so_many_holders(cx: Cx) -> Check {
    let before = served_before_the_other(&cx, (20, 4), Duration::ZERO).await?;
    // If the other came only when the first of the tasks had gone to the store, it waits for two.
    ensure!(before < 8, "{before} tasks were served before the one that waits elsewhere");
    Ok(())
}

async fn l03_a_cohort_ends_with_its_time(cx: Cx) -> Check {
    let hold = Duration::from_millis(10);
    let before = served_before_the_other(&cx, (24, 1000), hold).await?;
    ensure!(before <= 14, "{before} holds of {hold:?} came before the one that waits elsewhere");
    Ok(())
}
