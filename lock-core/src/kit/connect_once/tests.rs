use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;
use tokio::runtime::Builder;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LIMIT: Duration = Duration::from_secs(1);

fn link() -> ConnectOnce<u32> {
    ConnectOnce::new("X", LIMIT, Backoff::new(MS(100), MS(400)))
}

fn refused() -> Result<u32> {
    Err(Error::new(ErrorKind::Unavailable, "refused"))
}

#[tokio::test(start_paused = true)]
async fn all_share_one_attempt_and_its_connection() {
    let (link, attempts) = (link(), Arc::new(AtomicU32::new(0)));
    let connect = || {
        let attempts = Arc::clone(&attempts);
        async move {
            tokio::time::sleep(MS(50)).await;
            Ok(attempts.fetch_add(1, Relaxed))
        }
    };
    let early = link.get(MS(10), connect);
    let others = (link.get(LIMIT, connect), link.get(LIMIT, connect));
    let (early, one, two) = tokio::join!(early, others.0, others.1);
    assert_eq!(early.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    assert_eq!(link.get(LIMIT, connect).await.unwrap(), 0);
    link.forget(|number| *number == 7);
    assert_eq!(link.current(), Some(0), "it was another one");
    link.forget(|number| *number == 0);
    assert_eq!(link.get(LIMIT, connect).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_goes_to_all_and_the_next_attempt_waits() {
    let link = link();
    let start = Instant::now();
    let connect = || async { refused() };
    let errors = tokio::join!(link.get(LIMIT, connect), link.get(LIMIT, connect));
    assert!(errors.0.is_err() && errors.1.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO, "the first attempt does not wait");
    link.get(LIMIT, connect).await.unwrap_err();
    assert!(start.elapsed() >= MS(100), "the second does");
    let short = link.get(MS(50), || async { Ok(1) }).await;
    assert!(short.is_err(), "the pause is over later");
    assert_eq!(link.get(LIMIT, connect).await.unwrap(), 1, "it has joined that attempt");
    link.forget(|_| true);
    let start = Instant::now();
    assert_eq!(link.get(LIMIT, || async { Ok(2) }).await.unwrap(), 2);
    assert_eq!(start.elapsed(), Duration::ZERO, "a success ends the pauses");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_has_a_limit() {
    let link = link();
    let start = Instant::now();
    let error = link.get(10 * LIMIT, std::future::pending).await.unwrap_err();
    assert!(error.to_string().contains("X cannot be reached"), "{error}");
    assert!(start.elapsed() < LIMIT + MS(10));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_shared_until_it_has_ended() {
    let link = link();
    let slow = |number| async move {
        tokio::time::sleep(MS(900)).await;
        Ok(number)
    };
    let late = async {
        tokio::time::sleep(MS(850)).await;
        link.get(LIMIT, || slow(2)).await
    };
    let (first, second) = tokio::join!(link.get(LIMIT, || slow(1)), late);
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn after_the_end_nothing_is_connected() {
    let link = link();
    let slow = async || {
        tokio::time::sleep(MS(50)).await;
        Ok(1)
    };
    let closing = async {
        tokio::time::sleep(MS(10)).await;
        link.close()
    };
    let (late, closed) = tokio::join!(link.get(LIMIT, slow), closing);
    assert_eq!((late.unwrap_err().kind(), closed), (ErrorKind::Closed, None));
    let error = link.get(LIMIT, || async { Ok(1) }).await.unwrap_err();
    assert_eq!((error.kind(), link.current()), (ErrorKind::Closed, None));
}

#[test]
fn a_runtime_that_ends_or_stands_still_stops_nobody_else() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (link, standing, ending) =
        (ConnectOnce::new("X", MS(50), Backoff::new(MS(1), MS(1))), runtime(), runtime());
    let connect = || async { Ok(std::future::pending::<u32>().await) };
    let (answers, late) = tokio::sync::oneshot::channel();
    standing.block_on(link.get(MS(5), || async { Ok(late.await.unwrap()) })).unwrap_err();
    let elsewhere = runtime();
    let mut tries = (0..100).map(|_| elsewhere.block_on(link.get(MS(50), || async { Ok(2) })));
    assert!(tries.any(|got| got.is_ok()), "it waits for another runtime");
    link.forget(|_| true);
    ending.block_on(link.get(MS(5), connect)).unwrap_err();
    drop(ending);
    assert_eq!(elsewhere.block_on(link.get(MS(5000), || async { Ok(3) })).unwrap(), 3);
    answers.send(9).unwrap();
    standing.block_on(async {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(link.current(), Some(3), "that one was given up");
}
