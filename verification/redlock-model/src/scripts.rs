//! The node of the model beside the scripts of the product, on a real Redis: the same random requests to both. What
//! each answers, what is there afterwards, and what a look sees of it, is the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lock_testkit::fuzz::Chance;
use lock_testkit::servers::RedisServer;
use redis::{Connection, FromRedisValue, Script, Value};

use crate::contender::NodeRequest;
use crate::node::{Node, NodeRules};
use crate::rules::{AnswerBrief, FenceBlock, NodeView, VoteView};

const STEPS: usize = 10_000;
/// The shortest ttl in ms, and how much longer that of each later call is: nothing expires by itself, and the time
/// that is left tells by which call it was set.
const TTL: i64 = 600_000;
const LONGER: i64 = 100_000;
/// How far ahead of the clock a proposal may be, in µs.
const LEAD: u32 = 10_000_000;
/// One of so many calls: a request of an earlier one may be late.
const CALLS: usize = 5;
/// The fences of a block: a claim asks for the same number each time.
const FENCES: [u32; 2] = [1, 2];

/// A step of the test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Of a client, in this call.
    Request((u8, u8), NodeRequest),
    /// The lock expires.
    Expires,
    /// The node loses its data, and begins to wait.
    Flushed,
    /// The wait ends with this seed, if it was the last one that began.
    Admitted { is_late: bool, seed: u8 },
}

/// What an observer sees of a node.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    holder: Option<(u8, u8)>,
    /// Of the lock, or of the node where nobody holds it.
    counter: u64,
    mark: u64,
    adopted: u64,
    /// The call by which the lock lasts; 0 where nobody holds it.
    stamp: i64,
    votes: bool,
}

struct Real {
    _server: RedisServer,
    connection: Connection,
    scripts: Scripts,
    process: String,
    fences: u32,
    flushes: u32,
}

struct Scripts {
    acquire: Script,
    raise: Script,
    renew: Script,
    release: Script,
    look: Script,
    begin: Script,
    admit: Script,
}

impl Scripts {
    fn new() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../lock-redis/src/redlock/quorum/scripts");
        let list = fs::read_to_string(folder.join("mod.rs")).unwrap();
        // Of the files that `lock-redis` lists for it.
        let script = |name: &str| {
            let mut lines = list.lines().map(|line| line.trim().trim_end_matches(';'));
            let files =
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = ")).unwrap();
            let file = |file: &str| folder.join(file.trim_matches('"')).with_extension("lua");
            let files = files.split(' ').map(|name| fs::read_to_string(file(name)).unwrap());
            Script::new(&files.collect::<Vec<_>>().join("\n"))
        };
        Self {
            acquire: script("ACQUIRE_VOTE"),
            raise: script("RAISE_VOTE"),
            renew: script("RENEW_VOTE"),
            release: script("RELEASE_VOTE"),
            look: script("LOOK"),
            begin: script("BEGIN"),
            admit: script("ADMIT"),
        }
    }
}

const NODE: &str = "node";
const LOCK: &str = "lock";
const WAITERS: &str = "waiters";
const QUORUM: &str = "q";

fn owner(client: u8) -> String {
    char::from(b'a' + client).to_string().repeat(32)
}

