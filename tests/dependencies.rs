//! Dependencies between the crates: which may depend on which, and what a feature must not pull in.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use toml::Table;

/// Every member, and the members that it may depend on. A new crate must be added here.
const ALLOWED: &[(&str, &[&str])] = &[
    ("lock-core", &[]),
    ("lock-kit", &["lock-core"]),
    ("lock-sql", &["lock-core", "lock-kit"]),
    ("lock-redis", &["lock-core", "lock-kit"]),
    ("lock-etcd", &["lock-core", "lock-kit"]),
    ("lock-zk", &["lock-core", "lock-kit"]),
    ("conformance-tests", &["lock-core"]),
    ("lock-testkit", &["lock-core", "conformance-tests"]),
    ("distlock", &["lock-core", "lock-kit", "lock-redis", "lock-sql", "lock-etcd", "lock-zk"]),
    ("lock-cli", &["distlock", "conformance-tests"]),
    ("distlock-examples", &["distlock"]),
    ("distlock-soak", &["distlock", "conformance-tests", "lock-testkit"]),
    ("distlock-benches", &["distlock", "conformance-tests", "lock-testkit"]),
    ("redlock-model", &["lock-core", "lock-kit"]),
    ("lock-simulation", &["lock-core"]),
    ("keeper-schedules", &[]),
    ("kinds-model", &[]),
    ("failover-model", &[]),
    ("xtask", &[]),
];

/// What a crate may also use in its own tests.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    ("lock-sql", &["conformance-tests", "lock-testkit"]),
    ("lock-redis", &["conformance-tests", "lock-testkit"]),
    ("lock-etcd", &["conformance-tests", "lock-testkit"]),
    ("lock-zk", &["conformance-tests", "lock-testkit"]),
    ("distlock", &["conformance-tests", "lock-testkit"]),
    ("lock-cli", &["lock-testkit"]),
    ("distlock-examples", &["conformance-tests", "lock-testkit"]),
    ("redlock-model", &["lock-testkit"]),
];

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[test]
fn dependencies_point_one_way() {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let members: BTreeSet<_> = packages.iter().map(|package| text(package, "name")).collect();
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let in_tests: BTreeMap<_, _> = ALLOWED_IN_TESTS.iter().copied().collect();
    assert_eq!(members, allowed.keys().copied().collect(), "every member has its row in ALLOWED");
    for package in packages {
        let name = text(package, "name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let other = text(dependency, "name");
            if !members.contains(other) {
                continue;
            }
            let for_tests = text(dependency, "kind") == "dev";
            let fine = allowed[name].contains(&other)
                || for_tests && in_tests.get(name).is_some_and(|more| more.contains(&other));
            assert!(fine, "{name} must not depend on {other}");
        }
    }
}

