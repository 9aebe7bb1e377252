//! What is published: each crate as its own package, with everything a reader or a lawyer looks
//! for.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(ROOT).output();
    let output = output.expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A crate that is published.
struct Package {
    /// As `cargo metadata` describes it.
    about: Value,
    name: String,
    folder: String,
    /// The contents of its package.
    files: BTreeSet<String>,
}

impl Package {
    fn new(about: Value) -> Self {
        let text = |field: &str| about[field].as_str().expect("a text").to_owned();
        let (name, manifest) = (text("name"), text("manifest_path"));
        let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "-p", &name]);
        Self {
            name,
            folder: manifest.strip_suffix("/Cargo.toml").expect("a manifest").to_owned(),
            files: list.lines().map(str::to_owned).collect(),
            about,
        }
    }
}

fn published() -> &'static [Package] {
    static PUBLISHED: OnceLock<Vec<Package>> = OnceLock::new();
    PUBLISHED.get_or_init(|| {
        let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]);
        let mut metadata: Value = serde_json::from_str(&metadata).expect("JSON");
        let Value::Array(packages) = metadata["packages"].take() else { panic!("no packages") };
        // `publish = false` is an empty list of registries.
        let published = packages.into_iter().filter(|package| package["publish"].is_null());
        let published: Vec<_> = published.map(Package::new).collect();
        assert_eq!(published.len(), 9, "a new crate is published, or says `publish = false`");
        published
    })
}

#[test]
fn each_package_says_what_it_is() {
    for Package { about, name, .. } in published() {
        for field in ["description", "license", "readme", "documentation", "rust_version"] {
            assert!(about[field].is_string(), "{name} has no {field}");
        }
        for field in ["keywords", "categories", "authors"] {
            let empty = about[field].as_array().is_none_or(Vec::is_empty);
            assert!(!empty, "{name} has no {field}");
        }
        let pages = about["documentation"].as_str().expect("checked above");
        assert!(pages.starts_with("https://docs.rs/") && pages.contains(name), "{name}: {pages}");
        let is_program = about["targets"][0]["kind"][0] == "bin";
        let shown = &about["metadata"]["docs"]["rs"];
        let hidden = hidden(&about["features"], shown);
        assert!(is_program || hidden.is_empty(), "docs.rs shows {name} without {hidden:?}");
    }
}

/// The features that docs.rs does not show, but for those that need `protoc`.
fn hidden<'a>(features: &'a Value, shown: &'a Value) -> BTreeSet<&'a str> {
    if shown["all-features"] == true {
        return BTreeSet::new();
    }
    let list = |list: &'a Value| list.as_array().into_iter().flatten().filter_map(Value::as_str);
    let named: BTreeSet<_> = list(&shown["features"]).collect();
    // One feature brings others.
    let brought = named.iter().flat_map(|feature| list(&features[*feature]));
    let shown: BTreeSet<_> = named.iter().copied().chain(brought).collect();
    let all = features.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    all.filter(|name| !["default", "etcd-client"].contains(name) && !shown.contains(name)).collect()
}

#[test]
fn each_package_has_its_licences_and_its_page() {
    for Package { name, folder, files, .. } in published() {
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(files.contains(licence), "{name} is packaged without {licence}");
            let copy = fs::read_to_string(format!("{folder}/{licence}")).expect(name);
            let original = fs::read_to_string(format!("{ROOT}/{licence}")).expect(licence);
            assert_eq!(copy, original, "{licence} of {name} was changed");
        }
        assert!(files.contains("README.md"), "{name} is packaged without its README");
    }
}

/// Tests that need servers need `lock-testkit`, which is not published.
#[test]
fn no_package_has_what_cannot_be_built_from_it() {
    for Package { about, name, files, .. } in published() {
        let dependencies = about["dependencies"].as_array().expect("dependencies");
        let needs_servers = dependencies.iter().any(|other| other["name"] == "lock-testkit");
        let is_test = |file: &&String| file.starts_with("tests/") || file.starts_with("benches/");
        let test = files.iter().find(is_test);
        assert!(!needs_servers || test.is_none(), "{name} is packaged with {test:?}");
    }
}

/// A page of docs.rs links into the packages.
#[test]
fn what_docs_rs_links_to_is_packaged() {
    let mut checked = 0;
    let lib = fs::read_to_string(format!("{ROOT}/src/lib.rs")).expect("src/lib.rs");
    for Package { name, files, .. } in published() {
        let source = format!("https://docs.rs/crate/{name}/latest/source/");
        for link in lib.split(source.as_str()).skip(1) {
            let file = link.lines().next().unwrap_or_default();
            assert!(files.contains(file), "{source}{file} does not exist");
            checked += 1;
        }
    }
    assert!(checked > 5, "{checked} links");
}
