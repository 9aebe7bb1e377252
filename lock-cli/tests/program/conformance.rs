//! `conformance`, on stores that pass and on one that does not.

use serde_json::Value;

use crate::bench::{Bench, Done, finish};
use std::time::Duration;

/// Cases wait for leases to end.
const LIMIT: Duration = Duration::from_secs(120);

fn judge(bench: &Bench, args: &[&str]) -> Done {
    let args = [&["conformance"][..], args].concat();
    finish(bench.distlock(args).spawn().expect("the program starts"), LIMIT)
}

#[test]
fn a_right_store_passes_in_every_form() {
    let bench = Bench::new();
    let json = judge(&bench, &["c01", "--json"]).is(0);
    let report: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&report["schema"], &report["backend"]), (&1.into(), &"sqlite".into()));
    let cases = report["cases"].as_array().expect("an array");
    let passed = cases.iter().filter(|case| case["outcome"] == "passed").count();
    assert!(passed >= 3, "{report:#}");
    let name = |case: &Value| case["name"].as_str().unwrap().to_owned();
    assert!(cases.iter().all(|case| name(case).starts_with("c01")), "{report:#}");
    assert!(cases.iter().all(|case| case["outcome"] != "failed"), "{report:#}");

    let text = judge(&bench, &["c01"]).is(0).stdout;
    assert!(
        text.starts_with(&format!("sqlite: {passed} ran, {passed} passed, 0 failed")),
        "{text}"
    );

    let xml = judge(&bench, &["c01", "--report", "junit"]).is(0).stdout;
    let head = format!("tests=\"{}\" failures=\"0\"", cases.len());
    assert!(xml.starts_with("<?xml") && xml.contains(&head), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), cases.len(), "{xml}");
    assert!(bench.held().is_empty(), "{:?}", bench.held());
}

/// A database that quietly keeps what is released: some trigger of somebody.
#[test]
fn a_wrong_store_fails_and_says_why() {
    let bench = Bench::new();
    bench.done(["run", "a", "--", "true"]).is(0);
    bench.execute("CREATE TRIGGER keep BEFORE UPDATE ON distlock WHEN NEW.owner IS NULL BEGIN SELECT RAISE(IGNORE); END");
    let done = judge(&bench, &["c07", "--report", "junit"]).is(1);
    assert!(done.stdout.contains("<failure message="), "{done:?}");
    assert!(!done.stdout.contains("failures=\"0\""), "{done:?}");
    let done = judge(&bench, &["c07"]).is(1);
    assert!(done.stderr.contains("failed: c07_"), "{done:?}");
    assert!(!done.stdout.contains(" 0 failed"), "{done:?}");
}

#[test]
fn what_cannot_be_judged_is_no_result() {
    let bench = Bench::new();
    judge(&bench, &["c99"]).is(64).printing("").saying(["no case begins with \"c99\"", "c01 to c"]);
    judge(&bench, &["--store", "memory://"])
        .is(78)
        .printing("")
        .saying(["exists in this process only"]);
    judge(&bench, &["--store", "sqlite:///no/folder/x.db"]).is(78).printing("");
    judge(&bench, &["--report", "pdf"]).is(64);
}

/// Over a network, with a prefix in the URL that the cases keep to.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_judged_by_its_url() {
    use crate::redis::Plain;
    let server = lock_testkit::servers::RedisServer::builder().start().await.unwrap();
    Plain::connect(&server).ask("ACL SETUSER app on >secret ~* &* +@all");
    let url = server.url().replace("redis://", "redis://app:secret@");
    let bench = Bench::new();
    let done =
        judge(&bench, &["c03", "s01", "--store", &format!("{url}?lock_prefix=ours"), "--json"])
            .is(0);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert!(report["cases"].as_array().unwrap().iter().any(|case| case["outcome"] == "passed"));
    assert!(!format!("{done:?}").contains("secret"), "{done:?}");
}
