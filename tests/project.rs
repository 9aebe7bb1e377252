//! What a project needs besides its code: the address of the repository in one place, and workflows that may do no more than they
//! need.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What depends on the address of the repository, and how it gets it. Nothing else may name it.
const DEPENDS: &[(&str, &str)] = &[
    // The one place. Every published crate inherits it, and crates.io and docs.rs show it.
    ("Cargo.toml", "\nrepository = \"https://"),
    // The archives of a release, for `cargo binstall`.
    ("lock-cli/Cargo.toml", "pkg-url = \"{ repo }/"),
    // No release with the address of another repository.
    (".github/workflows/release.yml", "= \"$GITHUB_SERVER_URL/$GITHUB_REPOSITORY\""),
    (".github/workflows/release.yml", "--repo \"$GITHUB_REPOSITORY\""),
    // Links of the book to files that are not in it.
    (".ci/book-links", "address=$(sed -n 's/^repository = "),
    // The label of the image.
    ("Dockerfile", "org.opencontainers.image.source=\"$SOURCE\""),
];

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file of text below `folder`, apart from what is built, with its path from the root.
fn texts(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if path.is_dir() {
            if !matches!(name, ".git" | "target") {
                texts(&path, found);
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(ROOT).expect("below the root");
            found.push((path.to_str().expect("UTF-8").to_owned(), text));
        }
    }
}

/// The packages of the workspace, as cargo reads them.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .current_dir(ROOT)
        .output()
        .expect("cargo runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The address, and those of the published crates.
fn addresses() -> (String, Vec<(String, Value)>) {
    let mut metadata = metadata();
    let Value::Array(packages) = metadata["packages"].take() else { panic!("no packages") };
    let published = packages.into_iter().filter(|package| package["publish"].is_null());
    let crates: Vec<_> = published
        .map(|package| (package["name"].to_string(), package["repository"].clone()))
        .collect();
    let own = crates.iter().find(|(name, _)| name == "\"distlock\"").expect("this package");
    (own.1.as_str().expect("a repository").to_owned(), crates)
}

/// The first command of the README: `cargo run` must not have to ask which program is meant.
#[test]
fn cargo_run_has_one_program_to_run() {
    let metadata = metadata();
    let defaults = metadata["workspace_default_members"].as_array().expect("default members");
    let packages = metadata["packages"].as_array().expect("packages");
    let programs: Vec<_> = packages
        .iter()
        .filter(|package| defaults.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().expect("targets"))
        .filter(|target| target["kind"][0] == "bin")
        .map(|target| target["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(programs, ["distlock"]);
}

#[test]
fn one_place_names_the_address_of_the_repository() {
    let (address, crates) = addresses();
    for (name, its) in &crates {
        assert_eq!(*its, *address, "{name} does not inherit `repository`");
    }
    for (file, how) in DEPENDS {
        assert!(read(file).contains(how), "{file} has no {how:?}: is the list up to date?");
    }
    let place = address.strip_prefix("https://").expect("https");
    let mut all = Vec::new();
    texts(Path::new(ROOT), &mut all);
    assert!(all.len() > 500, "{} files", all.len());
    for (path, text) in &all {
        let expected = usize::from(path == "Cargo.toml");
        assert_eq!(text.matches(place).count(), expected, "{path} names the address {place}");
        // Nor that of a fork, or of a place where the project has been.
        for host in ["github.com/", "gitlab.com/", "codeberg.org/", "ghcr.io/"] {
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            let repository = |rest: &str| {
                let (owner, name) = rest.split_once('/')?;
                let name = name.split(|c| !is_name(c)).next()?;
                owner.chars().all(is_name).then(|| name.to_owned())
            };
            let addresses = text.split(host).skip(1).filter_map(repository);
            let ours = addresses.filter(|name| name == "distlock");
            assert!(ours.count() <= expected, "{path} names an address of distlock at {host}");
        }
    }
}

#[test]
fn workflows_may_do_no_more_than_they_need() {
    let mut checked = 0;
    for entry in fs::read_dir(format!("{ROOT}/.github/workflows")).expect("the workflows") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a workflow");
        let path = path.display();
        assert!(text.contains("\npermissions:\n  contents: read\n"), "{path} has all permissions");
        assert!(!text.contains("secrets."), "{path} uses a secret");
        for line in text.lines().filter(|line| line.contains("uses:")) {
            let (_, version) = line.split_once('@').unwrap_or_else(|| panic!("{path}: {line}"));
            let major = version.strip_prefix('v').is_some_and(|v| v.parse::<u32>().is_ok());
            let commit = version.len() == 40 && version.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(major || commit, "{path} does not pin an action: {line}");
        }
        let checkouts = text.matches("uses: actions/checkout@").count();
        let careful = text.matches("persist-credentials: false").count();
        assert_eq!(checkouts, careful, "{path} leaves credentials behind");
        // A job that hangs costs six hours otherwise.
        let jobs = text.matches("runs-on:").count();
        assert_eq!(
            jobs,
            text.matches("timeout-minutes:").count(),
            "{path} has a job without limit"
        );
        checked += 1;
    }
    assert_eq!(checked, 3, "a workflow was added or removed");
}
