//! The short run of the program measures everything, and its results become a page.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ALL: &[&str] =
    &["memory", "sqlite", "postgres", "mariadb", "redis", "redlock", "etcd", "zookeeper"];
/// Those that several processes can share.
const SHARED: &[&str] = &["sqlite", "postgres", "mariadb", "redis", "redlock", "etcd", "zookeeper"];

/// Each part, with the stores that it says something of.
const PARTS: &[(&str, &[&str])] = &[
    ("pair", ALL),
    ("processor", ALL),
    ("hand-over", ALL),
    ("throughput", ALL),
    ("requests", SHARED),
    ("held", ALL),
    ("minority", &["redlock", "etcd", "zookeeper"]),
    ("kinds", ALL),
    ("crash", SHARED),
];

/// Runs the program.
fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_distlock_bench")).args(arguments).output();
    let output = output.expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}\n{said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn count(row: &Value, name: &str) -> Option<f64> {
    let counts = row["counts"].as_array().expect("counts");
    counts.iter().find(|count| count[0] == name)?[1].as_f64()
}

#[test]
fn a_short_run_measures_every_part_on_every_store() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("results.json");
    let said = run(&["run", "--short", "--json", text(&json)]);
    let results: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = results["rows"].as_array().unwrap();
    for (part, stores) in PARTS {
        for store in *stores {
            let of = |row: &&Value| row["part"] == *part && row["store"] == *store;
            let ours: Vec<_> =
                rows.iter().filter(of).filter(|row| row["library"] == "distlock").collect();
            assert!(!ours.is_empty(), "{part} on {store} is not measured:\n{said}");
            for row in ours {
                let case = &row["case"];
                assert!(row["failed"].is_null(), "{part} on {store}, {case}: {}", row["failed"]);
                judge(part, row);
            }
        }
    }
    #[cfg(feature = "peers")]
    for peer in [
        "rslock",
        "distkit",
        "distributed-lock",
        "PgAdvisoryLock",
        "lock() of etcd-client",
        "lock() of zookeeper-client",
    ] {
        let of = |row: &&Value| row["library"].as_str().unwrap().starts_with(peer);
        assert!(rows.iter().filter(of).any(|row| row["failed"].is_null()), "{peer}:\n{said}");
    }
    become_pages(&json, &folder.path().join("docs"));
}

fn judge(part: &str, row: &Value) {
    let median = |times: &str| row[times]["p50"].as_u64().unwrap_or_default();
    match part {
        "hand-over" => {
            assert!(median("time") > 0 && median("floor") > 0, "{row}");
            assert_eq!(count(row, "two holders at once"), Some(0.0), "{row}");
        }
        "throughput" => {
            assert!(count(row, "acquisitions/s").is_some_and(|rate| rate > 0.0), "{row}");
            assert_eq!(count(row, "two holders at once"), Some(0.0), "{row}");
        }
        "requests" if row["case"] == "acquire" || row["case"] == "release" => {
            assert!(count(row, "requests each").is_some_and(|each| each > 0.0), "{row}");
        }
        "requests" => {}
        "processor" => assert!(count(row, "client, µs").is_some(), "{row}"),
        "minority" => {
            let failed = count(row, "failed").is_some_and(|failed| failed > 0.0);
            assert!(median("time") > 0 || failed, "{row}");
        }
        "kinds" if count(row, "locks/s").is_some() => {
            let rate = |name: &str| count(row, name).is_some_and(|rate| rate > 0.0);
            assert!(rate("reads/s") && rate("locks/s"), "{row}");
        }
        "kinds" => assert!(median("time") > 0 && median("floor") > 0, "{row}"),
        "held" => assert!(count(row, "lost") == Some(0.0), "{row}"),
        _ => assert!(median("time") > 0, "{row}"),
    }
}

/// The pages of the documents take the figures, and the same figures again change nothing.
fn become_pages(json: &Path, docs: &Path) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    fs::create_dir_all(docs.join("performance")).unwrap();
    let pages = ["performance.md", "performance/rows.md"];
    for page in pages {
        fs::copy(own.join(page), docs.join(page)).unwrap();
    }
    let read = || pages.map(|page| fs::read_to_string(docs.join(page)).unwrap());
    run(&["page", text(docs), text(json)]);
    let first = read();
    for page in &first {
        assert!(page.contains("Only a trial") && page.contains("\n| ZooKeeper | "), "{page}");
    }
    for plot in ["free", "hand-over", "throughput"] {
        let plot = fs::read_to_string(docs.join(format!("performance/{plot}.svg"))).unwrap();
        assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"));
        // A store of each kind has its figure.
        assert!(plot.matches("class=\"bar\"").count() >= 7, "{plot}");
    }
    run(&["page", text(docs), text(json)]);
    assert_eq!(read(), first);
}
