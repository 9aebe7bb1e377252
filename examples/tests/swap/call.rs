//! One question for two players, one payment from a balance of one, and a limit that is kept.

use std::time::Duration;

use crate::programs::{Bench, now};
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_call");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    for game in ["game-1", "game-2"] {
        let players = [(); 2].map(|()| bench.start(PROGRAM, &["question", game]));
        let [one, two] = players.map(|mut player| player.ends_with(0));
        assert!(one.contains("How much is"), "{one}");
        assert_eq!(one, two, "both players of {game} get the same question");
    }

    let payments = [(); 2].map(|()| bench.start(PROGRAM, &["pay", "100"]));
    let mut ended = payments.map(|mut payment| payment.ends());
    ended.sort();
    let [(paid, receipt), (refused, why)] = &ended;
    assert_eq!((*paid, receipt.as_str()), (Some(0), "paid 100\n"), "{ended:?}");
    assert!(*refused == Some(1) && why.contains("the balance is 0"), "{ended:?}");
    assert_eq!(bench.number("SELECT balance FROM accounts"), 0);

    // Someone else is in the middle of such a call, and does not get on.
    let locks = distlock::connect_blocking(bench.store()).expect("the store");
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
