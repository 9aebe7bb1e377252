//! Taking turns, not getting the lock, and giving up.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::bench::{Bench, Running, SOON, events, finish, id, now, pause, read, send};
use rustix::process::Signal;

#[test]
fn two_runs_follow_one_another() {
    let bench = Bench::new();
    let script = "echo begin $DISTLOCK_FENCE >> log; sleep 0.4; echo end $DISTLOCK_FENCE >> log";
    let runs =
        [bench.hold("a", &[], script), bench.hold("a", &[], script), bench.hold("a", &[], script)];
    for run in runs {
        finish(run, SOON).is(0);
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
    let holder = bench.holding("a", &[]);
    bench.done(["run", "b", "-n", "--", "true"]).is(0);
    holder.stop();
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
    assert!(took < Duration::from_secs(1), "{took:?}");
    let words = ["\"a\" not acquired", "held by nightly job", "held for", &fence, "left"];
    done.is(75).printing("").saying(words);
    bench.done(["run", "a", "-n", "-E", "0", "--", "echo", "ran"]).is(0);
    bench.done(["run", "a", "-n", "--conflict-exit-code", "3", "--", "echo", "ran"]).is(3);
    let quiet = bench.done(["run", "a", "-n", "-q", "--", "echo", "ran"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(75), ""));
    let json = bench.done(["run", "a", "-n", "--json", "--", "echo", "ran"]);
    let event = &events(&json.stderr)[0];
    assert_eq!((json.code, event["event"].as_str()), (Some(75), Some("not-acquired")), "{json:?}");
    assert_eq!((event["schema"].as_i64(), event["name"].as_str()), (Some(1), Some("a")));
    assert_eq!(event["holder"]["label"], "nightly job");
    assert_eq!(event["holder"]["fence"].to_string(), fence);
    holder.stop();
}

#[test]
fn a_limited_wait_ends() {
    let bench = Bench::new();
    let holder = bench.holding("a", &["--label", "h"]);
    let start = now();
    let done = bench.done(["run", "a", "--wait", "800ms", "--", "echo", "ran"]);
    let took = now().since(start);
    assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(4), "{took:?}");
    let words = ["waiting for \"a\", held by h", "not acquired after"];
    done.is(75).printing("").saying(words);
    assert_eq!(bench.held(), ["a"]);
    holder.stop();
    assert!(bench.held().is_empty());
}

