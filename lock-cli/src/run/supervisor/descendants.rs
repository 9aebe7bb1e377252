//! The descendants of a process, found through `/proc`.

use std::collections::HashSet;
use std::time::Duration;

use distlock::clock::Clock;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// How long to go on killing: only processes that cannot be killed take longer.
const KILLING: Duration = Duration::from_millis(500);

/// A process, distinguished by its start time from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pid: Pid,
    /// In clock ticks since boot. The kernel reuses a number only after all others, so no two
    /// processes have the same number and the same tick.
    started: u64,
}

#[derive(Debug)]
struct ProcStat {
    process: Process,
    parent: i32,
    /// A zombie no longer runs; it only waits for its parent to reap it.
    alive: bool,
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn find(pid: i32) -> Option<Self> {
        read(pid).map(|entry| entry.process)
    }

    /// Sends `signal`, but never to another process that has since been given the number.
    pub(crate) fn signal(self, signal: Signal) -> rustix::io::Result<()> {
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(fd) if Self::find(self.pid.as_raw_nonzero().get()) == Some(self) => {
                pidfd_send_signal(fd, signal)
            }
            Ok(_) => Err(Errno::SRCH),
            // Kernels before 5.3.
            Err(Errno::NOSYS) => kill_process(self.pid, signal),
            Err(error) => Err(error),
        }
    }

    /// The living processes below this one. It must be a child subreaper, or those whose parent has
    /// ended are missing.
    pub(crate) fn descendants(self) -> Vec<Self> {
        below(self.pid.as_raw_nonzero().get(), &snapshot())
    }
}

/// Kills everything that `find` finds, again and again, until nothing is left or it has taken too
/// long: processes of other users cannot be killed, and one in an uninterruptible call dies later. A
/// process that forks while being killed leaves its child to the subreaper, where the next round
/// finds it.
pub(crate) async fn kill_all(clock: &dyn Clock, mut find: impl FnMut() -> Vec<Process>) {
    const ROUND: Duration = Duration::from_millis(1);
    // Scanning `/proc` counts too: with many processes on the machine it is the slow part.
    let end = clock.now() + KILLING;
    loop {
        let living = find();
        if living.is_empty() || clock.now() >= end {
            return;
        }
        for process in living {
            // Those that have already ended need nothing; those that we may not kill remain.
            let _ = process.signal(Signal::KILL);
        }
        clock.sleep(ROUND).await;
    }
}

/// Every process that was started with `mark` in its environment: for orphans, which nothing else
/// identifies. A process that was started with another environment, or belongs to another user, is
/// not found.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let has_mark = |entry: &ProcStat| {
        let path = format!("/proc/{}/environ", entry.process.pid.as_raw_nonzero());
        let is_mark = |variable: &[u8]| variable == mark.as_bytes();
        std::fs::read(path).is_ok_and(|text| text.split(|byte| *byte == 0).any(is_mark))
    };
    let all = snapshot().into_iter();
    all.filter(|entry| entry.alive && has_mark(entry)).map(|entry| entry.process).collect()
}

/// Those below `root`, nearest first.
fn below(root: i32, all: &[ProcStat]) -> Vec<Process> {
    let mut parents = HashSet::from([root]);
    let mut found = Vec::new();
    loop {
        let next: Vec<_> = all
            .iter()
            .filter(|entry| {
                let pid = entry.process.pid.as_raw_nonzero().get();
                parents.contains(&entry.parent) && !parents.contains(&pid)
            })
            .collect();
        if next.is_empty() {
            return found;
        }
        for entry in next {
            parents.insert(entry.process.pid.as_raw_nonzero().get());
            if entry.alive {
                found.push(entry.process);
            }
        }
    }
}

fn snapshot() -> Vec<ProcStat> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(read)
        .collect()
}

fn read(pid: i32) -> Option<ProcStat> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `/proc/PID/stat` of proc(5): the command is in parentheses and may contain anything, so the
/// fields are counted from the last parenthesis.
fn parse(pid: i32, stat: &str) -> Option<ProcStat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let alive = !matches!(*fields.first()?, "Z" | "X" | "x");
    let parent = fields.get(1)?.parse().ok()?;
    let started = fields.get(19)?.parse().ok()?;
    Some(ProcStat { process: Process { pid: Pid::from_raw(pid)?, started }, parent, alive })
}

#[cfg(test)]
mod tests {
    use distlock::testing::ManualClock;

    use super::*;

    fn entry(pid: i32, parent: i32, alive: bool) -> ProcStat {
        ProcStat {
            process: Process { pid: Pid::from_raw(pid).unwrap(), started: 1 },
            parent,
            alive,
        }
    }

    #[test]
    fn a_strange_command_name_is_no_field() {
        let stat = "7 (a) R 9 (b)) S 3 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2";
        let entry = parse(7, stat).unwrap();
        assert_eq!((entry.parent, entry.alive, entry.process.started), (3, true, 4711));
        assert!(parse(7, "7 (x) S 3").is_none());
    }

    #[test]
    fn all_generations_are_found_also_below_a_zombie() {
        let all = [
            entry(5, 4, true),
            entry(2, 1, true),
            entry(4, 3, true),
            entry(3, 2, false),
            entry(9, 8, true),
        ];
        let found: Vec<_> = below(2, &all).iter().map(|p| p.pid.as_raw_nonzero().get()).collect();
        assert_eq!(found, [4, 5]);
    }

    #[tokio::test]
    async fn looks_that_take_long_count_towards_the_limit() {
        let clock = ManualClock::default();
        let gone = Process { pid: Pid::from_raw(i32::MAX).unwrap(), started: 1 };
        let mut looks = 0;
        let slow_look = || {
            looks += 1;
            clock.advance(Duration::from_millis(300));
            vec![gone]
        };
        let killing = kill_all(&clock, slow_look);
        let ticking = async {
            loop {
                tokio::task::yield_now().await;
                clock.advance(Duration::from_millis(1));
            }
        };
        tokio::select! {
            () = killing => {}
            () = ticking => {}
        }
        assert_eq!(looks, 2);
    }

    #[test]
    fn this_process_is_found_and_is_not_its_own_descendant() {
        let own = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.descendants().contains(&own));
        let later = Process { started: own.started + 1, ..own };
        assert_eq!(later.signal(Signal::KILL), Err(Errno::SRCH));
    }
}
