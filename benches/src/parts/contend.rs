//! Contenders for one name, or for one each.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;

use super::Bench;
use crate::Done;
use crate::client::LockKind;
use crate::process::now;
use crate::results::Row;
use crate::samples::{Samples, Spread};
use crate::stores::Usage;
use crate::task::{Turn, Work};
use crate::worker::Worker;

/// Who contends for how many names.
#[derive(Clone, Copy)]
pub(super) struct Contest {
    pub(super) processes: u32,
    pub(super) contenders: u32,
    pub(super) names: u32,
    pub(super) kind: LockKind,
    /// Whether whoever holds a lock measures the floor of a hand-over.
    pub(super) floor: bool,
}

/// From the call of `release` to the return of the next holder's `acquire`. The one that has
/// released queues again, so that as many wait as before.
pub(super) async fn hand_overs(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let of_floor = requests_of_floor(bench).await?;
    let mut rows = Vec::new();
    for &processes in bench.plan.processes {
        if processes > 1 && !bench.store.is_shared() {
            continue;
        }
        for &waiters in bench.plan.waiters {
            let contest = Contest {
                processes,
                contenders: waiters + 1,
                names: 1,
                kind: LockKind::Exclusive,
                floor: true,
            };
            let seen = contend(bench, contest).await?;
            let row = bench.row(format!("{waiters} waiting, {processes} processes"));
            let floors = seen.turns.iter().filter(|turn| turn.floor.is_some()).count() as f64;
            let requests = seen.requests.zip(of_floor).map(|(all, each)| all - floors * each);
            rows.push(seen.told(row, requests));
        }
    }
    Ok(rows)
}

/// As many acquisitions as possible.
pub(super) async fn throughput(bench: &mut Bench<'_>) -> Done<Vec<Row>> {
    let most = bench.plan.processes.iter().copied().max().unwrap_or(1);
    let processes = if bench.store.is_shared() { most } else { 1 };
    let contenders = bench.plan.contenders;
    let mut rows = Vec::new();
    for names in [1, contenders] {
        let case = format!("{contenders} contenders, {processes} processes, {names} names");
        let kind = LockKind::Exclusive;
        let contest = Contest { processes, contenders, names, kind, floor: false };
        let seen = contend(bench, contest).await?;
        let row = bench.row(case).count("acquisitions/s", seen.rate());
        let (fewest, most) = seen.shares(contenders);
        let row = row
            .count("fewest of a fair share, %", fewest)
            .count("most of a fair share, %", most)
            .count("never served", f64::from(contenders - seen.served()))
            .count_if("server µs each", seen.cpu.map(|cpu| cpu * 1e6 / seen.turns.len() as f64));
        let row = seen.told(row, seen.requests);
        // Alone with its name, a contender is handed nothing.
        rows.push(if names == 1 { row } else { row.times(None, None) });
    }
    Ok(rows)
}

/// How many requests one hand-over of the floor is.
async fn requests_of_floor(bench: &mut Bench<'_>) -> Done<Option<f64>> {
    const TIMES: u32 = 50;
    let mut floor = bench.store.floor(&bench.subject.url()).await?;
    floor.hand_over().await?;
    let before = bench.subject.usage().await?;
    for _ in 0..TIMES {
        floor.hand_over().await?;
    }
    let requests = bench.subject.usage().await?.requests_since(before);
    Ok(requests.map(|requests| requests / f64::from(TIMES)))
}

/// What was seen within the measured time.
pub(super) struct Seen {
    seconds: f64,
    /// In the order of the grants.
    turns: Vec<Turn>,
    /// The longest that anybody has waited, those included who were not served.
    longest: u64,
    requests: Option<f64>,
    /// Seconds of the servers.
    cpu: Option<f64>,
}

pub(super) async fn contend(bench: &mut Bench<'_>, contest: Contest) -> Done<Seen> {
    let time = bench.plan.time;
    // One name is handed over, which takes two turns.
    let fewest = if contest.names == 1 { 2 } else { 1 };
    // Some peers need many tries, and some stores a while on a busy machine.
    for time in [time, time * 10] {
        let seen = contend_for(bench, time, contest).await?;
        if seen.turns.len() >= fewest {
            return Ok(seen);
        }
    }
    Err(format!("the lock was not granted {fewest} times within {:?}", time * 10).into())
}

async fn contend_for(bench: &mut Bench<'_>, time: Duration, contest: Contest) -> Done<Seen> {
    let Contest { processes, contenders, names, kind, floor } = contest;
    let task = bench.task(Work::Contend { contenders: Vec::new(), names, kind, floor });
    let mut workers = Vec::new();
    for process in 0..processes.min(contenders) {
        let mut task = task.clone();
        let own = (0..contenders).filter(|contender| contender % processes == process).collect();
        task.work = Work::Contend { contenders: own, names, kind, floor };
        workers.push(Worker::start(&task).await?.0);
    }
    // Until everybody waits.
    sleep(time / 10 + Duration::from_millis(contenders.into())).await;
    let (before, from) = (bench.subject.usage().await?, now());
    sleep(time).await;
    let (after, to) = (bench.subject.usage().await?, now());
    let mut all = Vec::new();
    let stops = workers.into_iter().map(Worker::stop);
    for report in futures_util::future::try_join_all(stops).await? {
        all.extend(report.turns);
    }
    Ok(Seen::new(all, from, to, before, after))
}

