//! The edit lock over HTTP: two processes of the service, and pages that talk to either.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::programs::{Bench, Program, now, pause, until};
use crate::requests::{Answer, post, post_text, put};
use crate::stores::Store;

const PROGRAM: &str = env!("CARGO_BIN_EXE_edit_lock");
pub(crate) const TTL: Duration = Duration::from_secs(5);

/// A process of the service.
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(bench: &Bench<'_>) -> Self {
        Self::start_on(bench, bench.store())
    }

    fn start_on(bench: &Bench<'_>, store: &str) -> Self {
        let mut program = bench.start_with(PROGRAM, &[store, &bench.database(), "0"]);
        let url = program.says("listening on ").replace("listening on ", "");
        Self { program, url }
    }

    /// A heartbeat of the page of `user`.
    fn beat(&self, user: &str, lease: Option<&str>) -> Value {
        let (status, answer) = self.edit(42, user, lease);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    fn edit(&self, order: u32, user: &str, lease: Option<&str>) -> Answer {
        post(&format!("{}/orders/{order}/edit", self.url), &json!({"user": user, "lease": lease}))
    }

    fn save(&self, lease: &str, revision: u32, text: &str) -> Answer {
        let edited = json!({"lease": lease, "revision": revision, "text": text});
        put(&format!("{}/orders/42/text", self.url), &edited)
    }

    fn close(&self, lease: &str) -> u16 {
        post_text(&format!("{}/orders/42/close", self.url), lease).0
    }

    /// Beats until the order is free for `user`. Returns the answer.
    fn beat_until_free(&self, user: &str, limit: Duration) -> Value {
        let mut answer = Value::Null;
        until(&format!("{user} may edit"), limit, || {
            pause(Duration::from_millis(100));
            answer = self.edit(42, user, None).1;
            answer["lease"].is_string()
        });
        answer
    }
}

fn lease(answer: &Value) -> &str {
    answer["lease"].as_str().unwrap_or_else(|| panic!("no lease: {answer}"))
}

/// It was refused, with this status and these words.
#[track_caller]
fn refused((status, why): &Answer, code: u16, words: &str) {
    assert!(
        *status == code && why.as_str().is_some_and(|why| why.contains(words)),
        "{status} {why}"
    );
}

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    if !store.hands_over {
        let said = bench.start(PROGRAM, &["0"]).ends_with(1);
        return assert!(said.contains("locks that another process can take over"), "{said}");
    }
    let [mut one, two] = [(); 2].map(|()| Server::start(&bench));
    let ann = one.beat("ann", None);
    assert_eq!(ann["order"]["revision"], 1, "{ann}");
    let bob = two.beat("bob", None);
    assert_eq!((&bob["editor"], &bob["order"]["revision"]), (&json!("ann"), &json!(1)), "{bob}");
    let since = humantime::parse_rfc3339(bob["since"].as_str().expect("a time")).expect("a time");
    assert!(SystemTime::now().duration_since(since).expect("past") < TTL, "{bob}");

    // Each heartbeat may reach another process, and no other order is edited with this lease.
    assert_eq!(lease(&two.beat("ann", Some(lease(&ann)))), lease(&ann));
    let (status, error) = one.edit(43, "ann", Some(lease(&ann)));
    assert!(status == 400 && !error.to_string().contains(lease(&ann)), "{status} {error}");

    assert_eq!(two.save(lease(&ann), 1, "Three boxes"), (200, json!(2)));
    refused(&one.save(lease(&ann), 1, "Four boxes"), 412, "saved by someone else");
    assert_eq!(two.save("my lease", 2, "Five boxes").0, 400);

    // A process that dies takes no lock with it.
    one.program.kill();
    two.beat("ann", Some(lease(&ann)));
    // The tab is closed.
    let closed = now();
    let bob = two.beat_until_free("bob", TTL * 2);
    assert!(now().since(closed) < TTL + Duration::from_secs(2), "{:?}", now().since(closed));
    assert_eq!(bob["order"], json!({"revision": 2, "text": "Three boxes"}));
    refused(&two.save(lease(&ann), 2, "Six boxes"), 409, "the lock is lost");

    // A page that is closed in the usual way keeps nobody waiting.
    assert_eq!(two.close(lease(&bob)), 204);
    let carol = two.beat("carol", None);
    assert_eq!(carol["order"], json!({"revision": 2, "text": "Three boxes"}));

    // A process that is set up with another lock store lets dan edit at the same time. Nobody has
    // saved since, so only the fence tells that carol has been overtaken.
    let other = Server::start_on(&bench, &bench.elsewhere());
    let dan = other.beat("dan", None);
    two.beat("carol", Some(lease(&carol)));
    refused(&two.save(lease(&carol), 2, "Seven boxes"), 412, "begun to edit it since");
    assert_eq!(other.save(lease(&dan), 2, "Eight boxes"), (200, json!(3)));
}