/// The names of all packages that are built for `arguments`.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let mut all =
        vec!["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    all.extend(arguments);
    cargo(&all).lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_core_knows_no_driver() {
    for package in ["lock-core", "conformance-tests", "lock-testkit"] {
        let tree = tree(&["-p", package]);
        assert!(tree.contains("tokio"), "the tree of {package} could be read: {tree:?}");
        for driver in ["sqlx", "redis", "tonic", "zookeeper-client"] {
            assert!(!tree.contains(driver), "{package} pulls in {driver}");
        }
    }
}

/// The suite, and a clock that can be paused, are for tests.
#[test]
fn the_program_is_shipped_without_the_suite() {
    let features = |more: &[&str]| {
        let all = [
            "tree", "--locked", "-p", "lock-cli", "--edges", "normal", "--prefix", "none",
            "--format", "{p} {f}",
        ];
        cargo(&[&all, more].concat())
    };
    let (shipped, judging) = (features(&[]), features(&["--features", "conformance"]));
    for for_tests in ["conformance-tests v", "libtest-mimic v", "test-util"] {
        assert!(!shipped.contains(for_tests), "the program is shipped with {for_tests}");
        assert!(judging.contains(for_tests), "{for_tests} is not there under this name");
    }
    let tokio = shipped.lines().find(|line| line.starts_with("tokio v"));
    assert!(tokio.is_some_and(|line| line.contains("rt-multi-thread")), "{tokio:?}");
}

/// Somebody who tries the program should know what the first build costs.
#[test]
fn the_readme_says_how_many_crates_a_first_build_compiles() {
    let tree = cargo(&[
        "tree",
        "--locked",
        "-p",
        "lock-cli",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    // Some versions of a crate are there twice, and a path follows those of this repository.
    let crates = tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>());
    let number = crates.collect::<BTreeSet<_>>().len();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    let readme = readme.expect("README.md");
    let (before, _) = readme.split_once(" crates first").expect("the number of crates");
    let told: usize = before.rsplit(' ').next().unwrap_or_default().parse().expect("a number");
    assert!(told.abs_diff(number) <= 15, "README.md says {told} crates, and there are {number}");
}

/// Each of the facade's store features, and which of the drivers below it must pull in.
const STORES: &[(&str, &[&str])] = &[
    ("sqlite", &["sqlx", "libsqlite3-sys"]),
    ("postgres", &["sqlx", "sqlx-postgres"]),
    ("mysql", &["sqlx", "sqlx-mysql"]),
    ("redis", &["redis"]),
    ("redlock", &["redis"]),
    ("etcd", &["tonic"]),
    ("zookeeper", &["zookeeper-client"]),
];

/// Including those that no store should pull in.
const DRIVERS: &[&str] = &[
    "sqlx",
    "libsqlite3-sys",
    "sqlx-postgres",
    "sqlx-mysql",
    "redis",
    "tonic",
    "zookeeper-client",
    "native-tls",
    "openssl-sys",
];

#[test]
fn a_store_brings_its_own_driver_only() {
    let bare = tree(&["-p", "distlock"]);
    assert!(bare.contains("lock-core"), "the tree could be read: {bare:?}");
    assert_eq!(drivers_in(&bare), BTreeSet::new());
    for (feature, own) in STORES {
        let tree = tree(&["-p", "distlock", "--features", feature]);
        assert_eq!(drivers_in(&tree), own.iter().copied().collect(), "the feature {feature}");
    }
}

#[test]
fn one_feature_alone_brings_what_needs_protoc() {
    for (feature, needs_it) in [("full", false), ("etcd-client", true)] {
        let tree = tree(&["-p", "distlock", "--features", feature]);
        assert_eq!(tree.contains("etcd-client"), needs_it, "the feature {feature}");
    }
}

fn drivers_in(tree: &BTreeSet<String>) -> BTreeSet<&'static str> {
    DRIVERS.iter().copied().filter(|driver| tree.contains(*driver)).collect()
}

/// The names in a list of `deny.toml`, be they words or those of crates.
fn listed(section: &str, list: &str) -> BTreeSet<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deny.toml"));
    let deny: Table = page.expect("deny.toml").parse().expect("TOML");
    let items = deny[section][list].as_array().expect("a list");
    let name = |item: &toml::Value| item.get("crate").unwrap_or(item).as_str().map(str::to_owned);
    items.iter().map(|item| name(item).expect("a name")).collect()
}

/// Whether an SPDX expression can be met: each part that is required has a licence on the list.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let bare = expression.replace(['(', ')'], "").replace('/', " OR ");
    bare.split(" AND ").all(|part| part.split(" OR ").any(|one| allowed.contains(one.trim())))
}

/// What `cargo deny check licenses bans sources` checks, on machines without it, too.
#[test]
fn every_dependency_is_one_that_deny_toml_allows() {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc runs").stdout;
    let version = String::from_utf8(version).expect("UTF-8");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    // Those of other platforms need not be here.
    let here = ["--all-features", "--locked", "--filter-platform", host];
    let metadata = cargo(&[&["metadata", "--format-version", "1"], &here[..]].concat());
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let (allowed, banned) = (listed("licenses", "allow"), listed("bans", "deny"));
    assert!(allowed.contains("MIT") && banned.contains("openssl-sys"), "deny.toml could be read");
    let packages = metadata["packages"].as_array().expect("packages");
    let mut checked = 0;
    for package in packages {
        let (name, source) = (text(package, "name"), text(package, "source"));
        let licence = text(package, "license");
        assert!(!banned.contains(name), "{name} is banned");
        assert!(is_met(licence, &allowed), "the licence of {name} is {licence:?}");
        // Those without a source are our own.
        let is_known =
            source.is_empty() || source == "registry+https://github.com/rust-lang/crates.io-index";
        assert!(is_known, "{name} comes from {source}");
        checked += usize::from(!source.is_empty());
    }
    assert!(checked > 100, "{checked} dependencies");
    for (expression, met) in [
        ("MIT/GPL-3.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}
