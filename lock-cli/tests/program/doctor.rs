//! `doctor`, on stores with something wrong.

use serde_json::Value;

use crate::bench::{Bench, Done};
use crate::terminal::Terminal;

/// What `doctor` found.
struct Found {
    done: Done,
    report: Value,
}

/// Runs it on the store at `url`, with further arguments.
fn examine(url: &str, args: &[&str]) -> Found {
    let done = Bench::new().done([&["doctor", "--json", "--store", url][..], args].concat());
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    assert_eq!(report["schema"], 1, "{report}");
    Found { done, report }
}

impl Found {
    #[track_caller]
    fn is(self, code: i32) -> Self {
        assert_eq!(self.done.code, Some(code), "{:#}", self.report);
        self
    }

    fn find(&self, word: &str) -> Option<&Value> {
        let findings = self.report["findings"].as_array().expect("an array");
        findings.iter().find(|finding| finding["what"].as_str().is_some_and(|w| w.contains(word)))
    }

    /// There is such a finding, of this severity, and with a remedy unless it is a mere fact.
    #[track_caller]
    fn says(self, severity: &str, word: &str, remedy: &str) -> Self {
        let is_it = |finding: &&Value| {
            let text = finding["remedy"].as_str().unwrap_or_default();
            finding["severity"] == severity
                && finding["what"].as_str().is_some_and(|what| what.contains(word))
                && text.contains(remedy)
                && text.is_empty() == (severity == "fact")
        };
        let findings = self.report["findings"].as_array().expect("an array");
        assert!(findings.iter().any(|f| is_it(&f)), "{severity} {word:?}: {:#}", self.report);
        self
    }

    #[track_caller]
    fn lacks(self, word: &str) -> Self {
        assert!(self.find(word).is_none(), "{word:?}: {:#}", self.report);
        self
    }
}

#[test]
fn a_sound_store_is_0_and_nothing_stays_behind() {
    let bench = Bench::new();
    let found = examine(&bench.url(), &[]).is(0);
    assert_eq!(found.report["worst"], "fact");
    assert_eq!(found.report["backend"], "sqlite");
    found
        .says("fact", "a file of SQLite", "")
        .says("fact", "was taken in", "")
        .says("fact", "it answers in", "")
        .says("fact", "it has locks that survive a restart", "");
    assert!(bench.held().is_empty());
    let text = bench.done(["doctor"]).is(0);
    assert!(text.stdout.lines().all(|line| line.starts_with("fact      ")), "{text:?}");
    // A lock that somebody holds is not touched.
    let holder = bench.holding("a", &["--label", "night shift"]);
    examine(&bench.url(), &["a"]).is(0).says("fact", "\"a\" is held by night shift", "");
    holder.stop();
}

#[test]
fn a_store_that_cannot_be_opened_is_critical() {
    examine("sqlite:///no/such/folder/locks.db", &[]).is(78).says(
        "critical",
        "/no/such/folder",
        "--store",
    );
    examine("nonsense://x", &[]).is(78).says("critical", "unknown store scheme", "--store");
    let bench = Bench::new();
    std::fs::write(
        bench.path("text.db"),
        "this is not a database, but long enough to be one".repeat(99),
    )
    .unwrap();
    let url = format!("sqlite://{}", bench.path("text.db").display());
    examine(&url, &[]).is(69).says("critical", "text.db", "check your access rights");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let bench = Bench::new();
    let line = "export TERM=xterm; exec distlock doctor";
    let done = Terminal::new(&bench, line).done().is(0);
    assert!(done.stdout.contains("\u{1b}[2mfact"), "{done:?}");
    for plain in ["export TERM=xterm NO_COLOR=1", "export TERM=dumb", "unset TERM"] {
        let done = Terminal::new(&bench, &format!("{plain}; exec distlock doctor")).done().is(0);
        assert!(
            done.stdout.contains("fact") && !done.stdout.contains('\u{1b}'),
            "{plain}: {done:?}"
        );
    }
    assert!(!bench.done(["doctor"]).stdout.contains('\u{1b}'));
}

#[cfg(feature = "redis")]
mod redis {
    use lock_testkit::servers::RedisServer;

