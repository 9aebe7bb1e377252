//! Two versions of the program on one store, as while machines are upgraded one after the other. `.ci/two-versions`
//! builds the other version, and names it.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use lock_testkit::networked::Networked;
use serde_json::Value;

use crate::bench::{Bench, Done, PROGRAM, Running, SOON, finish, heeding_signals, read};

/// How often each contender runs its command.
const RUNS: usize = 8;

/// A version of the program, on the store of a test.
struct Version<'a> {
    bench: &'a Bench,
    program: &'a str,
    url: &'a str,
}

impl Version<'_> {
    fn start(&self, args: &[&str]) -> Running {
        let mut command = heeding_signals(self.program);
        command.args(args).args(["--store", self.url]).process_group(0);
        self.bench.prepare(&mut command);
        command.spawn().expect("the program starts").into()
    }

    fn done(&self, args: &[&str]) -> Done {
        finish(self.start(args), 3 * SOON)
    }

    /// Under the lock, one after the other.
    fn contend(&self) -> Running {
        let alone = "mkdir alone && echo $DISTLOCK_FENCE >>fences && sleep 0.02 && rmdir alone";
        let again =
            "for run in $(seq $3); do \"$0\" run a --store \"$1\" --ttl 5s -c \"$2\" || exit; done";
        let mut command = heeding_signals("sh");
        command.args(["-c", again, self.program, self.url, alone, &RUNS.to_string()]);
        self.bench.prepare(command.process_group(0));
        command.spawn().expect("a shell starts").into()
    }
}

fn both_share(url: &str, other: &str) {
    let bench = Bench::new();
    let version = |program| Version { bench: &bench, program, url };
    let (ours, theirs) = (version(PROGRAM), version(other));
    for (holder, second) in [(&ours, &theirs), (&theirs, &ours)] {
        let script = "echo $DISTLOCK_FENCE >fence; sleep 60";
        let held = holder.start(&["run", "a", "--ttl", "3s", "--label", "first", "-c", script]);
        let fence = bench.line("fence");
        second.done(&["run", "a", "-n", "-c", "echo ran"]).is(75).printing("").saying(["first"]);
        let status = second.done(&["status", "a", "--json"]).is(0);
        let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
        assert_eq!(status["holder"]["fence"].to_string(), fence, "{status}");
        // Killed: the other one gets the lock when the lease has ended.
        drop(held);
        std::fs::remove_file(bench.path("fence")).expect("it is there");
        let next = second.done(&["run", "a", "--wait", "20s", "-c", "echo $DISTLOCK_FENCE"]).is(0);
        let (next, fence) = (next.stdout.trim().parse::<u64>(), fence.parse::<u64>());
        assert!(next.expect("a fence") > fence.expect("a fence"));
    }
    let contenders = [&ours, &theirs, &ours, &theirs].map(Version::contend);
    let number = contenders.len() * RUNS;
    for contender in contenders {
        finish(contender, Duration::from_secs(120)).is(0);
    }
    let fences = read(&bench.path("fences"));
    let fences: Vec<u64> = fences.lines().map(|line| line.parse().expect("a fence")).collect();
    assert_eq!(fences.len(), number, "{fences:?}");
    assert!(fences.windows(2).all(|two| two[0] < two[1]), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it needs another version of the program: .ci/two-versions builds one"]
async fn two_versions_share_every_store() {
    let other = std::env::var("DISTLOCK_OTHER").expect("the program of the other version");
    both_share(&Bench::new().url(), &other);
    for store in Networked::ALL {
        println!("{store:?}");
        let servers = store.start().await.expect("servers");
        both_share(&store.url(&servers.addresses(), ""), &other);
    }
}
