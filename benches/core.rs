//! The library's own cost: acquire and release on the memory store, where the store costs almost
//! nothing. The floor is measured in the same run: one spawned task that answers over a channel,
//! which is the least that a keeper of one's own can cost.

use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use distlock::Locks;
use distlock::memory::MemoryBackend;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs `iterations` of `body` inside of one spawned task, as an application would.
fn spawned<F, Fut>(criterion: &mut Criterion, name: &str, body: F)
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let runtime = runtime();
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let body = body.clone();
            runtime.block_on(async move {
                let task = tokio::spawn(async move {
                    let start = tokio::time::Instant::now();
                    for _ in 0..iterations {
                        body().await;
                    }
                    start.elapsed()
                });
                task.await.expect("the task ends")
            })
        });
    });
}

fn acquire_release(criterion: &mut Criterion) {
    spawned(criterion, "floor: spawn a task and await its answer", || async {
        let (send, receive) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { send.send(1).expect("somebody waits") });
        receive.await.expect("an answer");
    });
    let runtime = runtime();
    let locks = runtime.block_on(async { Locks::new(MemoryBackend::queued()) });
    let lock = locks.lock("order:42").expect("a good name");
    // The keepers must run where the caller does, so the lock is taken apart for this runtime only.
    runtime.block_on(async {
        let lock = lock.clone();
        tokio::spawn(
            async move { lock.acquire().await.expect("free").release().await.expect("held") },
        )
        .await
        .expect("the task ends")
    });
    criterion.bench_function("acquire + release", |bencher| {
        bencher.iter_custom(|iterations| {
            let lock = lock.clone();
            runtime.block_on(async move {
                let task = tokio::spawn(async move {
                    let start = tokio::time::Instant::now();
                    for _ in 0..iterations {
                        let guard = lock.acquire().await.expect("free");
                        guard.release().await.expect("held");
                    }
                    start.elapsed()
                });
                task.await.expect("the task ends")
            })
        });
    });
    criterion.bench_function("state() of a held lock", |bencher| {
        let guard =
            runtime.block_on(locks.lock("held").expect("a good name").acquire()).expect("free");
        bencher.iter_batched(|| (), |()| guard.state(), BatchSize::SmallInput);
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = acquire_release
}
criterion_main!(benches);
