//! `bench`.

use serde_json::Value;

use crate::bench::{Bench, SOON, finish, id, send, until};
use rustix::process::Signal;

#[test]
fn what_is_measured_adds_up_and_leaves_nothing_behind() {
    let bench = Bench::new();
    let done = bench.done(["bench", "--rounds", "40", "--hand-overs", "3", "--json"]).is(0);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&report["schema"], &report["backend"]), (&1.into(), &"sqlite".into()));
    let series = report["series"].as_object().expect("an object");
    for (name, count) in [
        ("round_trip", 40),
        ("acquire", 40),
        ("release", 40),
        ("acquire_and_release", 40),
        ("hand_over", 3),
    ] {
        let of = |field: &str| series[name][field].as_u64().expect(field);
        assert_eq!(of("count"), count, "{name}");
        let order = ["min_us", "p50_us", "p90_us", "p99_us", "max_us"].map(of);
        assert!(order.is_sorted() && order[4] > 0, "{name}: {order:?}");
    }
    let p50 = |name: &str| series[name]["p50_us"].as_u64().expect("a number");
    assert!(p50("acquire_and_release") > p50("acquire").max(p50("release")), "{report}");
    assert!(bench.held().is_empty());
}

#[test]
fn for_people_there_is_a_table_and_a_histogram_of_each() {
    let bench = Bench::new();
    let done = bench.done(["bench", "--rounds", "30", "--hand-overs", "2"]).is(0);
    let lines: Vec<_> = done.stdout.lines().collect();
    assert!(lines[0].contains("P50") && lines[0].contains("ROUND TRIPS"), "{done:?}");
    for head in ["round trip, 30 times", "acquire, 30 times", "hand over, 2 times"] {
        let at = lines
            .iter()
            .position(|line| *line == head)
            .unwrap_or_else(|| panic!("{head}: {done:?}"));
        let bars = lines[at + 1..].iter().take_while(|line| !line.is_empty());
        let counts = bars.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        let times: u64 = head.split([' ', ',']).find_map(|word| word.parse().ok()).unwrap();
        assert_eq!(counts.sum::<u64>(), times, "{head}: {done:?}");
    }
}

#[test]
fn an_interrupt_leaves_no_lock_behind() {
    let bench = Bench::new();
    let run = bench.distlock(["bench", "--rounds", "1", "--hand-overs", "100000"]).spawn().unwrap();
    until("it holds a lock", SOON, || !bench.held().is_empty());
    send(id(&run), Signal::INT);
    let done = finish(run, SOON).is(130);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    assert!(bench.held().is_empty(), "{:?}", bench.held());
}

#[test]
fn a_store_that_cannot_be_opened_is_78() {
    let done = Bench::new().done(["bench", "--store", "sqlite:///no/folder/x.db"]);
    done.is(78).printing("").saying(["/no/folder"]);
}
