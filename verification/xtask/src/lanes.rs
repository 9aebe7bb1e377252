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

/// What keeps a processor busy, by parts of names. Of these few run at a time, or answers come too late; together they take about
/// as long as a third of all others.
const HEAVY: &[&str] = &[
    "ensemble_conformance",
    "cluster_conformance",
    "postgres_conformance",
    "lock-sql-it",
    "zk-mutants",
    "lock-etcd-it",
    "benches-short",
    "zk-scenes",
    "outage",
    "lock-etcd-scale",
];

fn is_one_of(job: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| job.contains(part))
}

/// To sort jobs by.
pub(crate) fn place(job: &str) -> (bool, &str) {
    (!is_one_of(job, LONG), job)
}

/// Whether it is one of those of which few run at a time.
pub(crate) fn is_heavy(job: &str) -> bool {
    is_one_of(job, HEAVY)
}

/// Works on each, `lanes` at a time; begins them in this order. The results come in the order in which they end.
pub(crate) fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    lanes: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    two_kinds(Vec::new(), items, lanes, work)
}

/// Like [`side_by_side`]. A third of the lanes begins with what is heavy, and the others with the rest, until there is no more of
/// their own kind.
pub(crate) fn two_kinds<T: Send, R: Send>(
    heavy: Vec<T>,
    others: Vec<T>,
    lanes: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let queue = |items: Vec<T>| Mutex::new(items.into_iter());
    let (heavy, others, ended) = (queue(heavy), queue(others), Mutex::new(Vec::new()));
    let next = |queue: &Mutex<std::vec::IntoIter<T>>| {
        queue.lock().unwrap_or_else(PoisonError::into_inner).next()
    };
    let (next, work, ended_of_all) = (&next, &work, &ended);
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let is_for_heavy = lane < lanes.div_ceil(3);
            let queues = if is_for_heavy { [&heavy, &others] } else { [&others, &heavy] };
            scope.spawn(move || {
                while let Some(item) = next(queues[0]).or_else(|| next(queues[1])) {
                    let result = work(item);
                    ended_of_all.lock().unwrap_or_else(PoisonError::into_inner).push(result);
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

    #[test]
    fn what_is_heavy_has_a_lane_of_three() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // One that is heavy waits for two others each time.
        let barrier = Barrier::new(3);
        let ended = two_kinds(vec!["heavy"; 4], vec!["light"; 8], 3, |item| {
            if item == "heavy" {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            }
            barrier.wait();
            if item == "heavy" {
                running.fetch_sub(1, Ordering::SeqCst);
            }
            item
        });
        assert_eq!((ended.len(), most.into_inner()), (12, 1));
        // Nobody is idle while there is something to do.
        let barrier = Barrier::new(3);
        let all = two_kinds(vec![0; 9], vec![], 3, |_| barrier.wait().is_leader());
        assert_eq!(all.len(), 9);
        assert!(is_heavy("lock-zk-ensemble_conformance-0a") && !is_heavy("lock-zk-queue-0a"));
    }
}