#[test]
fn an_interrupted_wait_leaves_nothing_behind() {
    let bench = Bench::new();
    let holder = bench.holding("a", &[]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiter = bench.hold("a", &["-v"], "echo ran");
        pause(Duration::from_millis(400));
        let start = now();
        send(id(&waiter), signal);
        finish(waiter, SOON).is(code).printing("").saying(["nothing was started"]);
        // It takes longer if the signal comes while a request to the store is unanswered.
        assert!(now().since(start) < Duration::from_secs(8), "{:?}", now().since(start));
    }
    holder.stop();
    // A leftover place in the queue, or the lock itself, would block this one.
    let start = now();
    bench.done(["run", "a", "-n", "--", "true"]).is(0);
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
fn a_line_for_the_shell_takes_the_place_of_a_command() {
    let bench = Bench::new();
    bench.done(["run", "a", "-c", "echo $DISTLOCK_NAME | tr a b; exit 5"]).is(5).printing("b\n");
    bench.done(["run", "a", "-c", "true", "--", "echo", "ran"]).is(64).printing("");
}

#[test]
fn a_lock_can_be_kept_for_longer_than_the_command() {
    let bench = Bench::new();
    let start = now();
    let options = ["--min-hold", "4s", "--ttl", "900ms"];
    let run = bench.hold("a", &options, "echo >ready; exit 4");
    bench.line("ready");
    pause(Duration::from_millis(1000));
    bench.done(["run", "a", "-n", "--", "echo", "ran"]).is(75).printing("");
    finish(run, SOON).is(4);
    assert!(now().since(start) >= Duration::from_secs(4));
    assert!(bench.held().is_empty());

    // A signal ends that wait, and nobody may take the lock all the same.
    let run = bench.hold("signalled", &["--min-hold", "30s", "--json"], "echo >done; exit 4");
    bench.line("done");
    pause(Duration::from_millis(500));
    send(id(&run), Signal::TERM);
    let done = finish(run, SOON).is(4).saying(["\"holding\"", "\"left\""]);
    assert!(!done.stderr.contains("\"released\""), "{done:?}");
    assert_eq!(bench.held(), ["signalled"]);
    // So does one that the command has got before.
    for (name, signal) in [("term", Signal::TERM), ("int", Signal::INT), ("quit", Signal::QUIT)] {
        let script = format!("echo >{name}; exec sleep 60");
        let run = bench.hold(name, &["--min-hold", "30s", "--json"], &script);
        bench.line(name);
        send(id(&run), signal);
        let done = finish(run, SOON).is(128 + signal.as_raw()).saying(["\"left\""]);
        assert!(!done.stderr.contains("\"holding\""), "{done:?}");
        assert!(bench.is_held(name));
    }
    // One that may ask the command for something else does not.
    let script = "trap 'exit 4' HUP; echo >hup; while :; do sleep 0.02; done";
    let run = bench.hold("hup", &["--min-hold", "2s", "--json"], script);
    bench.line("hup");
    send(id(&run), Signal::HUP);
    finish(run, SOON).is(4).saying(["\"holding\"", "\"released\""]);
    // Taken away meanwhile: another machine may now run the job again.
    let run = bench.hold("a", &["--min-hold", "30s", "--ttl", "900ms"], "echo >over; exit 4");
    bench.line("over");
    pause(Duration::from_millis(500));
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    finish(run, SOON).is(79).saying(["before --min-hold had passed"]);
    // Not renewed, since the store is gone.
    let options = ["--min-hold", "30s", "--ttl", "900ms", "--quiet"];
    let run = bench.hold("a", &options, "echo >gone; exit 0");
    bench.line("gone");
    let frozen = bench.freeze();
    finish(run, SOON).is(79).saying(["before --min-hold had passed"]);
    drop(frozen);
    // A command that did not start does not keep the lock.
    bench.done(["run", "a", "--min-hold", "30s", "--", "no-such-command-here"]).is(127);
    bench.done(["run", "a", "-n", "--", "echo", "ran"]).is(0).printing("ran\n");
    // The command may have less time than the lock is kept.
    let both = ["run", "a", "--min-hold", "2s", "--max-hold", "1s", "--", "sh", "-c"];
    let start = now();
    bench.done([&both[..], &["exit 4"]].concat()).is(4);
    assert!(now().since(start) >= Duration::from_secs(2));
    bench.done([&both[..], &["sleep 30"]].concat()).is(79).saying(["--max-hold was reached"]);
}

/// Each kind of lock, and several, by the option and by the URL of the store.
#[test]
fn whatever_was_taken_is_kept_for_longer() {
    let bench = Bench::new();
    let kept = [("--min-hold=1500ms", ""), ("-q", "?lock_min_hold=1500ms")];
    for (option, parameter) in kept {
        for what in [&["a", "b"][..], &["c", "--permits=1"], &["d", "--read"], &["e", "--write"]] {
            let (url, start) = (format!("{}{parameter}", bench.url()), now());
            let options = [option, "--store", &url, "--", "sh", "-c", "exit 4"];
            bench.done([&["run"][..], what, &options].concat()).is(4);
            assert!(now().since(start) >= Duration::from_millis(1500), "{what:?} {option}");
            assert!(bench.held().is_empty(), "{what:?} {option}");
        }
    }
    // One of two is busy: the other one is not kept. Nor is it for a command that does not start.
    let holder = bench.holding("b", &[]);
    let start = now();
    let url = format!("{}?lock_min_hold=60s", bench.url());
    bench.done(["run", "a", "b", "-n", "--store", &url, "--", "true"]).is(75);
    bench.done(["run", "a", "--store", &url, "--", "no-such-command-here"]).is(127);
    bench.done(["doctor", "--store", &url]);
    assert!(now().since(start) < Duration::from_secs(50));
    assert_eq!(bench.held(), ["b"]);
    holder.stop();
}

/// Killed, it leaves its lock to the ttl and the delay.
#[test]
fn others_are_kept_away_after_a_loss() {
    let bench = Bench::new();
    let url = format!("{}?lock_delay=60s", bench.url());
    let by_the_url = ["--ttl=20s", "--store", &url];
    for (name, options) in [("a", &["--ttl=20s", "--lock-delay=60s"][..]), ("b", &by_the_url[..])] {
        let mut run = bench.hold(name, options, "echo $DISTLOCK_TTL_MS >ttl; exec sleep 30");
        assert_eq!(bench.line("ttl"), "20000", "what the command may count on");
        std::fs::remove_file(bench.path("ttl")).unwrap();
        run.kill().unwrap();
        let left = bench.status(name)["holder"]["expires_in_ms"].as_u64().unwrap();
        assert!((40_000..=81_000).contains(&left), "{name}: {left}");
    }
    let done = bench.done(["run", "c", "--ttl=1s", "--lock-delay=11s", "--", "echo", "ran"]).is(64);
    done.printing("").saying(["lock_delay of 11s"]);
    bench.done(["run", "gpu", "--permits=2", "--lock-delay=1s", "--", "echo", "ran"]).is(0);
}

#[test]
fn verbose_and_json_tell_the_same_story() {
    let bench = Bench::new();
    let done =
        bench.done(["run", "a", "-v", "--", "sh", "-c", "echo $DISTLOCK_FENCE; exit 3"]).is(3);
    let fence = format!("fence {}", done.stdout.trim());
    done.saying(["acquired \"a\"", &fence, "exited with 3", "released \"a\""]);
    let done = bench.done(["run", "a", "--json", "--", "sh", "-c", "echo $DISTLOCK_FENCE; exit 3"]);
    let told = events(&done.stderr);
    let names: Vec<_> = told.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["acquired", "started", "ended", "released"]);
    assert!(told.iter().all(|event| event["schema"] == 1 && event["name"] == "a"));
    assert_eq!(told[0]["fence"].to_string(), done.stdout.trim());
    assert_eq!((told[0]["ttl_ms"].as_u64(), told[2]["code"].as_u64()), (Some(30_000), Some(3)));
    assert!(told[0]["valid_until"].as_str().unwrap().ends_with('Z'));
    let error = bench.done(["run", "", "--json", "--", "true"]);
    let event = &events(&error.stderr)[0];
    assert_eq!((event["event"].as_str(), event["exit_code"].as_i64()), (Some("error"), Some(64)));
}

