//! Who is woken, and what becomes of a message that its receiver does not follow.

use super::*;

const NEVER: Duration = Duration::from_millis(20);

fn waiters() -> (Arc<Waiters>, mpsc::UnboundedReceiver<Arc<str>>) {
    let (waiters, unwanted) = Waiters::new();
    waiters.set_up(true);
    (waiters, unwanted)
}

async fn is_woken(waiter: &Waiter) -> bool {
    tokio::time::timeout(NEVER, waiter.changed()).await.is_ok_and(|changed| changed.is_ok())
}

fn look_in_vain(waiter: &Waiter) {
    waiter.answered(waiter.look(), false);
}

#[tokio::test(start_paused = true)]
async fn what_its_receiver_does_not_follow_is_handed_on() {
    let (waiters, mut unwanted) = waiters();
    let (first, second) = (waiters.register("a", true), waiters.register("a", true));
    look_in_vain(&first);
    waiters.wake_one("a");
    // Dropped after it was told, and in the middle of a look.
    assert!(is_woken(&first).await);
    drop(first.look());
    look_in_vain(&second);
    drop(first);
    assert!(is_woken(&second).await);
    assert!(second.leave(), "no other claim waits here");
    assert_eq!(&*unwanted.try_recv().expect("handed on to another client"), "a");
    assert!(!second.leave(), "once");
    assert!(unwanted.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_its_loss_and_not_of_releases() {
    let (waiters, mut unwanted) = waiters();
    let holder = waiters.register("a", true);
    let look = holder.look();
    waiters.wake_one("a");
    holder.answered(look, true);
    assert!(!is_woken(&holder).await, "that was before it had the lock");
    waiters.wake_one("a");
    assert_eq!(&*unwanted.try_recv().expect("no claim waits"), "a");
    assert!(!is_woken(&holder).await);
    waiters.wake_all("a");
    assert!(is_woken(&holder).await);
    // A try that does not wait wants no message either.
    let trying = waiters.register("a", false);
    look_in_vain(&trying);
    assert!(!trying.waits() && !holder.has_company());
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_waiting_is_an_error_and_afterwards_all_look() {
    let (waiters, _unwanted) = waiters();
    let waiter = waiters.register("a", true);
    look_in_vain(&waiter);
    waiters.set_up(false);
    assert!(waiter.changed().await.is_err());
    assert!(!waiter.waits());
    waiters.set_up(true);
    assert!(is_woken(&waiter).await);
}
