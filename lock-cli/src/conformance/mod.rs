//! `distlock conformance`: the suite that this library's own stores pass, on any server.

mod harness;
mod report;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance_tests::{CaseResult, Outcome};
use distlock::clock::{Clock, SystemClock};

use self::harness::Server;
use crate::args::{ConformanceArgs, ReportForm};
use crate::exit::{Failure, code};
use crate::output::{self, quoted};
use crate::store::Store;
use crate::with_runtime;

/// A case with its outcome, and how long it took.
struct Judged {
    result: CaseResult,
    took: Duration,
}

pub(crate) fn conformance(args: &ConformanceArgs) -> Result<u8, Failure> {
    let wanted = wanted(&args.cases)?;
    let server = Arc::new(with_runtime(reach(args))?);
    let form = if args.store.json { ReportForm::Json } else { args.report };
    let judged = judge(&server, &wanted, usize::from(args.jobs), form == ReportForm::Text);
    let text = match form {
        ReportForm::Text => report::text(server.backend(), &judged),
        ReportForm::Json => report::json(server.backend(), &judged),
        ReportForm::Junit => report::junit(server.backend(), &judged),
    };
    output::stdout_line(&text)?;
    let failed = |judged: &Judged| matches!(judged.result.outcome, Outcome::Failed(_));
    Ok(if judged.iter().any(failed) { code::WARNED } else { 0 })
}

/// The names of the cases that begin with one of `starts`.
fn wanted(starts: &[String]) -> Result<Vec<&'static str>, Failure> {
    let is_wanted =
        |id: &str| starts.is_empty() || starts.iter().any(|start| id.starts_with(start.as_str()));
    let wanted: Vec<_> =
        conformance_tests::all_cases().map(|(id, _)| id).filter(|id| is_wanted(id)).collect();
    if let Some(start) =
        starts.iter().find(|start| !wanted.iter().any(|id| id.starts_with(start.as_str())))
    {
        return Err(Failure::usage(format!("no case begins with {}", quoted(start)))
            .with_hint("their names begin with c01 to c15 for the clauses of the contract, s01 to s06 for safety and l01 to l05 for liveness"));
    }
    Ok(wanted)
}

/// A store that cannot be reached would fail each case: one error says it better.
async fn reach(args: &ConformanceArgs) -> Result<Server, Failure> {
    let store = Store::open(&args.store, None).await?;
    let backend = store.locks.backend_name();
    let asked = store.describe(store.locks.health().await);
    let key = store.lock("x", None);
    store.close().await;
    asked?;
    if backend == "memory" {
        return Err(Failure::config(
            "a memory:// store ends with its process: the suite judges stores that clients share",
        )
        .with_hint("pass --store with the URL of a server or a file"));
    }
    Ok(Server::new(Store::url(&args.store)?, backend, key?.key().prefix()))
}

/// Runs the cases, some at the same time, and tells of each that failed as soon as it did.
fn judge(server: &Arc<Server>, wanted: &[&'static str], jobs: usize, tells: bool) -> Vec<Judged> {
    let (next, judged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let clock = SystemClock::default();
    let work = || {
        while let Some(id) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = clock.now();
            let report = conformance_tests::run(Arc::clone(server), |case| case == *id);
            let took = clock.now().since(start);
            for result in report.results {
                if tells && let Outcome::Failed(seen) = &result.outcome {
                    output::stderr_line(&format!("failed: {id}: {}", output::lines(seen)));
                }
                let mut judged = judged.lock().unwrap_or_else(PoisonError::into_inner);
                judged.push(Judged { result, took });
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let mut judged = judged.into_inner().unwrap_or_else(PoisonError::into_inner);
    judged.sort_by_key(|judged| wanted.iter().position(|id| *id == judged.result.id));
    judged
}