#[test]
fn without_a_store_the_locks_are_in_the_state_folder() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let state = bench.path("state with blanks");
    let start = |args: &[&str]| -> Running {
        let mut command = bench.distlock(args);
        let command = command.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", &state);
        command.spawn().unwrap().into()
    };
    let holder = start(&["run", "a", "--", "sh", "-c", "echo >ready; sleep 30"]);
    bench.line("ready");
    finish(start(&["run", "a", "-n", "--", "true"]), SOON).is(75);
    let folder = state.join("distlock");
    assert!(folder.join("locks.db").is_file());
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    holder.stop();
}

#[test]
fn a_second_signal_ends_the_clean_up_too() {
    let bench = Bench::new();
    let holder = bench.holding("a", &[]);
    let waiter = bench.hold("a", &[], "echo ran");
    pause(Duration::from_millis(300));
    let frozen = bench.freeze();
    pause(Duration::from_millis(300));
    let start = now();
    send(id(&waiter), Signal::INT);
    pause(Duration::from_millis(200));
    send(id(&waiter), Signal::INT);
    finish(waiter, SOON).is(130).printing("");
    assert!(now().since(start) < Duration::from_secs(2), "{:?}", now().since(start));
    drop(frozen);
    holder.stop();
}

#[test]
fn the_command_does_not_inherit_a_password_or_a_lease() {
    let bench = Bench::new();
    let file = bench.path("url");
    std::fs::write(&file, format!("{}\n", bench.url())).unwrap();
    let script = "env | grep -c -e '^DISTLOCK_STORE=' -e '^DISTLOCK_LEASE='; distlock list";
    let run = |url: Option<&str>, options: &[&str]| {
        let args = [&["run", "a"][..], options, &["--", "sh", "-c", script]].concat();
        let mut command = bench.distlock(args);
        command.env("DISTLOCK_LEASE", "distlock1.x").env_remove("DISTLOCK_STORE");
        match url {
            Some(url) => command.env("DISTLOCK_STORE", url),
            None => command.env("DISTLOCK_STORE_FILE", &file),
        };
        finish(command.spawn().unwrap(), SOON)
    };
    // A URL that has what one with a password has: an `@`, or the word of a parameter.
    for folder in ["a@b", "&PassWord=x"] {
        std::fs::create_dir(bench.path(folder)).unwrap();
        let secret = format!("sqlite://{}/locks.db", bench.path(folder).display());
        // What the command cannot see does not become the default store.
        run(Some(&secret), &[])
            .is(78)
            .printing("0\n")
            .saying(["did not pass its own store", "--pass-store"]);
        let shown = run(Some(&secret), &["--pass-store"]).is(0).stdout;
        assert!(shown.starts_with("2\n") && shown.contains("\na "), "{shown}");
    }
    // Where there is no password, or only a file's name, the command has the store.
    for url in [Some(bench.url()), None] {
        let shown = run(url.as_deref(), &[]).is(0).stdout;
        let seen = if url.is_some() { "1\n" } else { "0\n" };
        assert!(shown.starts_with(seen) && shown.contains("\na "), "{shown}");
    }
}

