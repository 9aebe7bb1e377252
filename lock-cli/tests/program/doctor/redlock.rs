//! A quorum: which node waits for what, and the person who lets it go on.

use std::time::Duration;

use lock_testkit::servers::{Data, RedisServer};

use super::examine;
use crate::bench::{Bench, now, pause};

async fn nodes() -> (Vec<RedisServer>, String) {
    let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = RedisServer::builder().start().await.expect("a node");
        hosts.push(node.url().trim_start_matches("redis://").to_owned());
        nodes.push(node);
    }
    (nodes, format!("redlock://{}", hosts.join(",")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_says_whether_it_votes_and_what_it_waits_for() {
    let (nodes, url) = nodes().await;
    // Just started, they may have forgotten a lock.
    examine(&url, &[]).is(69).says("critical", "0 of 3 nodes vote, and 2 must", "wait for").says(
        "critical",
        "cannot be taken",
        "the other findings",
    );
    let url = format!("{url}?lock_bootstrap=now");
    examine(&url, &[])
        .says("info", "3 of 3 nodes vote", "")
        .says("info", &format!("{} votes", nodes[1].address().unwrap()), "")
        .lacks("does not vote");
    nodes[1].restart(Data::Lose).await.unwrap();
    let restarted = format!("{} does not vote: ", nodes[1].address().unwrap());
    examine(&url, &[])
        .is(1)
        .says("info", "2 of 3 nodes vote", "")
        .says("warning", &restarted, "nothing needs to be done")
        .says("warning", "was restarted or lost its data", "");
    nodes[2].kill().unwrap();
    let dead = format!("{} cannot be used", nodes[2].address().unwrap());
    examine(&url, &[])
        .is(69)
        .says("critical", "1 of 3 nodes vote", "")
        .says("warning", &dead, "start it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recover_lets_a_quorum_vote_that_waits_for_a_person() {
    let (nodes, url) = nodes().await;
    let url = format!("{url}?lock_max_ttl=2s&lock_bootstrap=now");
    let bench = Bench::new();
    let run = |url: &str| {
        bench.done([
            "run",
            "a",
            "--ttl",
            "1s",
            "-n",
            "--store",
            url,
            "--",
            "sh",
            "-c",
            "echo $DISTLOCK_FENCE",
        ])
    };
    let fence: u64 = run(&url).is(0).stdout.trim().parse().unwrap();
    for node in &nodes {
        node.restart(Data::Keep).await.unwrap();
    }
    let url = format!("{url}&lock_recover=manual");
    pause(Duration::from_millis(2500));
    examine(&url, &[]).is(69).says("critical", "0 of 3 nodes vote", "distlock recover");
    let recover =
        |args: &[&str]| bench.done([&["recover", "--store", url.as_str()], args].concat());
    recover(&[]).is(64).saying(["add --yes"]);
    let begun = now();
    recover(&["--yes"]).is(69).printing("").saying(["recovery has begun", "--wait"]);
    recover(&["--yes", "--wait", "20s"]).is(0).printing("every node that responds votes\n");
    assert!(now().since(begun) > Duration::from_secs(2), "{:?}", now().since(begun));
    let next: u64 = run(&url).is(0).stdout.trim().parse().unwrap();
    lock_testkit::assert_exactly!(next > fence, "{next} after {fence}");
}
