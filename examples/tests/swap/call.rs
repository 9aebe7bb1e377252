//! One question for two players, one payment from a balance of one, and a limit that is kept.

use std::time::Duration;

use distlock::Locks;

use crate::programs::{Bench, now, pause};
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_call");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    let locks = distlock::connect_blocking(bench.store()).expect("the store");
    let players = at_once(&bench, &locks, "game:one", &["question", "one"]);
    let [(one, question), (two, same)] = &players;
    assert!(*one == Some(0) && *two == Some(0), "{players:?}");
    assert!(question.contains("How much is") && question == same, "{players:?}");

    let mut payments = at_once(&bench, &locks, "account:1", &["pay", "100"]);
    payments.sort();
    let [(paid, receipt), (refused, why)] = &payments;
    assert_eq!((*paid, receipt.as_str()), (Some(0), "paid 100\n"), "{payments:?}");
    assert!(*refused == Some(1) && why.contains("the balance is 0"), "{payments:?}");
    assert_eq!(bench.number("SELECT balance FROM accounts"), 0);

    // Someone else is in the middle of such a call, and does not get on.
    let guard = locks.named("account:1").and_then(|lock| lock.acquire_blocking()).expect("free");
    let begun = now();
    let said = bench.start(PROGRAM, &["pay", "0"]).ends_with(1);
    assert!(said.contains("account:1 is busy"), "{said}");
    assert!(now().since(begun) >= Duration::from_secs(8));
    guard.release_blocking().expect("still held");
    // What it left behind, such as a place in the queue, is in nobody's way.
    bench.start(PROGRAM, &["pay", "0"]).ends_with(0);
    locks.close_blocking(Duration::from_secs(5)).expect("nothing is held");
}

/// Two calls that wait for the lock `name`, which then becomes free.
fn at_once(
    bench: &Bench<'_>,
    locks: &Locks,
    name: &str,
    call: &[&str],
) -> [(Option<i32>, String); 2] {
    let guard = locks.named(name).and_then(|lock| lock.acquire_blocking()).expect("free");
    let calls = [(); 2].map(|()| bench.start(PROGRAM, call));
    pause(Duration::from_secs(2));
    assert!(calls.iter().all(|call| call.said().is_empty()), "they wait");
    guard.release_blocking().expect("still held");
    calls.map(|mut call| call.ends())
}
