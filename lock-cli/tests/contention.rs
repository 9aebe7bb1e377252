//! Taking turns, not getting the lock, and giving up.

mod common;

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use common::{Bench, SOON, events, finish, id, now, pause, read, send};
use rustix::process::Signal;
use sqlx::{Connection, SqliteConnection};

#[test]
fn two_runs_follow_one_another() {
    let bench = Bench::new();
    let script = "echo begin $DISTLOCK_FENCE >> log; sleep 0.4; echo end $DISTLOCK_FENCE >> log";
    let runs =
        [bench.hold("a", &[], script), bench.hold("a", &[], script), bench.hold("a", &[], script)];
    for run in runs {
        assert_eq!(finish(run, SOON).code, Some(0));
    }
    let log = read(&bench.path("log"));
    let lines: Vec<(&str, u64)> = log
        .lines()
        .map(|line| line.split_once(' ').expect("two words"))
        .map(|(word, fence)| (word, fence.parse().expect("a fence")))
        .collect();
    assert_eq!(lines.len(), 6, "{log}");
    for pair in lines.chunks(2) {
        assert_eq!((pair[0].0, pair[1].0, pair[0].1), ("begin", "end", pair[1].1), "{log}");
    }
    assert!(lines.windows(2).all(|pair| pair[0].1 <= pair[1].1), "fences rise: {log}");
    assert!(lines[1].1 < lines[2].1 && lines[3].1 < lines[4].1, "fences strictly rise: {log}");
}

#[test]
fn other_names_do_not_wait() {
    let bench = Bench::new();
    let holder = bench.hold("a", &[], "echo >ready; sleep 30");
    bench.line("ready");
    assert_eq!(bench.done(["run", "b", "-n", "--", "true"]).code, Some(0));
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
}

#[test]
fn nonblock_names_the_holder_within_a_second() {
    let bench = Bench::new();
    let holder =
        bench.hold("a", &["--label", "nightly job"], "echo $DISTLOCK_FENCE >fence; sleep 30");
    let fence = bench.line("fence");
    let start = now();
    let done = bench.done(["run", "a", "--nonblock", "--", "echo", "ran"]);
    let took = now().since(start);
    assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""), "{done:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    for word in
        ["\"a\" not acquired", "held by nightly job", "held for", &format!("fence {fence}"), "left"]
    {
        assert!(done.stderr.contains(word), "{word}: {done:?}");
    }
    assert_eq!(bench.done(["run", "a", "-n", "-E", "0", "--", "echo", "ran"]).code, Some(0));
    assert_eq!(
        bench.done(["run", "a", "-n", "--conflict-exit-code", "3", "--", "echo", "ran"]).code,
        Some(3)
    );
    let quiet = bench.done(["run", "a", "-n", "-q", "--", "echo", "ran"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(75), ""));
    let json = bench.done(["run", "a", "-n", "--json", "--", "echo", "ran"]);
    let event = &events(&json.stderr)[0];
    assert_eq!((json.code, event["event"].as_str()), (Some(75), Some("not_acquired")), "{json:?}");
    assert_eq!((event["schema"].as_i64(), event["name"].as_str()), (Some(1), Some("a")));
    assert_eq!(event["holder"]["label"], "nightly job");
    assert_eq!(event["holder"]["fence"].to_string(), fence);
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
}

#[test]
fn a_limited_wait_ends() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--label", "h"], "echo >ready; sleep 30");
    bench.line("ready");
    let start = now();
    let done = bench.done(["run", "a", "--wait", "800ms", "--", "echo", "ran"]);
    let took = now().since(start);
    assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""), "{done:?}");
    assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(4), "{took:?}");
    assert!(done.stderr.contains("waiting for \"a\", held by h"), "{done:?}");
    assert!(done.stderr.contains("not acquired after"), "{done:?}");
    assert_eq!(bench.held(), ["a"]);
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
    assert!(bench.held().is_empty());
}

/// The store takes the connection, and says nothing.
#[cfg(feature = "postgres")]
#[test]
fn a_limited_wait_counts_the_time_to_connect() {
    let bench = Bench::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let url = format!("postgres://u@{address}/d?sslmode=disable");
    let start = now();
    let done = bench.done(["run", "a", "--store", &url, "--wait", "1s", "--", "echo", "ran"]);
    let took = now().since(start);
    assert_eq!((done.code, done.stdout.as_str()), (Some(69), ""), "{done:?}");
    assert!(done.stderr.contains("did not answer within"), "{done:?}");
    // The store's own limit is 10 s.
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(7), "{took:?}");
}

#[test]
fn an_interrupted_wait_leaves_nothing_behind() {
    let bench = Bench::new();
    let holder = bench.hold("a", &[], "echo >ready; sleep 30");
    bench.line("ready");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiter = bench.hold("a", &["-v"], "echo ran");
        pause(Duration::from_millis(400));
        let start = now();
        send(id(&waiter), signal);
        let done = finish(waiter, SOON);
        assert_eq!((done.code, done.stdout.as_str()), (Some(code), ""), "{done:?}");
        // It takes longer if the signal comes while a question to the store is unanswered.
        assert!(now().since(start) < Duration::from_secs(8), "{done:?}");
        assert!(done.stderr.contains("the command was not started"), "{done:?}");
    }
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
    // A place in the line, or the lock itself, would be in the way of this one.
    let start = now();
    assert_eq!(bench.done(["run", "a", "-n", "--", "true"]).code, Some(0));
    assert!(now().since(start) < Duration::from_secs(2));
    assert!(bench.held().is_empty());
}

