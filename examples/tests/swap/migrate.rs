//! Five replicas start at once, and every step is made once.

use crate::programs::Bench;
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_migrate");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    let names = ["one", "two", "three", "four", "five"];
    let said = names
        .map(|name| bench.start(PROGRAM, &[name]))
        .map(|mut replica| replica.ends_with(0))
        .concat();
    for step in 1..=3 {
        let made = format!(" has made step {step}\n");
        assert_eq!(said.matches(made.as_str()).count(), 1, "step {step}: {said}");
    }
    assert_eq!(said.matches(" serves with version 3\n").count(), 5, "{said}");
    assert_eq!(bench.number("SELECT version FROM schema_version"), 3);
    assert_eq!(bench.number("SELECT COUNT(city) FROM customers"), 0);
}
