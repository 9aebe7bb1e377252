//! The supervisor alone, with the test in place of `run`.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Running, SOON, finish, id, is_alive, now, send, until};
use rustix::process::Signal;

struct Supervisor {
    child: Running,
    orders: UnixStream,
    reports: BufReader<UnixStream>,
}

/// The thread that starts it must end last: the parent-death signal is tied to threads.
fn start(bench: &Bench, script: &str) -> Supervisor {
    start_with(bench, &[], script)
}

fn start_with(bench: &Bench, options: &[&str], script: &str) -> Supervisor {
    let socket = format!("lock-supervisor-test-{}", now().as_nanos());
    let address =
        SocketAddr::from_abstract_name(&socket).expect("the supervisor listens and answers");
    let listener = UnixListener::bind_addr(&address).expect("the supervisor listens and answers");
    let parent = std::process::id().to_string();
    let args = ["supervise", "--parent", &parent, "--socket", &socket, "--signal", "15"];
    let more = ["--kill-after-ns", "300000000", "--", "sh", "-c", script];
    let child = bench
        .distlock([&args[..], options, &more].concat())
        .spawn()
        .expect("the supervisor listens and answers");
    let (orders, _) = listener.accept().expect("the supervisor listens and answers");
    let reports = BufReader::new(orders.try_clone().expect("the supervisor listens and answers"));
    Supervisor { child: child.into(), orders, reports }
}

impl Supervisor {
    /// Orders it to ask after `ask`, and to kill after `kill`.
    fn lease(&mut self, ask: Duration, kill: Duration) {
        let now = now();
        let (ask, kill) = ((now + ask).as_nanos(), (now + kill).as_nanos());
        self.order(&json!({"lease": {"start_by": ask, "ask_at": ask, "kill_at": kill}}));
    }

    fn order(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").expect("the supervisor listens and answers");
    }

    fn report(&mut self) -> Value {
        let mut line = String::new();
        self.reports.read_line(&mut line).expect("the supervisor listens and answers");
        serde_json::from_str(&line).expect("a line of JSON")
    }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_lease_that_is_over_starts_nothing() {
    let bench = Bench::new();
    // Also of a command that would go on without one.
    for end in [1, u64::MAX] {
        let mut supervisor = start(&bench, "echo ran >ran");
        supervisor.order(&json!({"lease": {"start_by": 1, "ask_at": end, "kill_at": end}}));
        assert_eq!(supervisor.report(), "too_late");
        finish(supervisor.child, SOON).is(0);
        assert!(!bench.path("ran").exists());
    }
}

/// From the terminal to the whole group, when the command was not there to receive it.
#[test]
fn a_signal_that_came_before_the_command_is_passed_on() {
    let bench = Bench::new();
    let script = "echo $$ >command; exec sleep 60";
    let mut supervisor = start_with(&bench, &["--shared-group"], script);
    send(id(&supervisor.child), Signal::INT);
    supervisor.lease(LONG, LONG);
    supervisor.order(&json!({"signal": Signal::INT.as_raw()}));
    let started = supervisor.report();
    assert!(started["started"].is_i64(), "{started}");
    assert_eq!(supervisor.report(), json!({"ended": {"signaled": 2}}));
    finish(supervisor.child, SOON).is(0);
}

#[test]
fn a_closed_socket_is_the_end_of_the_command() {
    let bench = Bench::new();
    let mut supervisor = start(&bench, "trap '' TERM; echo $$ >command; sleep 60");
    supervisor.lease(LONG, LONG);
    let command = bench.pid("command");
    assert_eq!(supervisor.report(), json!({"started": command}));
    drop((supervisor.orders, supervisor.reports));
    until("the command is dead", Duration::from_secs(1), || !is_alive(command));
    assert_eq!(finish(supervisor.child, SOON).signal, Some(9), "with its group");
}

#[test]
fn it_keeps_the_deadline_alone_and_moves_it_with_the_lease() {
    let bench = Bench::new();
    let mut supervisor = start(&bench, "trap '' TERM; echo $$ >command; sleep 60");
    let begin = now();
    supervisor.lease(Duration::from_millis(500), Duration::from_millis(700));
    let command = bench.pid("command");
    supervisor.report();
    supervisor.lease(Duration::from_millis(1500), Duration::from_millis(1700));
    assert_eq!(supervisor.report(), "stopping");
    let asked = now().since(begin);
    let killed = until("the command is dead", SOON, || !is_alive(command)).since(begin);
    assert!(asked >= Duration::from_millis(1500), "{asked:?}");
    assert!(
        killed >= Duration::from_millis(1700) && killed < Duration::from_millis(2700),
        "{killed:?}"
    );
    assert_eq!(supervisor.report(), json!({"ended": {"signaled": 9}}));
    assert_eq!(finish(supervisor.child, SOON).signal, Some(9), "with its group");
}

#[test]
fn what_it_does_not_understand_is_no_order_to_go_on() {
    let bench = Bench::new();
    let mut supervisor = start(&bench, "echo $$ >command; sleep 60");
    supervisor.lease(LONG, LONG);
    let command = bench.pid("command");
    supervisor.order(&json!({"lease": 1}));
    until("the command is dead", Duration::from_secs(1), || !is_alive(command));
    let group = id(&supervisor.child);
    finish(supervisor.child, SOON);
    assert!(!is_alive(group));
}