#[test]
fn the_command_gets_standard_input_its_arguments_and_the_facts() {
    let bench = Bench::new();
    let script = r#"cat; printf '<%s>' "$@"; echo; env | grep ^DISTLOCK_ | sort"#;
    let args = [
        "run", "order 42", "--ttl", "20s", "--", "sh", "-c", script, "sh", "a b", "", "$HOME",
        "-v", "--",
    ];
    let mut command = bench.distlock(args);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from standard input\n").unwrap();
    let done = finish(child, SOON);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    let lines: Vec<_> = done.stdout.lines().collect();
    assert_eq!(lines[..2], ["from standard input", "<a b><><$HOME><-v><-->"]);
    let value = |name: &str| {
        let start = format!("DISTLOCK_{name}=");
        lines
            .iter()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_else(|| panic!("{name}: {lines:?}"))
    };
    assert_eq!(value("NAME"), "order 42");
    assert_eq!(value("BACKEND"), "sqlite");
    assert_eq!(value("TTL_MS"), "20000");
    assert!(value("FENCE").parse::<u64>().unwrap() > 0);
    let owner = value("OWNER");
    assert!(owner.len() == 32 && owner.bytes().all(|b| b.is_ascii_hexdigit()), "{owner}");
    let until = value("VALID_UNTIL");
    assert!(until.ends_with('Z'), "{until}");
    let left = Duration::from_secs(20);
    let end = std::time::SystemTime::now() + left;
    let format = |time| humantime::format_rfc3339_seconds(time).to_string();
    assert!(until < format(end).as_str() && until > format(end - left).as_str(), "{until}");
}

#[test]
fn verbose_and_json_tell_the_same_story() {
    let bench = Bench::new();
    let done = bench.done(["run", "a", "-v", "--", "sh", "-c", "echo $DISTLOCK_FENCE; exit 3"]);
    assert_eq!(done.code, Some(3));
    let fence = done.stdout.trim();
    for word in ["acquired \"a\"", &format!("fence {fence}"), "exited with 3", "released \"a\""] {
        assert!(done.stderr.contains(word), "{word}: {done:?}");
    }
    let done = bench.done(["run", "a", "--json", "--", "sh", "-c", "echo $DISTLOCK_FENCE; exit 3"]);
    let events = events(&done.stderr);
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["acquired", "started", "ended", "released"]);
    assert!(events.iter().all(|event| event["schema"] == 1 && event["name"] == "a"));
    assert_eq!(events[0]["fence"].to_string(), done.stdout.trim());
    assert_eq!((events[0]["ttl_ms"].as_u64(), events[2]["code"].as_u64()), (Some(30_000), Some(3)));
    assert!(events[0]["valid_until"].as_str().unwrap().ends_with('Z'));
    let error = bench.done(["run", "", "--json", "--", "true"]);
    let event = &common::events(&error.stderr)[0];
    assert_eq!((event["event"].as_str(), event["exit_code"].as_i64()), (Some("error"), Some(64)));
}

#[test]
fn without_a_store_the_locks_are_in_the_state_folder() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let state = bench.path("state with blanks");
    let mut holder = bench.distlock(["run", "a", "--", "sh", "-c", "echo >ready; sleep 30"]);
    let holder = holder.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", &state).spawn().unwrap();
    bench.line("ready");
    let mut other = bench.distlock(["run", "a", "-n", "--", "true"]);
    let other = other.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", &state).spawn().unwrap();
    assert_eq!(finish(other, SOON).code, Some(75));
    let folder = state.join("distlock");
    assert!(folder.join("locks.db").is_file());
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
}

#[test]
fn a_second_signal_ends_the_clean_up_too() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = Bench::new();
    let holder = bench.hold("a", &[], "echo >ready; sleep 30");
    bench.line("ready");
    let waiter = bench.hold("a", &[], "echo ran");
    pause(Duration::from_millis(300));
    let options = format!("{}?mode=rw", bench.url());
    let frozen = runtime.block_on(async {
        let mut connection = SqliteConnection::connect(&options).await.unwrap();
        let freeze = "PRAGMA busy_timeout = 5000; BEGIN EXCLUSIVE";
        sqlx::raw_sql(freeze).execute(&mut connection).await.unwrap();
        connection
    });
    pause(Duration::from_millis(300));
    let start = now();
    send(id(&waiter), Signal::INT);
    pause(Duration::from_millis(200));
    send(id(&waiter), Signal::INT);
    let done = finish(waiter, SOON);
    assert_eq!((done.code, done.stdout.as_str()), (Some(130), ""), "{done:?}");
    assert!(now().since(start) < Duration::from_secs(2), "{:?}", now().since(start));
    runtime.block_on(frozen.close()).unwrap();
    send(id(&holder), Signal::TERM);
    assert_eq!(finish(holder, SOON).code, Some(143));
}
