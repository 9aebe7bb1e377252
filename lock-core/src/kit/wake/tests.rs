use std::pin::pin;
use std::task::{Context, Poll};

use super::*;

fn waiters() -> Waiters<String> {
    Waiters::new(|_, slots| first_that_listens(slots))
}

/// Whether the waiter has been woken by now.
fn is_woken<T>(waiter: &Waiter<String, T>) -> bool {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    matches!(pin!(waiter.woken()).poll(&mut cx), Poll::Ready(()))
}

#[test]
fn a_push_is_kept_until_somebody_listens_and_wakes_once() {
    let waiters = waiters();
    let waiter = waiters.register("a".to_owned(), ());
    waiters.each("b", |slot| slot.wake());
    assert!(!is_woken(&waiter));
    waiters.each("a", |slot| slot.wake());
    assert!(is_woken(&waiter) && !is_woken(&waiter));
    waiters.all(|_, slot| slot.wake());
    assert!(is_woken(&waiter));
    waiters.all(|_, slot| slot.wake());
    waiter.look().done();
    assert!(!is_woken(&waiter), "the look has covered it");
}

#[tokio::test]
async fn one_that_listens_gets_the_permit_alone() {
    let waiters = waiters();
    let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
    let (heard, ()) = tokio::join!(
        async {
            second.woken().await;
            true
        },
        async { waiters.permit("a") }
    );
    assert!(heard && !is_woken(&first));
}

#[test]
fn if_none_listens_all_of_them_look() {
    let waiters = waiters();
    let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
    assert!(!is_woken(&first), "it has listened, and does so no more");
    waiters.permit("a");
    assert!(is_woken(&first) && is_woken(&second));
}

#[test]
fn a_permit_without_a_look_goes_to_the_next() {
    let waiters = waiters();
    let [first, second, third] = [(); 3].map(|()| waiters.register("a".to_owned(), ()));
    first.slot().permit();
    assert!(is_woken(&first));
    drop(first.look());
    drop(first);
    assert!(is_woken(&second), "its look was not made");
    second.look().done();
    third.look().done();
    drop(second);
    assert!(!is_woken(&third), "its look was made");
}

#[test]
fn what_is_forgotten_is_not_handed_on() {
    let waiters = waiters();
    let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
    first.slot().permit();
    first.forget();
    assert!(!is_woken(&first));
    drop(first);
    assert!(!is_woken(&second));
}

#[test]
fn the_rule_decides_and_hears_of_a_name_without_waiters() {
    let (unwanted, told) = std::sync::mpsc::channel();
    let waiters = Waiters::<String, u32>::new(move |name, slots| {
        match slots.iter().min_by_key(|slot| *slot.data()) {
            Some(slot) => slot.permit(),
            None => unwanted.send(name.clone()).unwrap(),
        }
    });
    let (late, early) = (waiters.register("a".to_owned(), 9), waiters.register("a".to_owned(), 3));
    assert!(late.any_other(|rank| *rank == 3) && !early.any_other(|rank| *rank == 3));
    waiters.permit("a");
    assert!(is_woken(&early) && !is_woken(&late));
    drop(early);
    assert!(is_woken(&late));
    drop(late);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["a"], "no waiter is left for the permit");
    assert!(waiters.0.by_name().is_empty());
}