    use super::examine;
    use crate::bench::{Bench, Running, SOON, until};
    use crate::redis::{Plain, info};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_redis_forgets_is_a_warning() {
        let server = RedisServer::builder().start().await.unwrap();
        let mut plain = Plain::connect(&server);
        // The tests' own servers do not wait for the disk.
        examine(server.url(), &[])
            .is(1)
            .says("fact", ", up for ", "")
            .says("warning", "appendfsync no", "appendfsync always")
            .lacks("append-only file")
            .lacks("maxmemory-policy");
        plain.ask("CONFIG SET appendfsync always");
        examine(server.url(), &[]).lacks("appendfsync").lacks("replica");
        plain.ask("CONFIG SET appendonly no");
        examine(server.url(), &[]).is(1).says("warning", "keeps no append-only file", "appendonly");
        plain.ask("CONFIG SET maxmemory 100mb");
        plain.ask("CONFIG SET maxmemory-policy allkeys-lru");
        examine(server.url(), &[]).is(78).says("critical", "allkeys-lru", "--store");
        let url = format!("{}?lock_eviction=warn", server.url());
        examine(&url, &[]).is(1).says("warning", "maxmemory-policy allkeys-lru", "noeviction");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replica_of_redis_is_named() {
        let server = RedisServer::builder().start().await.unwrap();
        let address = server.address().unwrap();
        let replica = RedisServer::builder()
            .option("replicaof", &format!("{} {}", address.ip(), address.port()))
            .start()
            .await
            .unwrap();
        until("the replica is connected", SOON, || info(&server, "connected_slaves") == "1");
        examine(server.url(), &[]).is(1).says("warning", "has replicas (1)", "quorum");
        examine(replica.url(), &[]).is(69).says("critical", "READONLY", "is it up");
    }

    /// Texts of a first day.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_wrong_port_is_told_with_what_it_might_be() {
        let server = RedisServer::builder().start().await.unwrap();
        #[cfg(feature = "tls")]
        examine(&server.url().replace("redis:", "rediss:"), &[]).is(69).says(
            "critical",
            "cannot be reached",
            "does its port expect TLS?",
        );
        examine("redis://127.0.0.1:1", &[]).is(69).says(
            "critical",
            "127.0.0.1:1 cannot be reached",
            "without TLS?",
        );
        let address = server.address().unwrap();
        let bench = Bench::new();
        let conf = format!("sentinel monitor m {} {} 1\n", address.ip(), address.port());
        std::fs::write(bench.path("conf"), conf).unwrap();
        let sentinel = Sentinel::start(bench.path("conf").to_str().unwrap());
        examine(&format!("redis://127.0.0.1:{}", sentinel.port), &[]).is(78).says(
            "critical",
            "it is probably a Sentinel",
            "another store",
        );
    }

    /// A Sentinel of the test's own.
    struct Sentinel {
        port: Port,
        _process: Running,
    }

