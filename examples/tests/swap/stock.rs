//! Nothing is sold that is not there, not even by a machine that uses another lock store.

use crate::programs::Bench;
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_stock");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    // Twenty pieces, and twenty-four customers at two machines.
    let machines = ["one", "two"].map(|name| bench.start(PROGRAM, &[name, "apple", "12", "20"]));
    let said = machines.map(|mut machine| machine.ends_with(0)).concat();
    assert_eq!(said.matches(": saved\n").count(), 20, "{said}");
    assert_eq!(said.matches(": sold out\n").count(), 4, "{said}");
    assert_eq!(bench.number("SELECT amount FROM products WHERE name = 'apple'"), 0);
    assert_eq!(bench.number("SELECT COUNT(*) FROM orders WHERE product = 'apple'"), 20);
    assert_eq!(bench.number("SELECT COUNT(DISTINCT fence) FROM orders"), 20);

    // A machine that is paused for longer than the ttl is overtaken, and notices by itself.
    let mut paused = bench.start(PROGRAM, &["paused", "pear", "1", "3000"]);
    paused.says("20 left");
    paused.freeze();
    let said = bench.start(PROGRAM, &["next", "pear", "1", "0"]).ends_with(0);
    assert!(said.contains("next: saved"), "{said}");
    paused.thaw();
    let said = paused.ends_with(0);
    assert!(said.contains("paused: not saved"), "{said}");
    assert_eq!(bench.number("SELECT amount FROM products WHERE name = 'pear'"), 19);

    // A machine that is set up with another lock store takes the lock at the same time. The fence
    // lets only the later of the two save.
    let mut first = bench.start(PROGRAM, &["first", "pear", "1", "10000"]);
    first.says("19 left");
    let other = [&*bench.elsewhere(), &bench.database(), "other", "pear", "1", "0"];
    let said = bench.start_with(PROGRAM, &other).ends_with(0);
    assert!(said.contains("other: saved"), "{said}");
    assert!(!first.said().contains("saved"), "the payment takes longer");
    let said = first.ends_with(0);
    assert!(said.contains("first: not saved: fencing token"), "{said}");
    assert!(said.contains("is stale"), "{said}");
    assert_eq!(bench.number("SELECT amount FROM products WHERE name = 'pear'"), 18);
    assert_eq!(bench.number("SELECT COUNT(*) FROM orders WHERE product = 'pear'"), 2);
    assert_eq!(bench.number("SELECT COUNT(*) FROM orders WHERE machine = 'first'"), 0);
}
