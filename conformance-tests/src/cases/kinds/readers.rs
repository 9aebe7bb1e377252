//! Readers and writers: exclusive locks, and looks at them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::kinds::RwLock;
use lock_core::{FenceCheck, FencingToken};

use crate::cases::tools::{soon, turns};
use crate::context::Cx;
use crate::runner::case::cases;
use crate::runner::check::{Check, ensure, ensure_exactly};

cases! {
    s01_nobody_reads_beside_a_writer [Look]
        "tasks of several clients read side by side and write alone, and a resource with two marks admits each of their tokens";
    l03_readers_keep_no_writer_out [Look]
        "a writer gets its turn while readers of several clients come and go without a pause";
    l04_a_reader_that_is_gone_keeps_a_writer_out_for_a_lease [Look, Lease]
        "a writer gets the lock when the lease of a reader that is gone has ended, and readers that of a writer";
}

/// What is read and written.
#[derive(Debug, Default)]
struct Resource(Mutex<(u32, u32, FenceCheck)>);

impl Resource {
    fn enters(&self, writes: bool, token: FencingToken) -> Check {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (readers, writers, tokens) = &mut *inside;
        let admitted = if writes {
            *writers += 1;
            tokens.admit(token)
        } else {
            *readers += 1;
            tokens.admit_reader(token)
        };
        ensure_exactly!(
            *writers == 0 || *writers + *readers == 1,
            "{writers} write while {readers} read"
        );
        let refused = admitted.err().map(|error| error.to_string());
        ensure_exactly!(refused.is_none(), "the token of a holder was refused: {refused:?}");
        Ok(())
    }

    fn leaves(&self, writes: bool) {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = &mut *inside;
        *(if writes { &mut inside.1 } else { &mut inside.0 }) -= 1;
    }
}

async fn rw_lock(cx: &Cx) -> Check<RwLock> {
    Ok(cx.locks().await?.rw_lock("resource")?.ttl(cx.long_ttl()))
}

/// Reads or writes once.
async fn visits(cx: &Cx, lock: &RwLock, resource: &Resource, writes: bool) -> Check {
    if writes {
        let write = lock.write().await?;
        resource.enters(true, write.token()?)?;
        turns(cx, 2).await;
        resource.leaves(true);
        write.release().await?;
    } else {
        let read = lock.read().await?;
        resource.enters(false, read.token()?)?;
        turns(cx, 2).await;
        resource.leaves(false);
        read.release().await?;
    }
    Ok(())
}

async fn s01_nobody_reads_beside_a_writer(cx: Cx) -> Check {
    let resource = Arc::new(Resource::default());
    let mut tasks = Vec::new();
    for client in 0..3 {
        let lock = rw_lock(&cx).await?;
        for task in 0..3 {
            let (lock, resource, cx) = (lock.clone(), Arc::clone(&resource), cx.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..6 {
                    visits(&cx, &lock, &resource, (client + task + round) % 3 == 0).await?;
                }
                Check::Ok(())
            }));
        }
    }
    for task in tasks {
        soon(&cx, Duration::from_secs(60) + cx.slack(), "all tasks get a turn", task).await???;
    }
    Ok(())
}

async fn l03_readers_keep_no_writer_out(cx: Cx) -> Check {
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let lock = rw_lock(&cx).await?;
        for task in 0..2 {
            let (lock, cx) = (lock.clone(), cx.clone());
            readers.spawn(async move {
                turns(&cx, 4 * task).await;
                loop {
                    let read = lock.read().await?;
                    turns(&cx, 8).await;
                    if let Err(error) = read.release().await {
                        return Check::<()>::Err(error.into());
                    }
                }
            });
        }
    }
    let writer = rw_lock(&cx).await?;
    for _ in 0..3 {
        turns(&cx, 8).await;
        let limit = Duration::from_secs(30) + cx.slack();
        soon(&cx, limit, "a writer gets its turn", writer.write()).await??.release().await?;
        ensure!(readers.try_join_next().is_none(), "a reader was refused");
    }
    Ok(())
}

async fn l04_a_reader_that_is_gone_keeps_a_writer_out_for_a_lease(cx: Cx) -> Check {
    let (ours, theirs) = (rw_lock(&cx).await?, rw_lock(&cx).await?);
    let leaving = ours.clone().ttl(cx.ttl()).no_renew();
    let limit = Duration::from_secs(20) + cx.over() + cx.slack();
    let gone = leaving.read().await?;
    let write = soon(&cx, limit, "a writer gets the lock", theirs.write()).await??;
    ensure_exactly!(gone.token().is_err(), "another writes while a reader believes in its lock");
    write.release().await?;
    let gone = leaving.write().await?;
    let read = soon(&cx, limit, "a reader gets the lock", theirs.read()).await??;
    ensure_exactly!(gone.token().is_err(), "another reads while a writer believes in its lock");
    read.release().await?;
    Ok(())
}
