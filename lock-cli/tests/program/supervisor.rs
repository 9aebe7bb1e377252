//! The supervisor alone, with the test in place of `run`.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, Running, SOON, finish, id, is_alive, now, until};

struct Supervisor {
    child: Running,
    orders: UnixStream,
    reports: BufReader<UnixStream>,
}

/// The thread that starts it must end last: the parent-death signal is tied to threads.
fn start(bench: &Bench, script: &str) -> Supervisor {
    let socket = format!("lock-supervisor-test-{}", now().as_nanos());
    let address =
        SocketAddr::from_abstract_name(&socket).expect("the supervisor listens and answers");
    let listener = UnixListener::bind_addr(&address).expect("the supervisor listens and answers");
    let parent = std::process::id().to_string();
    let args = ["supervise", "--parent", &parent, "--socket", &socket, "--signal", "15"];
    let more = ["--kill-after-ns", "300000000", "--", "sh", "-c", script];
    let child = bench
        .distlock([&args[..], &more].concat())
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
        self.order(&json!({"lease": {"ask_at": ask, "kill_at": kill}}));
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
    let mut supervisor = start(&bench, "echo ran >ran");
    supervisor.order(&json!({"lease": {"ask_at": 1, "kill_at": 1}}));
    assert_eq!(supervisor.report(), "too_late");
    finish(supervisor.child, SOON).is(0);
    assert!(!bench.path("ran").exists());
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
    assert_eq!(finish(supervisor.child, SOON).code, Some(-9), "with its group");
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
    assert_eq!(finish(supervisor.child, SOON).code, Some(-9), "with its group");
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
