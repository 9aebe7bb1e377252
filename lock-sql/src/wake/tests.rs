//! Who is woken, and what becomes of a message that its receiver does not follow.

use super::*;

const SOON: Duration = Duration::from_secs(5);
const NEVER: Duration = Duration::from_millis(20);

fn ears() -> (Arc<Ears>, mpsc::UnboundedReceiver<Arc<str>>) {
    let (ears, unwanted) = Ears::new();
    ears.set_up(true);
    (ears, unwanted)
}

async fn hears(ear: &Ear) -> bool {
    tokio::time::timeout(NEVER, ear.changed()).await.is_ok_and(|changed| changed.is_ok())
}

fn look_in_vain(ear: &Ear) {
    ear.look().answered(false);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_kept_until_somebody_listens_and_wakes_once() {
    let (ears, _unwanted) = ears();
    let ear = ears.register("a", true);
    look_in_vain(&ear);
    ears.wake_one("a");
    assert!(hears(&ear).await);
    assert!(!hears(&ear).await);
    // One that comes during the look is newer than what the look has seen.
    let look = ear.look();
    ears.wake_one("a");
    look.answered(false);
    assert!(hears(&ear).await);
}

#[tokio::test(start_paused = true)]
async fn one_of_many_is_woken_and_it_is_one_that_listens() {
    let (ears, _unwanted) = ears();
    // Waits behind the second one, and does not listen.
    let idle = ears.register("a", true);
    look_in_vain(&idle);
    let listening = ears.register("a", true);
    look_in_vain(&listening);
    let other = ears.register("b", true);
    look_in_vain(&other);
    let (heard, ()) = tokio::join!(tokio::time::timeout(SOON, listening.changed()), async {
        tokio::task::yield_now().await;
        ears.wake_one("a");
    });
    heard.expect("it is woken").expect("by a message");
    assert!(!hears(&idle).await && !hears(&other).await);
}

#[tokio::test(start_paused = true)]
async fn what_its_receiver_does_not_follow_is_handed_on() {
    let (ears, mut unwanted) = ears();
    let (first, second) = (ears.register("a", true), ears.register("a", true));
    look_in_vain(&first);
    ears.wake_one("a");
    // Dropped after it was told, and in the middle of a look.
    assert!(hears(&first).await);
    drop(first.look());
    look_in_vain(&second);
    drop(first);
    assert!(hears(&second).await);
    assert!(second.leave(), "nobody else waits here");
    assert_eq!(&*unwanted.try_recv().expect("handed on to another client"), "a");
    assert!(!second.leave(), "once");
    assert!(unwanted.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_its_loss_and_not_of_releases() {
    let (ears, mut unwanted) = ears();
    let holder = ears.register("a", true);
    let look = holder.look();
    ears.wake_one("a");
    look.answered(true);
    assert!(!hears(&holder).await, "that was before it had the lock");
    ears.wake_one("a");
    assert_eq!(&*unwanted.try_recv().expect("nobody waits"), "a");
    assert!(!hears(&holder).await);
    ears.wake_all("a");
    assert!(hears(&holder).await);
    // A try that does not wait wants no message either.
    let trying = ears.register("a", false);
    look_in_vain(&trying);
    assert!(!trying.waits() && !holder.has_company());
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_waiting_is_an_error_and_afterwards_all_look() {
    let (ears, _unwanted) = ears();
    let ear = ears.register("a", true);
    look_in_vain(&ear);
    ears.set_up(false);
    assert!(ear.changed().await.is_err());
    assert!(!ear.waits());
    ears.set_up(true);
    assert!(hears(&ear).await);
}