/// An empty text stands for none.
fn or_none(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

impl Real {
    async fn start(fences: u32) -> Self {
        let server = RedisServer::builder().start().await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let info: String = redis::cmd("INFO").query(&mut connection).unwrap();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let process = [&field("run_id:")[..20], &field("master_replid:")[..20]].concat();
        let scripts = Scripts::new();
        let mut real = Self { _server: server, connection, scripts, process, fences, flushes: 0 };
        let process = real.process.clone();
        let admitted = ["run_id", &process, "state", "admitted", "quorum", QUORUM];
        real.run::<()>("HSET", &[&[NODE], &admitted[..]].concat());
        real
    }

    fn run<T: FromRedisValue>(&mut self, command: &str, arguments: &[&str]) -> T {
        redis::cmd(command).arg(arguments).query(&mut self.connection).unwrap()
    }

    fn carry_out(&mut self, (client, stamp): (u8, u8), request: NodeRequest) -> AnswerBrief {
        let (scripts, owner, fences) = (&self.scripts, owner(client), self.fences.to_string());
        let ttl = TTL + LONGER * i64::from(stamp);
        let mut call = match request {
            NodeRequest::Acquire { .. } => scripts.acquire.prepare_invoke(),
            NodeRequest::Raise { .. } => scripts.raise.prepare_invoke(),
            NodeRequest::Renew { .. } => scripts.renew.prepare_invoke(),
            NodeRequest::Release { .. } => scripts.release.prepare_invoke(),
        };
        if let NodeRequest::Release { attempt, fence, .. } = request {
            call.key(LOCK).key(WAITERS).arg(owner).arg(or_none(attempt.map(u64::from)));
            call.arg("0").arg("").arg(or_none(fence)).arg(fences);
            let freed: u64 = call.invoke(&mut self.connection).unwrap();
            return AnswerBrief::Freed(freed == 1);
        }
        call.key(NODE).key(LOCK).arg(QUORUM);
        match request {
            NodeRequest::Acquire { attempt, proposal, fences, .. } => {
                call.key(WAITERS).arg(owner).arg(attempt).arg(ttl).arg(proposal);
                call.arg("").arg("").arg("").arg(fences).arg(LEAD);
            }
            NodeRequest::Raise { value, .. } => {
                call.arg(owner).arg(value);
            }
            NodeRequest::Renew { fence, adopt, prolongs, .. } => {
                call.arg("").arg(owner).arg(or_none(fence)).arg(fences).arg(or_none(adopt));
                call.arg(if prolongs { ttl } else { 0 });
            }
            NodeRequest::Release { .. } => {}
        }
        call.arg(&self.process);
        let mut answer: Vec<Value> = call.invoke(&mut self.connection).unwrap();
        if let NodeRequest::Renew { .. } = request {
            answer = redis::from_redis_value(answer.remove(0)).unwrap();
        }
        let number = |at: usize| redis::from_redis_value::<i64>(answer[at].clone()).unwrap();
        let counter = || u64::try_from(number(1)).unwrap();
        match number(0) {
            1 => AnswerBrief::Mine { counter: counter() },
            2 => AnswerBrief::Unproven { counter: counter() },
            0 => AnswerBrief::NotMine,
            -1 => AnswerBrief::NoVote,
            other => panic!("{request:?} is answered {other}"),
        }
    }

    /// The answer to a request, or whether an admission is carried out.
    fn step(&mut self, step: Step) -> Option<AnswerBrief> {
        let nonce = |number: u32| format!("nonce {number}");
        match step {
            Step::Request(call, request) => return Some(self.carry_out(call, request)),
            Step::Expires => self.run::<()>("DEL", &[LOCK]),
            Step::Flushed => {
                self.run::<()>("FLUSHALL", &[]);
                self.flushes += 1;
                let mut begin = self.scripts.begin.key(NODE);
                begin.arg("quarantine").arg(nonce(self.flushes)).arg(QUORUM).arg("boot");
                begin.arg(&self.process).arg(self.flushes).arg("");
                assert_eq!(begin.invoke::<u64>(&mut self.connection).unwrap(), 1, "{step:?}");
            }
            Step::Admitted { is_late, seed } => {
                let nonce = nonce(self.flushes - u32::from(is_late));
                let mut admit = self.scripts.admit.key(NODE);
                admit.arg(nonce).arg(seed).arg(0).arg("boot");
                let admitted: u64 = admit.invoke(&mut self.connection).unwrap();
                assert_eq!(admitted == 1, !is_late, "{step:?}");
            }
        }
        None
    }

    fn seen(&mut self) -> Seen {
        let held: Option<String> = self.run("GET", &[LOCK]);
        let (mark, state): (Option<u64>, String) = self.run("HMGET", &[NODE, "mark", "state"]);
        let mark = mark.unwrap_or(0);
        let votes = state == "admitted";
        let Some(held) = held else {
            return Seen { holder: None, counter: mark, mark, adopted: 0, stamp: 0, votes };
        };
        let vote: Vec<_> = held.split(['.', '|']).collect();
        Seen {
            holder: Some((vote[0].as_bytes()[0] - b'a', vote[1].parse().unwrap())),
            counter: vote[2].parse().unwrap(),
            mark,
            adopted: vote[5].parse().unwrap_or(0),
            stamp: self.stamp(),
            votes,
        }
    }

    /// What the node shows to a look, if it votes.
    fn look(&mut self) -> Option<NodeView<u8>> {
        let mut call = self.scripts.look.key(NODE);
        call.key(LOCK).arg(QUORUM).arg(&self.process);
        let answer: Vec<Value> = call.invoke(&mut self.connection).unwrap();
        if answer[0] != Value::Int(1) {
            return None;
        }
        let mark: u64 = redis::from_redis_value(answer[1].clone()).unwrap();
        let shown: Vec<String> = redis::from_redis_value(answer[2].clone()).unwrap();
        let vote = shown.first().map(|owner| {
            let [last, fences, adopted] = [1, 2, 3].map(|at| shown[at].parse::<u64>().ok());
            let fences = fences.and_then(|fences| u32::try_from(fences).ok()).unwrap();
            let block = FenceBlock { last: last.unwrap(), fences };
            VoteView { owner: owner.as_bytes()[0] - b'a', counted: Some((block, adopted)) }
        });
        Some(NodeView { mark, vote })
    }

    /// Of a lock that is held.
    fn stamp(&mut self) -> i64 {
        let lock: i64 = self.run("PTTL", &[LOCK]);
        (lock - TTL).div_euclid(LONGER) + i64::from((lock - TTL).rem_euclid(LONGER) > 0)
    }
}

/// What the model does.
fn step_of_model(node: &mut Node, step: Step) -> Option<AnswerBrief> {
    match step {
        Step::Request(call, request) => {
            return Some(node.carry_out(&NodeRules::REAL, call, request));
        }
        Step::Expires => node.free(),
        Step::Flushed => node.lose(&NodeRules::REAL, <_>::default()),
        Step::Admitted { is_late, seed } => {
            node.admission = Some((node.generation - u8::from(is_late), seed));
            node.admit(&NodeRules::REAL).unwrap();
        }
    }
    None
}

fn seen_of_model(node: &Node) -> Seen {
    Seen {
        holder: node.holder,
        counter: node.counter.into(),
        mark: node.counter.into(),
        adopted: node.adopted.into(),
        stamp: node.stamp.into(),
        votes: node.quarantine.is_none(),
    }
}

/// A step that says something about a node with this counter: most numbers are near it.
fn any_step(chance: &mut Chance, node: &Node, fences: u32) -> Step {
    let mut number = |below: usize| u32::try_from(chance.below(below)).unwrap();
    let counter = u32::from(node.counter);
    let call = [2, CALLS].map(|below| u8::try_from(number(below)).unwrap());
    let attempt = 1 + number(3);
    let mut near = || u64::from((counter + number(5)).saturating_sub(2).max(1));
    let (value, fence, adopt) = (near(), near(), near());
    let (fence, adopt) = ((number(2) == 0).then_some(fence), (number(3) == 0).then_some(adopt));
    let request = match number(100) {
        0..3 => return Step::Expires,
        // The model counts in bytes.
        3 if node.quarantine.is_none() => return Step::Flushed,
        _ if counter > 200 => return Step::Flushed,
        4..12 if node.quarantine.is_some() => {
            let seed = u8::try_from(number(5)).unwrap();
            return Step::Admitted { is_late: number(2) == 0, seed };
        }
        12..45 => NodeRequest::Acquire { attempt, proposal: value, fences, joins: false },
        45..55 => NodeRequest::Raise { attempt, value },
        55..80 => NodeRequest::Renew { call: 1, fence, adopt, prolongs: number(3) > 0 },
        _ => {
            let attempt = (number(2) == 0).then_some(attempt);
            NodeRequest::Release { call: 1, attempt, fence, leaves: false }
        }
    };
    Step::Request(call.into(), request)
}

/// What was asked, and how it was answered, without numbers.
fn kind(step: Step, answer: Option<AnswerBrief>) -> Option<String> {
    let Step::Request(_, request) = step else { return None };
    let word = |shown: String| shown.split(' ').next().unwrap_or_default().to_owned();
    Some(format!("{} {}", word(format!("{request:?}")), word(format!("{:?}", answer?))))
}

/// Each request with each of its answers: those that take give three, a renewal four, and a release two.
const KINDS: usize = 3 + 3 + 4 + 2;

async fn compare(fences: u32) {
    let (seed, mut chance) = Chance::seeded();
    println!("LOCK_TEST_SEED={seed}");
    let (mut real, mut node) = (Real::start(fences).await, Node::default());
    let (mut last, mut kinds) = (Vec::new(), BTreeMap::<String, usize>::new());
    for at in 0..STEPS {
        let step = any_step(&mut chance, &node, fences);
        last.push(step);
        let model = (step_of_model(&mut node, step), seen_of_model(&node));
        let product = (real.step(step), real.seen());
        let before = &last[last.len().saturating_sub(8)..];
        assert_eq!(model, product, "LOCK_TEST_SEED={seed}, step {at}, after {before:#?}");
        let views = (node.view(|_| u8::try_from(fences).unwrap()), real.look());
        assert_eq!(views.0, views.1, "LOCK_TEST_SEED={seed}, step {at}, after {before:#?}");
        *kinds.entry(kind(step, model.0).unwrap_or_default()).or_default() += 1;
    }
    println!("{kinds:#?}");
    assert_eq!(kinds.len(), KINDS + 1, "each answer, and steps without one: {kinds:#?}");
}

#[tokio::test]
async fn the_node_of_the_model_does_what_the_scripts_do() {
    for fences in FENCES {
        compare(fences).await;
    }
}