/// Nor has it another one that a variable names.
#[test]
fn the_command_has_the_store_of_an_option_only_if_it_is_passed_on() {
    let bench = Bench::new();
    let (file, other) = (bench.path("url"), format!("sqlite://{}", bench.path("other").display()));
    std::fs::write(&file, format!("{}\n", bench.url())).unwrap();
    std::fs::write(bench.path("other-url"), &other).unwrap();
    let (url, file) =
        (format!("--store={}", bench.url()), format!("--store-file={}", file.display()));
    let variables =
        [("DISTLOCK_STORE", ""), ("DISTLOCK_STORE", &*other), ("DISTLOCK_STORE_FILE", "other-url")];
    for option in [&url, &file] {
        for (name, value) in variables {
            let run = |options: &[&str]| {
                let args =
                    [&["run", "a", option][..], options, &["--", "distlock", "list"]].concat();
                let mut command = bench.distlock(args);
                command.env_remove("DISTLOCK_STORE").env(name, value);
                finish(command.spawn().unwrap(), SOON)
            };
            run(&[]).is(78).saying(["did not pass its own store", "--pass-store"]);
            let shown = run(&["--pass-store"]).is(0).stdout;
            assert!(shown.contains("\na "), "{name}={value}: {shown}");
        }
    }
}

#[test]
fn the_store_can_come_from_a_file() {
    let bench = Bench::new();
    let file = bench.path("url");
    std::fs::write(&file, format!("{}\n", bench.url())).unwrap();
    let option = format!("--store-file={}", file.display());
    bench.done(["run", "a", &option, "--pass-store", "--", "distlock", "status", "a", "-q"]).is(0);
    std::fs::write(&file, "redis://:secret@[\n").unwrap();
    let done = bench.done(["list", &option]).is(78).saying(["--store-file"]);
    assert!(!done.stderr.contains("secret"), "{done:?}");
    bench.done(["list", &option, "--store", "memory://"]).is(64);
}
