//! So many at a time, and in which order.

use std::sync::{Mutex, PoisonError};

/// What takes long, by parts of names. In front, so that none of it runs alone at the end.
const LONG: &[&str] = &[
    "conformance",
    "lock-core-it",
    "lock-etcd-it",
    "lock-sql-it",
    "one_server",
    "lock-redis-redlock-",
    "mutants",
    "faults",
    "small_backend",
    "scenes",
    "swap",
    "benches-short",
    "hostile",
    "outage",
    "secrets",
];

/// To sort jobs by.
pub(crate) fn place(job: &str) -> (bool, &str) {
    (!LONG.iter().any(|part| job.contains(part)), job)
}

/// Works on each, `lanes` at a time; begins them in this order. The results come in the order in which they end.
pub(crate) fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    lanes: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (waiting, ended) = (Mutex::new(items.into_iter()), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = work(item);
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_longest_are_first() {
        let mut jobs = ["b-it-0a", "lock-zk-mutants-0a", "a-docs-0a", "lock-core-it-0a"];
        jobs.sort_by_key(|job| place(job));
        assert_eq!(jobs, ["lock-core-it-0a", "lock-zk-mutants-0a", "a-docs-0a", "b-it-0a"]);
    }

    #[test]
    fn all_are_worked_on_so_many_at_a_time() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Each waits for two others.
        let barrier = Barrier::new(3);
        let mut ended = side_by_side((0..12).collect(), 3, |item| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            barrier.wait();
            running.fetch_sub(1, Ordering::SeqCst);
            item
        });
        ended.sort_unstable();
        assert_eq!((ended, most.into_inner()), ((0..12).collect(), 3));
        let in_order = side_by_side((0..12).collect(), 1, |item: i32| item);
        assert_eq!(in_order, (0..12).collect::<Vec<_>>());
    }
}