impl Seen {
    fn new(mut all: Vec<Turn>, from: u64, to: u64, before: Usage, after: Usage) -> Self {
        let waited = |turn: &Turn| {
            let until = turn.granted.unwrap_or(to).min(to);
            if until < from { 0 } else { until.saturating_sub(turn.asked) }
        };
        let longest = all.iter().map(waited).max().unwrap_or_default();
        all.retain(|turn| turn.granted.is_some_and(|granted| (from..to).contains(&granted)));
        all.sort_by_key(|turn| turn.granted);
        Self {
            seconds: (to - from) as f64 / 1e9,
            turns: all,
            longest,
            requests: after.requests_since(before),
            cpu: after.cpu_since(before),
        }
    }

    /// Acquisitions a second.
    pub(super) fn rate(&self) -> f64 {
        self.turns.len() as f64 / self.seconds
    }

    fn told(&self, row: Row, requests: Option<f64>) -> Row {
        let (time, floor, overlaps) = self.hand_overs();
        let turns = self.turns.len() as f64;
        row.times(time, floor)
            .count_if("requests each", requests.map(|requests| requests / turns))
            .count("longest wait, ms", self.longest as f64 / 1e6)
            .count("two holders at once", overlaps)
    }

    /// The times from a release to the next grant of the name, those of the floor, and how often a
    /// grant came before the release.
    fn hand_overs(&self) -> (Option<Spread>, Option<Spread>, f64) {
        let (mut times, mut floors, mut overlaps) = (Samples::new(), Samples::new(), 0.0);
        let mut last = BTreeMap::<u32, &Turn>::new();
        for turn in &self.turns {
            turn.floor.into_iter().for_each(|floor| floors.add_nanos(floor));
            let (Some(granted), Some(before)) = (turn.granted, last.insert(turn.name, turn)) else {
                continue;
            };
            match granted.checked_sub(before.released) {
                Some(time) => times.add_nanos(time),
                None => overlaps += 1.0,
            }
        }
        (times.spread(), floors.spread(), overlaps)
    }

    fn turns_of_each(&self) -> BTreeMap<u32, u32> {
        let mut each = BTreeMap::new();
        for turn in &self.turns {
            *each.entry(turn.contender).or_default() += 1;
        }
        each
    }

    fn served(&self) -> u32 {
        u32::try_from(self.turns_of_each().len()).unwrap_or(u32::MAX)
    }

    /// The fewest and the most turns of a contender, in percent of a fair share.
    fn shares(&self, contenders: u32) -> (f64, f64) {
        let each = self.turns_of_each();
        let fair = self.turns.len() as f64 / f64::from(contenders) / 100.0;
        let fewest =
            if self.served() < contenders { Some(0) } else { each.values().min().copied() };
        let share = |turns: Option<u32>| f64::from(turns.unwrap_or_default()) / fair;
        (share(fewest), share(each.values().max().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(contender: u32, asked: u64, granted: impl Into<Option<u64>>, released: u64) -> Turn {
        Turn { contender, name: 0, asked, granted: granted.into(), released, floor: Some(5) }
    }

    fn seen(turns: Vec<Turn>) -> Seen {
        Seen::new(turns, 100, 1000, Usage::default(), Usage::default())
    }

    #[test]
    fn a_hand_over_lasts_from_the_release_to_the_grant() {
        let seen = seen(vec![
            turn(0, 50, 100, 200),
            turn(1, 60, 230, 300),
            Turn { name: 1, ..turn(2, 60, 310, 320) },
            // Granted after the measured time.
            turn(0, 310, 1000, 1100),
        ]);
        let (times, floors, overlaps) = seen.hand_overs();
        assert_eq!(times, Some(Spread { count: 1, p50: 30, p99: 30, max: 30 }));
        assert_eq!(floors.map(|floors| floors.count), Some(3));
        assert!(overlaps < 0.5);
    }

    #[test]
    fn two_holders_are_seen() {
        let seen = seen(vec![turn(0, 50, 100, 200), turn(1, 60, 199, 300)]);
        assert!(seen.hand_overs().2 > 0.5);
    }

    #[test]
    fn who_is_never_served_waits_to_the_end_and_has_no_share() {
        let seen =
            seen(vec![turn(0, 150, 160, 170), turn(0, 180, 190, 200), turn(1, 110, None, 0)]);
        assert_eq!((seen.longest, seen.served()), (890, 1));
        let (fewest, most) = seen.shares(2);
        assert!(fewest < 0.1 && (most - 200.0).abs() < 0.1);
    }
}
