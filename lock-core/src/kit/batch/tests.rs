use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use super::*;

type Numbers = Batches<u32, u32>;

/// Records the size of each batch and answers with the number itself.
fn echo(
    sizes: &Arc<Mutex<Vec<usize>>>,
) -> impl Fn(Vec<Entry<u32, u32>>) -> std::future::Ready<()> + Send + 'static {
    let sizes = Arc::clone(sizes);
    move |batch| {
        sizes.lock().unwrap().push(batch.len());
        for entry in batch {
            let number = entry.request;
            entry.answer(number);
        }
        std::future::ready(())
    }
}

/// Asks for all of `numbers` at the same time, and returns the sizes of the batches.
async fn sizes(batches: &Numbers, numbers: impl Iterator<Item = u32>) -> Vec<usize> {
    let sizes = Arc::<Mutex<Vec<usize>>>::default();
    let mut tasks = tokio::task::JoinSet::new();
    for number in numbers {
        let (batches, send) = (batches.clone(), echo(&sizes));
        tasks.spawn(async move { assert_eq!(batches.ask(number, send).await.unwrap(), number) });
    }
    tasks.join_all().await;
    sizes.lock().unwrap().clone()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_falls_together_travels_as_one_up_to_the_limits() {
    assert_eq!(sizes(&Numbers::of_at_most(500), 0..1200).await, [500, 500, 200]);
    // Ten times 7 are the weight of one batch.
    let heavy = Numbers::weighing(500, 75, |_| 7);
    assert_eq!(sizes(&heavy, 0..23).await, [10, 10, 3]);
    let few = Numbers::weighing(4, 75, |_| 7);
    assert_eq!(sizes(&few, 0..9).await, [4, 4, 1]);
    // A request too heavy for any batch travels alone.
    let giants = Numbers::weighing(500, 75, |&number| if number == 1 { 1000 } else { 7 });
    assert_eq!(sizes(&giants, 0..4).await, [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_first_does_not_wait_and_the_next_do_for_a_moment() {
    let batches = Numbers::of_at_most(500);
    let sizes = Arc::default();
    let start = Instant::now();
    batches.ask(1, echo(&sizes)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let both = tokio::join!(batches.ask(2, echo(&sizes)), batches.ask(3, echo(&sizes)));
    assert_eq!((both.0.unwrap(), both.1.unwrap(), start.elapsed()), (2, 3, WINDOW));
    // After a quiet period there is nothing to wait for.
    tokio::time::sleep(WINDOW * 2).await;
    assert!(batches.lines.is_empty(), "the task has ended");
    let start = Instant::now();
    batches.ask(4, echo(&sizes)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(*sizes.lock().unwrap(), [1, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_in_time_is_not_made() {
    let batches = Numbers::of_at_most(500);
    let sizes = Arc::default();
    batches.ask(1, echo(&sizes)).await.unwrap();
    let given_up = tokio::time::timeout(WINDOW / 2, batches.ask(2, echo(&sizes))).await;
    assert!(given_up.is_err());
    batches.ask(3, echo(&sizes)).await.unwrap();
    assert_eq!(*sizes.lock().unwrap(), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn each_batch_and_each_entry_has_a_fate_of_its_own() {
    let batches = Numbers::of_at_most(2);
    // 0 and 1 panic, 2 has no answer, 3 is answered, and 4 before its batch has ended.
    let send = |batch: Vec<Entry<u32, u32>>| async move {
        for entry in batch {
            let number = entry.request;
            assert!(number != 0, "a defect of the store");
            if number > 2 {
                entry.answer(number);
            }
            if number == 4 {
                std::future::pending::<()>().await;
            }
        }
    };
    let answers = tokio::join!(
        batches.ask(0, send),
        batches.ask(1, send),
        batches.ask(2, send),
        batches.ask(3, send),
        batches.ask(4, send)
    );
    for failed in [answers.0, answers.1, answers.2] {
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), crate::Effect::Unknown);
    }
    assert_eq!((answers.3.unwrap(), answers.4.unwrap()), (3, 4));
}

/// Asks on `runtime`, and leaves it in the window opened by the answer, with a request in it.
#[allow(clippy::async_yields_async, reason = "the remaining future is not awaited")]
fn leave_in_the_window(
    runtime: &Runtime,
    batches: &Numbers,
) -> tokio::task::JoinHandle<Result<u32>> {
    let sizes = Arc::default();
    runtime.block_on(async {
        batches.ask(1, echo(&sizes)).await.unwrap();
        let (batches, send) = (batches.clone(), echo(&sizes));
        let left = tokio::spawn(async move { batches.ask(2, send).await });
        tokio::task::yield_now().await;
        left
    })
}

fn answered_elsewhere(batches: &Numbers) {
    let elsewhere = runtime();
    elsewhere.block_on(async {
        for number in 0..3 {
            let answer = batches.ask(number, echo(&Arc::default()));
            let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
            assert_eq!(answer.expect("it waits for another runtime").unwrap(), number);
        }
    });
}

#[test]
fn the_end_of_a_runtime_in_a_window_stops_nobody_else() {
    let batches = Numbers::of_at_most(500);
    let ending = runtime();
    let left = leave_in_the_window(&ending, &batches);
    drop(ending);
    assert!(left.is_finished());
    assert!(batches.lines.is_empty(), "nothing is kept for a runtime that has ended");
    answered_elsewhere(&batches);
}

#[test]
fn a_caller_that_outlives_its_runtime_is_told() {
    let batches = Numbers::of_at_most(500);
    let (ending, sizes) = (runtime(), Arc::default());
    ending.block_on(batches.ask(1, echo(&sizes))).unwrap();
    let mut moved = Box::pin(batches.ask(2, echo(&sizes)));
    ending.block_on(async {
        assert!(futures_poll(moved.as_mut()).await.is_none(), "before it is sent");
    });
    drop(ending);
    let error = runtime().block_on(moved).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, crate::Effect::Unknown));
}

/// One poll.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn the_standstill_of_a_runtime_stops_nobody_else() {
    let batches = Numbers::of_at_most(500);
    let standing = runtime();
    let left = leave_in_the_window(&standing, &batches);
    answered_elsewhere(&batches);
    // It resumes where it stopped.
    assert_eq!(standing.block_on(left).unwrap().unwrap(), 2);
}

#[test]
fn a_runtime_that_is_ending_takes_no_more() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    /// Asks while its runtime drops it.
    struct Late(Numbers);
    impl Drop for Late {
        fn drop(&mut self) {
            let mut late = std::pin::pin!(self.0.ask(7, echo(&Arc::default())));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            // The first poll makes the task, the second one sees that it was dropped.
            let _ = late.as_mut().poll(&mut cx);
            ASKED.fetch_add(1, Relaxed);
        }
    }

    let batches = Numbers::of_at_most(500);
    let ending = runtime();
    let late = Late(batches.clone());
    ending.spawn(async move {
        std::future::pending::<()>().await;
        drop(late);
    });
    ending.block_on(tokio::task::yield_now());
    drop(ending);
    assert_eq!(ASKED.load(Relaxed), 1);
    assert!(batches.lines.is_empty(), "a line that is not served");
    answered_elsewhere(&batches);
}
