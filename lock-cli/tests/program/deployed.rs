//! The files of the guide for services and for Kubernetes: the command lines in them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::bench::{Bench, PROGRAM, Running, SOON, finish, pause, read, send, until};
use crate::one_job::{INSTALLED, example, exec_start};

/// A folder with a store, and with the programs that the files start.
fn bench(programs: &[&str], script: &str) -> Bench {
    let bench = Bench::new();
    for program in programs {
        let path = bench.path(program);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    bench
}

/// A machine on which systemd starts the unit of one active replica.
fn machine(bench: &Bench) -> Running {
    let line = exec_start("one_replica/scheduler.service");
    let mut words = line.split(' ');
    assert_eq!(words.next(), Some(INSTALLED));
    let here = bench.path("scheduler").display().to_string();
    let words =
        words.map(|word| if word == "/usr/local/bin/scheduler" { here.as_str() } else { word });
    bench.distlock(words).spawn().expect("the program starts").into()
}

#[test]
fn the_next_machine_starts_the_scheduler_when_it_has_ended() {
    let bench = bench(&["scheduler"], "echo $$ >>active; exec sleep 60");
    let active = || read(&bench.path("active"));
    let first = machine(&bench);
    let leader = bench.pid("active");
    let second = machine(&bench);
    pause(Duration::from_secs(1));
    assert_eq!(active().lines().count(), 1);
    // The scheduler crashes.
    send(leader, Signal::KILL);
    finish(first, SOON).is(128 + Signal::KILL.as_raw());
    until("the second machine is active", SOON, || active().lines().count() == 2);
    second.stop();
}

/// What the container of a manifest starts: `args` is JSON, which is YAML, too.
fn args(file: &str) -> Vec<String> {
    let manifest = example(file);
    assert!(manifest.contains(r#"command: ["distlock"]"#), "{file}");
    let line = manifest.lines().find_map(|line| line.trim_start().strip_prefix("args: "));
    serde_json::from_str(line.expect("a line")).expect("JSON")
}

/// The store's URL is in the file that the manifests name by the variable.
#[test]
fn the_containers_start_what_they_should() {
    let bench = bench(&["scheduler", "nightly-report"], "echo $0 ran with $DISTLOCK_FENCE");
    fs::write(bench.path("url"), format!("{}\n", bench.url())).expect("a file");
    for file in ["kubernetes/deployment.yaml", "kubernetes/cronjob.yaml"] {
        let named = example(file).contains("{ name: DISTLOCK_STORE_FILE, value: /run/locks/url }");
        assert!(named, "{file}");
        let mut container = Command::new(PROGRAM);
        bench.prepare(container.args(args(file)));
        let path = container.get_envs().find_map(|(name, value)| value.filter(|_| name == "PATH"));
        let path = format!("{}:{}", bench.path("").display(), path.expect("a path").display());
        container.env_remove("DISTLOCK_STORE").env("DISTLOCK_STORE_FILE", bench.path("url"));
        let done = finish(container.env("PATH", path).spawn().expect("it starts"), SOON).is(0);
        assert!(done.stdout.contains("ran with "), "{done:?}");
    }
}
