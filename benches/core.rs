//! The library's own cost: acquire and release on the memory store, where the store costs almost
//! nothing. The floor is measured in the same run: one spawned task that answers over a channel,
//! which is the least that a keeper can cost.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use distlock::Locks;
use distlock::testing::MemoryBackend;
use tokio::runtime::{Builder, Runtime};

/// Measures `body` inside of one spawned task, as an application would run it.
fn spawned<F, Fut>(criterion: &mut Criterion, runtime: &Runtime, name: &str, body: F)
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
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

fn core(criterion: &mut Criterion) {
    let runtime =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    spawned(criterion, &runtime, "floor: spawn a task and await its answer", || async {
        let (send, receive) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { send.send(1).expect("somebody waits") });
        receive.await.expect("an answer");
    });
    let locks = runtime.block_on(async { Locks::new(MemoryBackend::queued()) });
    let lock = locks.named("order:42").expect("a good name");
    spawned(criterion, &runtime, "acquire + release", move || {
        let lock = lock.clone();
        async move {
            let guard = lock.acquire().await.expect("free");
            guard.release().await.expect("held");
        }
    });
    let guard =
        runtime.block_on(locks.named("held").expect("a good name").acquire()).expect("free");
    criterion.bench_function("state() of a held lock", |bencher| bencher.iter(|| guard.state()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = core
}
criterion_main!(benches);
