//! `doctor`, on stores with something wrong.

#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;

use std::time::Duration;

use serde_json::Value;

use crate::bench::{Bench, Done, finish};
use crate::terminal::Terminal;

/// A cluster may take long to be there on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// What `doctor` found.
struct Found {
    done: Done,
    report: Value,
}

/// Runs it on the store at `url`, with further arguments.
fn examine(url: &str, args: &[&str]) -> Found {
    let args = [&["doctor", "--json", "--store", url][..], args].concat();
    let done = finish(Bench::new().distlock(args).spawn().expect("the program starts"), LIMIT);
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
                && text.is_empty() == (severity == "info")
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
    assert_eq!(found.report["worst"], "info");
    assert_eq!(found.report["backend"], "sqlite");
    found
        .says("info", "a file of SQLite", "")
        .says("info", "was taken in", "")
        .says("info", "it responds in", "")
        .says("info", "it keeps its locks through a restart", "");
    assert!(bench.held().is_empty());
    let text = bench.done(["doctor"]).is(0);
    assert!(text.stdout.lines().all(|line| line.starts_with("info      ")), "{text:?}");
    // A lock that somebody holds is not touched.
    let holder = bench.holding("a", &["--label", "night shift"]);
    examine(&bench.url(), &["a"]).is(0).says("info", "\"a\" is held by night shift", "");
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
    assert!(done.stdout.contains("\u{1b}[2minfo"), "{done:?}");
    for plain in ["export TERM=xterm NO_COLOR=1", "export TERM=dumb", "unset TERM"] {
        let done = Terminal::new(&bench, &format!("{plain}; exec distlock doctor")).done().is(0);
        assert!(
            done.stdout.contains("info") && !done.stdout.contains('\u{1b}'),
            "{plain}: {done:?}"
        );
    }
    assert!(!bench.done(["doctor"]).stdout.contains('\u{1b}'));
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
        .says("info", "is PostgreSQL", "")
        .says("warning", "statement_timeout is 700 ms", "ALTER ROLE")
        .says("warning", "idle_session_timeout is 60000 ms", "= 0")
        .says("warning", "fsync is off", "fsync to on")
        .lacks("pooler");
    let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 8).await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
    examine(&url, &[]).is(1).says("warning", "a pooler before", "session mode");
}

/// Texts of a first day.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgres_refuses_is_told_with_what_to_do() {
    let server = lock_testkit::servers::PostgresServer::start().await.unwrap();
    let as_user = |user: &str| server.url().replace("postgres@", &format!("{user}@"));
    let bench = Bench::new();
    let stranger = bench.done(["doctor", "--store", &as_user("stranger")]).is(69);
    assert!(stranger.stdout.contains("role \"stranger\" does not exist\n"), "{stranger:?}");
    // The statement can be copied line by line, and the cause is on a line of its own.
    let missing = format!("{}?lock_create_table=false", server.url());
    let refused = bench.done(["status", "a", "--store", &missing]).is(78);
    let mut lines = refused.stderr.lines();
    assert!(lines.any(|line| line.starts_with("    CREATE TABLE IF NOT EXISTS")), "{refused:?}");
    assert!(!refused.stderr.contains("\\n"), "{refused:?}");
    let (server, _) = server.url().rsplit_once('/').unwrap();
    examine(&format!("{server}/nowhere"), &[]).says(
        "critical",
        "there is no such database: create it",
        "--store",
    );
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
        .says("info", "is MariaDB 1", "")
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
        examine(cluster.url(), &[]).says("info", "is etcd 3.", "").lacks("cannot be used");
    healthy
        .says("info", "voting members is 3, so locks survive the failure of 1", "")
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
    let url = format!("{}?lock_connect_timeout=30s", ensemble.url());
    examine(&url, &[]).is(0).says("info", ", leader", "").says("info", ", follower", "").says(
        "info",
        "sessions, and with them locks, last for",
        "",
    );
    let follower = (0..ensemble.len()).find(|at| *at != ensemble.leader().unwrap()).unwrap();
    ensemble.kill_one(follower).unwrap();
    let dead = format!("{} does not answer", ensemble.address(follower).unwrap());
    examine(&url, &[]).is(1).says("warning", &dead, "start it");
}

#[test]
fn other_stores_need_no_recovery() {
    Bench::new()
        .done(["recover", "--yes"])
        .is(78)
        .printing("")
        .saying(["never waits for an operator"]);
}
