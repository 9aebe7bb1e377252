//! `distlock conformance`: the suite that this library's own stores pass, on any server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance_tests::{CaseResult, Client, Harness, Outcome, Store, Unavailable};
use distlock::backend::{LockBackend, LockLayer, async_trait};
use distlock::clock::{Clock, SystemClock};
use distlock::{Error, ErrorKind};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::args::{ConformanceArgs, ReportForm};
use crate::exit::{ExitError, code};
use crate::output::{self, escape, millis, quoted};
use crate::store::OpenStore;

/// A case with its outcome, and how long it took.
type JudgedCase = (CaseResult, Duration);

pub(crate) async fn conformance(args: ConformanceArgs) -> Result<u8, ExitError> {
    let wanted = wanted(&args.cases)?;
    let server = reach(&args).await?;
    let is_to_read = args.report == ReportForm::Text && !args.store.json;
    // Each case has a thread and a runtime of its own: this one only waits for them.
    let judged = block_in_place(|| judge(&server, &wanted, usize::from(args.jobs), is_to_read));
    let text = match args.report {
        _ if args.store.json => as_json(server.backend, &judged),
        ReportForm::Text => as_text(server.backend, &judged),
        ReportForm::Junit => as_junit(server.backend, &judged),
    };
    output::page(format!("{text}\n").as_bytes())?;
    Ok(if count(&judged, is_failed) > 0 { code::WARNED } else { 0 })
}

/// The names of the cases that begin with one of `starts`.
fn wanted(starts: &[String]) -> Result<Vec<&'static str>, ExitError> {
    let is_wanted =
        |id: &str| starts.is_empty() || starts.iter().any(|start| id.starts_with(start.as_str()));
    let wanted: Vec<_> =
        conformance_tests::all_cases().map(|(id, _)| id).filter(|id| is_wanted(id)).collect();
    if let Some(start) =
        starts.iter().find(|start| !wanted.iter().any(|id| id.starts_with(start.as_str())))
    {
        return Err(ExitError::usage(format!("no case begins with {}", quoted(start)))
            .with_hint(format!(
                "their names begin with {} for the clauses of the contract, {} for safety and {} for liveness",
                range('c'), range('s'), range('l')
            )));
    }
    Ok(wanted)
}

/// The beginnings of the first and the last case of a kind, such as `c01 to c15`.
fn range(kind: char) -> String {
    let ids = conformance_tests::all_cases().map(|(id, _)| id).filter(|id| id.starts_with(kind));
    let starts = ids.filter_map(|id| id.get(..3)).collect::<std::collections::BTreeSet<_>>();
    let ends = [starts.first(), starts.last()];
    ends.into_iter().flatten().copied().collect::<Vec<_>>().join(" to ")
}

/// A store that cannot be reached would fail each case: one error says it better.
async fn reach(args: &ConformanceArgs) -> Result<Server, ExitError> {
    OpenStore::with(&args.store, async |store| {
        store.describe(store.locks.health().await)?;
        Ok(Server {
            url: OpenStore::url(&args.store)?.into(),
            backend: store.locks.backend_name(),
            prefix: store.lock("x", None)?.key().prefix().into(),
        })
    })
    .await
}

