//! One replica leads: the next one at once after SIGTERM, and after the ttl if it was killed.

use std::time::Duration;

use crate::programs::{Bench, Program, now, pause, until};
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leader");
const TTL: Duration = Duration::from_secs(10);

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    let mut replicas: Vec<_> =
        ["one", "two", "three"].map(|name| bench.start(PROGRAM, &[name])).into();
    for replica in &mut replicas {
        replica.says("stands by");
    }
    let (mut leader, first) = next_leader(&mut replicas, TTL);
    pause(Duration::from_secs(1));
    assert!(replicas.iter().all(|replica| !replica.said().contains("leads")));

    let told = now();
    leader.terminate();
    assert!(leader.ends_with(0).contains(" stops\n"));
    let (mut leader, second) = next_leader(&mut replicas, TTL);
    assert!(now().since(told) < TTL / 2, "handed over after {:?}", now().since(told));
    lock_testkit::assert_exactly!(second > first, "{second} after {first}");

    leader.kill();
    let (mut leader, third) = next_leader(&mut replicas, TTL * 2);
    assert!(third > second, "{third} after {second}");
    until("it works", TTL, || bench.number("SELECT fence FROM work") == third);
    assert!(bench.number("SELECT pieces FROM work") >= 2);
    leader.terminate();
    leader.ends_with(0);
}

/// Takes out of `standing_by` the replica that leads, with its fence.
fn next_leader(standing_by: &mut Vec<Program>, limit: Duration) -> (Program, i64) {
    let leads = |replica: &Program| {
        let said = replica.said();
        let fence = said.split(" leads with fence ").nth(1)?.split_once('\n')?.0.parse();
        Some(fence.expect("a fence"))
    };
    let mut found = None;
    until("a replica leads", limit, || {
        let all = standing_by.iter().enumerate();
        found = all.filter_map(|(at, replica)| Some((at, leads(replica)?))).next();
        found.is_some()
    });
    let (at, fence) = found.expect("checked above");
    (standing_by.remove(at), fence)
}