    impl Sentinel {
        fn start(conf: &str) -> Self {
            let port = Port::reserve().expect("a free port");
            let mut command = std::process::Command::new("redis-server");
            command.args([conf, "--sentinel", "--port", &port.to_string(), "--bind", "127.0.0.1"]);
            command.stdout(std::process::Stdio::null());
            let process: Running = command.spawn().expect("redis-server is there").into();
            let address = port.address();
            until("the Sentinel listens", SOON, || std::net::TcpStream::connect(address).is_ok());
            Self { port, _process: process }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn passwords_and_rights_are_judged_and_not_shown() {
        let server = RedisServer::builder().option("requirepass", "right").start().await.unwrap();
        let with = |user: &str| server.url().replace("redis://", &format!("redis://{user}@"));
        let found = examine(&with(":hunter2"), &[]).is(69);
        let found = found.says("critical", "refused the credentials", "access rights");
        assert!(!format!("{:?}", found.done).contains("hunter2"), "{:?}", found.done);
        let mut plain = Plain::connect(&server);
        plain.ask("AUTH right");
        plain.ask("ACL SETUSER app on >pass ~* &* +@all -get");
        examine(&with("app:pass"), &[]).is(69).says("critical", "GET", "access rights");
        plain.ask("ACL SETUSER app +get -info");
        examine(&with("app:pass"), &[]).is(1).says("warning", "may not call INFO", "+info");
        plain.ask("ACL SETUSER app +info resetkeys ~other*");
        examine(&with("app:pass"), &[]).is(69).says("critical", "~<lock_prefix>*", "access rights");
        // Enough for the probe of the rights, and not for this lock.
        plain.ask("ACL SETUSER app resetkeys ~ours* ~{ours* ~distlock?fence ~{distlock?probe:*");
        examine(&with("app:pass"), &[]).is(69).says(
            "critical",
            "cannot be taken",
            "distlock doctor NAME",
        );
        examine(&with("app:pass"), &["ours"]).says("fact", "\"ours\" was taken", "");
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_and_time_limits_of_postgres_are_found() {
    use lock_testkit::servers::{PgBouncer, PostgresServer};
    let server = PostgresServer::builder()
        .option("statement_timeout", "700")
        .option("idle_session_timeout", "60000")
        .start()
        .await
        .unwrap();
    let direct = examine(server.url(), &[]).is(1);
    direct
        .says("fact", "is PostgreSQL", "")
        .says("warning", "statement_timeout is 700 ms", "ALTER ROLE")
        .says("warning", "idle_session_timeout is 60000 ms", "= 0")
        .says("warning", "fsync is off", "fsync to on")
        .lacks("pooler");
    let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 8).await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
    examine(&url, &[]).is(1).says("warning", "a pooler before", "session mode");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_commits_of_mariadb_are_found() {
    let server = lock_testkit::servers::MariaDbServer::builder()
        .option("innodb-flush-log-at-trx-commit", "2")
        .option("wait-timeout", "20")
        .start()
        .await
        .unwrap();
    examine(server.url(), &[])
        .is(1)
        .says("fact", "is MariaDB 1", "")
        .says("warning", "innodb_flush_log_at_trx_commit is 2", "= 1")
        .says("warning", "wait_timeout is 20 s", "60");
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_and_a_dead_member_of_etcd_are_found() {
    use lock_testkit::servers::EtcdCluster;
    let cluster = EtcdCluster::builder().learner().start().await.unwrap();
    examine(cluster.url(), &[])
        .is(1)
        .says("warning", "voting members is 1, so locks survive the failure of 0", "add members")
        .says("warning", "is a learner", "promote")
        .lacks("cannot be used");
    let cluster = EtcdCluster::builder().members(3).start().await.unwrap();
    let healthy =
        examine(cluster.url(), &[]).says("fact", "is etcd 3.", "").lacks("cannot be used");
    healthy
        .says("fact", "voting members is 3, so locks survive the failure of 1", "")
        .lacks("learner");
    // Without its leader the cluster would be busy electing another.
    let follower = (cluster.leader().await.unwrap() + 1) % 3;
    cluster.kill(follower).unwrap();
    let dead = format!("{} cannot be used", cluster.address(follower).unwrap());
    examine(cluster.url(), &[]).is(1).says("warning", &dead, "start it");
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_of_an_ensemble_is_asked() {
    let ensemble = lock_testkit::servers::ZooKeeper::ensemble().await.unwrap();
    examine(ensemble.url(), &[])
        .is(0)
        .says("fact", ", leader", "")
        .says("fact", ", follower", "")
        .says("fact", "sessions, and with them locks, last for", "");
    let follower = (0..ensemble.len()).find(|at| *at != ensemble.leader().unwrap()).unwrap();
    ensemble.kill_one(follower).unwrap();
    let dead = format!("{} does not answer", ensemble.address(follower).unwrap());
    examine(ensemble.url(), &[]).is(1).says("warning", &dead, "start it");
}

#[cfg(feature = "redlock")]
mod redlock {
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
        examine(&url, &[])
            .is(69)
            .says("critical", "0 of 3 nodes vote, and 2 must", "wait for")
            .says("critical", "cannot be taken", "the other findings");
        let url = format!("{url}?lock_bootstrap=now");
        examine(&url, &[])
            .says("fact", "3 of 3 nodes vote", "")
            .says("fact", &format!("{} votes", nodes[1].address().unwrap()), "")
            .lacks("does not vote");
        nodes[1].restart(Data::Lose).await.unwrap();
        let restarted = format!("{} does not vote: ", nodes[1].address().unwrap());
        examine(&url, &[])
            .is(1)
            .says("fact", "2 of 3 nodes vote", "")
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
        recover(&["--yes", "--wait", "20s"]).is(0).printing("every node that answers votes\n");
        assert!(now().since(begun) > Duration::from_secs(2), "{:?}", now().since(begun));
        let next: u64 = run(&url).is(0).stdout.trim().parse().unwrap();
        assert!(next > fence, "{next} after {fence}");
    }
}

#[test]
fn other_stores_need_no_recovery() {
    Bench::new()
        .done(["recover", "--yes"])
        .is(78)
        .printing("")
        .saying(["never waits for an operator"]);
}