/// Runs the cases, some at the same time, and tells of each that failed as soon as it did.
fn judge(server: &Server, wanted: &[&'static str], jobs: usize, tells: bool) -> Vec<JudgedCase> {
    let (next, judged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let clock = SystemClock::default();
    let work = || {
        while let Some(id) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = clock.now();
            let report = conformance_tests::run(server.clone(), |case| case == *id);
            let took = clock.now().since(start);
            for result in report.results {
                if tells && let Outcome::Failed(seen) = &result.outcome {
                    output::stderr_line(&format!("failed: {id}: {}", output::lines(seen)));
                }
                judged.lock().push((result, took));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let mut judged = judged.into_inner();
    judged.sort_by_key(|(result, _)| wanted.iter().position(|id| *id == result.id));
    judged
}

/// A server named by a URL, and the locks of one case on it, apart from all others by their prefix.
#[derive(Clone)]
struct Server {
    url: Arc<str>,
    backend: &'static str,
    /// Before the names of all locks: as the URL says, and for a case, what keeps it apart.
    prefix: String,
}

/// Without the URL, which may contain a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("backend", &self.backend).finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for Server {
    fn name(&self) -> &str {
        self.backend
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let prefix = format!("{}{}", self.prefix, OpenStore::new_name("conformance")?);
        Ok(Box::new(Self { prefix, ..self.clone() }))
    }
}

#[async_trait]
impl Store for Server {
    async fn client(&self) -> distlock::Result<Client> {
        let catcher = BackendCatcher::default();
        let builder = distlock::builder(&*self.url).layer(catcher.clone());
        let _locks = builder.connect().await?;
        let backend = catcher.0.lock().take();
        let missing = || Error::new(ErrorKind::Internal, "the builder used no layer");
        Ok(Client::from_arc(backend.ok_or_else(missing)?))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }
}

/// Keeps the backend that a builder has connected.
#[derive(Clone, Default)]
struct BackendCatcher(Arc<Mutex<Option<Arc<dyn LockBackend>>>>);

impl LockLayer for BackendCatcher {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        *self.0.lock() = Some(Arc::clone(&inner));
        inner
    }
}

fn as_text(backend: &str, judged: &[JudgedCase]) -> String {
    let results = judged.iter().map(|(result, _)| result.clone()).collect();
    let summary = conformance_tests::Report { results }.to_string();
    format!("{backend}: {}", summary.lines().map(escape).collect::<Vec<_>>().join("\n"))
}

fn as_json(backend: &str, judged: &[JudgedCase]) -> String {
    let cases: Vec<_> = judged.iter().map(case_json).collect();
    output::rendered(true, json!({ "backend": backend, "cases": cases }), "")
}

fn case_json((result, took): &JudgedCase) -> Value {
    let (outcome, why) = match &result.outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Ignored(reason) => ("ignored", Some(reason)),
        Outcome::Failed(seen) => ("failed", Some(seen)),
    };
    json!({ "name": result.id, "outcome": outcome, "why": why, "took_ms": millis(*took) })
}

fn is_failed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_))
}

fn count(judged: &[JudgedCase], is: fn(&Outcome) -> bool) -> usize {
    judged.iter().filter(|(result, _)| is(&result.outcome)).count()
}

fn as_junit(backend: &str, judged: &[JudgedCase]) -> String {
    conformance_tests::junit(&format!("distlock conformance on {backend}"), backend, judged)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conformance_tests::CaseResult;

    use super::*;

    fn judged(id: &'static str, outcome: Outcome) -> JudgedCase {
        (CaseResult { id, outcome }, Duration::from_millis(1500))
    }

    fn three() -> [JudgedCase; 3] {
        [
            judged("c01_a", Outcome::Passed),
            judged("c02_b", Outcome::Ignored("the store cannot push".to_owned())),
            judged("c03_c", Outcome::Failed("two <holders> & \"more\"\u{1b}\nseen".to_owned())),
        ]
    }

    #[test]
    fn junit_counts_and_escapes() {
        let xml = as_junit("redis", &three());
        for part in [
            "tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\"",
            "<testcase classname=\"redis\" name=\"c01_a\" time=\"1.500\"/>",
            "<skipped message=\"the store cannot push\"/>",
            "<failure message=\"two &lt;holders&gt; &amp; &quot;more&quot;\\u{1b}\">",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains('\u{1b}') && xml.ends_with("</testsuite>"), "{xml}");
    }

    #[test]
    fn json_has_every_case() {
        let value: Value = serde_json::from_str(&as_json("redis", &three())).unwrap();
        let outcomes: Vec<_> =
            value["cases"].as_array().unwrap().iter().map(|case| case["outcome"].clone()).collect();
        assert_eq!(outcomes, ["passed", "ignored", "failed"]);
        assert_eq!(
            (value["schema"].as_i64(), value["cases"][0]["took_ms"].as_i64()),
            (Some(1), Some(1500))
        );
    }
}
