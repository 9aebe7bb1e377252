//! `distlock doctor`: can this store keep locks, what is wrong with it, and what to do about it.

use std::time::Duration;

use distlock::admin::{Finding, Severity};
use distlock::capabilities::DataLoss;
use distlock::clock::Clock;
use distlock::{Error, ErrorKind, Feature};
use serde_json::{Value, json};

use crate::args::StoreArgs;
use crate::exit::{ExitError, code};
use crate::output::{self, holder, painted, quoted, short};
use crate::signals::until_signal;
use crate::store::OpenStore;

/// How often the round trip is measured.
const ROUNDS: usize = 5;
/// Each lock costs several round trips, and each renewal one.
const SLOW: Duration = Duration::from_millis(100);
/// Colours, as ANSI codes.
const DIM: &str = "2";
const YELLOW: &str = "33";
const BOLD_RED: &str = "31;1";

pub(crate) async fn doctor(name: Option<String>, store: StoreArgs) -> Result<u8, ExitError> {
    let opened = until_signal(async { Ok(OpenStore::open_any(&store).await) }).await?;
    let (backend, mut findings, unusable) = match opened {
        // What keeps us from the store is what we came to find.
        Err(failure) => (None, vec![refused(&failure)], failure.code),
        Ok(opened) => {
            let found = until_signal(look(name, &opened)).await;
            opened.close().await;
            (Some(opened.locks.backend_name()), found?, code::UNAVAILABLE)
        }
    };
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let worst = findings.first().map_or(Severity::Info, |finding| finding.severity);
    let list: Vec<_> = findings.iter().map(as_json).collect();
    let object = json!({ "backend": backend, "worst": worst.to_string(), "findings": list });
    output::result(store.json, object, &as_text(&findings))?;
    Ok(match worst {
        Severity::Info => 0,
        Severity::Warning => code::WARNED,
        _ => unusable,
    })
}

fn refused(failure: &ExitError) -> Finding {
    let remedy = failure
        .hint
        .as_deref()
        .unwrap_or("follow the message, or use another store: `distlock stores` lists them");
    Finding::critical(failure.message.as_str(), remedy)
}

/// Everything that can be found out over an open connection.
async fn look(name: Option<String>, store: &OpenStore) -> Result<Vec<Finding>, ExitError> {
    let mut findings = vec![latency(store).await];
    match store.locks.diagnose().await {
        Ok(found) => findings.extend(found),
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => findings.push(broken("it could not be checked", &error)),
    }
    findings.push(try_a_lock(name, store).await?);
    findings.extend(promises(store));
    Ok(findings)
}

fn broken(what: &str, error: &Error) -> Finding {
    let remedy = match error.kind() {
        ErrorKind::Denied => {
            "grant the rights that the message names, or pass the name of a lock that you may use: distlock doctor NAME"
        }
        _ => "see the other findings, and the server's log",
    };
    Finding::critical(format!("{what}: {error}"), remedy)
}

async fn latency(store: &OpenStore) -> Finding {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        match store.locks.health().await {
            Ok(health) => times.push(health.answered_in),
            Err(error) => return broken("it does not answer", &error),
        }
    }
    times.sort_unstable();
    let median = times[ROUNDS / 2];
    let what = format!("it responds in {median:.2?} (median of {ROUNDS})");
    if median < SLOW {
        return Finding::info(what);
    }
    Finding::warning(
        format!("{what}: a lock takes several such round trips"),
        "use a store that is closer, and a TTL of at least a hundred round trips",
    )
}

/// Takes a lock and releases it, which alone proves that this user may.
async fn try_a_lock(name: Option<String>, store: &OpenStore) -> Result<Finding, ExitError> {
    let name = name.map_or_else(|| OpenStore::new_name("doctor"), Ok)?;
    let (lock, clock) = (store.lock(&name, None)?, store.locks.clock());
    let name = quoted(&name);
    let start = clock.now();
    let guard = match lock.try_acquire().await {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            let info = store.locks.inspect(lock.key().name()).await.ok().flatten();
            let who = info.and_then(|info| info.holder).map(|who| holder::sentence(&who));
            let by = who.map(|who| format!(" by {who}")).unwrap_or_default();
            return Ok(Finding::info(format!("{name} is held{by}, so it was not tried")));
        }
        Err(error) => return Ok(broken(&format!("{name} cannot be taken"), &error)),
    };
    let taken = clock.now();
    if let Err(error) = guard.release().await {
        return Ok(broken(&format!("{name} was taken and cannot be released"), &error));
    }
    let (took, released) = (taken.since(start), clock.now().since(taken));
    Ok(Finding::info(format!("{name} was taken in {took:.2?} and released in {released:.2?}")))
}

/// What the store promises, in the words of the library.
fn promises(store: &OpenStore) -> Vec<Finding> {
    let can = store.locks.capabilities();
    let least = short(can.min_ttl);
    let ttl = match can.max_ttl {
        Some(most) => format!("the TTL can be {least} to {}", short(most)),
        None => format!("the TTL can be {least} or more"),
    };
    let mut findings = vec![Finding::info(ttl)];
    let features = [
        (Feature::Fair, "serve", "waiters in order of arrival"),
        (Feature::Push, "wake", "its waiters"),
        (Feature::DurableFences, "keep", "fencing tokens rising after a crash"),
        (Feature::Detach, "let", "another process take over a lock"),
        (Feature::Survives(DataLoss::Restart), "keep", "its locks through a restart"),
        (Feature::Survives(DataLoss::Failover), "keep", "its locks through a failover"),
        (Feature::Survives(DataLoss::Eviction), "keep", "its locks when memory is short"),
    ];
    findings.extend(features.map(|(feature, does, what)| {
        Finding::info(match can.has(feature) {
            true => format!("it {does}s {what}"),
            // Whatever the settings of this server, which may do better.
            false => format!("a store of this kind does not promise to {does} {what}"),
        })
    }));
    findings
}

fn as_json(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.to_string(),
        "what": finding.what,
        "remedy": finding.remedy,
    })
}

fn as_text(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let colour = match finding.severity {
            Severity::Info => DIM,
            Severity::Warning => YELLOW,
            _ => BOLD_RED,
        };
        let word = painted(colour, &format!("{:<8}", finding.severity));
        let remedy = finding.remedy.as_ref();
        let remedy = remedy.map(|text| format!("\n          do: {}", output::lines(text)));
        format!("{word}  {}{}", output::lines(&finding.what), remedy.unwrap_or_default())
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}
