//! Each task is done once, although a worker is killed in the middle of one.

use crate::programs::Bench;
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tasks");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    let mut killed = bench.start(PROGRAM, &["killed"]);
    killed.says("runs task 1"); // it takes two seconds
    killed.kill();

    let names = ["one", "two", "three"];
    let workers: Vec<_> = names.map(|name| bench.start(PROGRAM, &[name])).into();
    let mut done = 0;
    for mut worker in workers {
        let said = worker.ends_with(0);
        let count = said.split(" has done ").nth(1).and_then(|rest| rest.split(' ').next());
        done += count.expect("a count").parse::<u32>().expect("a number");
    }
    assert_eq!(done, 20);
    assert_eq!(bench.number("SELECT COUNT(*) FROM tasks WHERE done_by IS NOT NULL"), 20);
    assert_eq!(bench.number("SELECT COUNT(*) FROM tasks WHERE done_by = 'killed'"), 0);
    // The one in the hands of the killed worker was run twice, which no lock can prevent.
    assert_eq!(bench.number("SELECT runs FROM tasks WHERE id = 1"), 2);
    assert_eq!(bench.number("SELECT COUNT(*) FROM tasks WHERE runs = 1"), 19);

    // The done mark: a worker that comes later runs nothing.
    let said = bench.start(PROGRAM, &["late"]).ends_with(0);
    assert!(said.contains("late has done 0 tasks"), "{said}");
    assert_eq!(bench.number("SELECT COUNT(*) FROM tasks WHERE runs = 1"), 19);
}
