//! What `cargo deny check advisories` checks, without it and without the network: no version in `Cargo.lock` has an
//! advisory in the snapshot of `.ci/advisories`. As there, one that only informs is an error, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use semver::{Version, VersionReq};
use toml::{Table, Value};

/// What the database says about the versions of one crate.
#[derive(Debug)]
struct Advisory {
    id: String,
    package: String,
    title: String,
    /// What a crate is, if it is not vulnerable: `unmaintained`, `unsound` or `notice`.
    informational: Option<String>,
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
}

impl Advisory {
    /// From its page: a block of TOML, and below it the title.
    fn parse(page: &str) -> Self {
        let (head, body) = page
            .strip_prefix("```toml\n")
            .and_then(|rest| rest.split_once("\n```\n"))
            .expect("an advisory begins with a block of TOML");
        let head: Table = head.parse().unwrap_or_else(|error| panic!("{error}\n{head}"));
        let advisory = head["advisory"].as_table().expect("[advisory]");
        let field = |name: &str| advisory.get(name).and_then(Value::as_str).map(str::to_owned);
        let id = field("id").expect("an id");
        let title = body.lines().find_map(|line| line.strip_prefix("# "));
        let versions = |list: &str| {
            let list = head["versions"].get(list).map(|list| list.as_array().expect("a list"));
            let parse = |range: &Value| {
                let range = range.as_str().expect("a range of versions");
                range.parse().unwrap_or_else(|error| panic!("{id}: {range}: {error}"))
            };
            list.into_iter().flatten().map(parse).collect()
        };
        Self {
            package: field("package").expect("a package"),
            title: title.unwrap_or_else(|| panic!("{id} has no title")).to_owned(),
            informational: field("informational"),
            patched: versions("patched"),
            unaffected: versions("unaffected"),
            id,
        }
    }

    /// A pre-release that no range names counts as affected.
    fn affects(&self, version: &Version) -> bool {
        !self.patched.iter().chain(&self.unaffected).any(|range| range.matches(version))
    }

    /// What is wrong with this version, and what to do.
    fn about(&self, version: &Version) -> String {
        let Self { id, package, title, .. } = self;
        let kind = self.informational.as_deref().unwrap_or("vulnerable");
        let patched: Vec<_> = self.patched.iter().map(VersionReq::to_string).collect();
        let remedy = match patched.is_empty() {
            false => {
                format!("patched in {}: cargo update -p {package}@{version}", patched.join(" or "))
            }
            true => "patched in no version: replace it".to_owned(),
        };
        format!(
            "{package} {version} is {kind} ({id}: {title}); {remedy}; if we have to live with it, \
             deny.toml: [advisories] ignore = [{{ id = \"{id}\", reason = \"…\" }}]"
        )
    }
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every crate that `Cargo.lock` has from crates.io, with its versions.
fn locked(lock: &str) -> BTreeMap<String, BTreeSet<Version>> {
    let lock: Table = lock.parse().expect("Cargo.lock is TOML");
    let mut locked = BTreeMap::<_, BTreeSet<_>>::new();
    for package in lock["package"].as_array().expect("packages") {
        let field = |name: &str| package.get(name).and_then(Value::as_str);
        if field("source").is_some() {
            let version = field("version").expect("a version").parse().expect("a version");
            locked.entry(field("name").expect("a name").to_owned()).or_default().insert(version);
        }
    }
    locked
}

/// The advisories that `deny.toml` accepts.
fn accepted(deny: &str) -> BTreeSet<String> {
    let deny: Table = deny.parse().expect("deny.toml is TOML");
    let list = deny["advisories"].get("ignore").and_then(Value::as_array);
    let accept = |entry: &Value| {
        let field = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        assert!(!field("id").is_empty(), "deny.toml: not an id with a reason: {entry:?}");
        assert!(!field("reason").trim().is_empty(), "deny.toml: {} has no reason", field("id"));
        field("id").to_owned()
    };
    list.into_iter().flatten().map(accept).collect()
}

/// The advisories about one crate in the snapshot.
fn about(package: &str) -> Vec<Advisory> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/advisories/crates").join(package);
    let files = std::fs::read_dir(folder).into_iter().flatten();
    files.map(|file| Advisory::parse(&read(file.expect("a file").path()))).collect()
}

/// What is wrong with the locked versions, and with what is accepted of them.
fn judge(
    advisories: &[Advisory],
    locked: &BTreeMap<String, BTreeSet<Version>>,
    accepted: &BTreeSet<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut unused = accepted.clone();
    for advisory in advisories {
        for version in locked.get(&advisory.package).into_iter().flatten() {
            if !advisory.affects(version) {
                continue;
            }
            unused.remove(&advisory.id);
            if !accepted.contains(&advisory.id) {
                wrong.push(advisory.about(version));
            }
        }
    }
    wrong.extend(unused.iter().map(|id| format!("deny.toml accepts {id}, which is about nothing")));
    wrong
}

#[test]
fn no_locked_version_has_an_advisory() {
    let made = read(".ci/advisories/README.md");
    let made = made.lines().find_map(|line| line.strip_prefix("- Commit: ")).expect("its commit");
    let locked = locked(&read("Cargo.lock"));
    let advisories: Vec<_> = locked.keys().flat_map(|package| about(package)).collect();
    println!("{} advisories about {} crates, of commit {made}", advisories.len(), locked.len());
    let wrong = judge(&advisories, &locked, &accepted(&read("deny.toml")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A new dependency could have some that nobody has copied yet.
#[test]
fn the_snapshot_has_the_advisories_of_every_locked_crate() {
    let known = read(".ci/advisories/with-advisories.txt");
    let known: BTreeSet<_> = known.lines().collect();
    let locked = locked(&read("Cargo.lock"));
    assert!(locked.len() > 100 && known.len() > 500, "{} of {}", locked.len(), known.len());
    for package in locked.keys().filter(|package| known.contains(package.as_str())) {
        let advisories = about(package);
        assert!(!advisories.is_empty(), "{package} is new: run .ci/advisories/refresh");
        for Advisory { package: named, id, .. } in &advisories {
            assert_eq!(named, package, "{id} is in the wrong folder");
        }
    }
}

/// An advisory about two versions of one crate, with these lines.
fn doctored(lines: &str) -> Vec<String> {
    let (kind, versions) = lines.split_once('|').expect("two parts");
    let page = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-0000-0001\"\npackage = \"some\"\n{kind}\n\n\
         [versions]\n{versions}\n```\n\n# It burns\n\nText.\n"
    );
    judge(&[Advisory::parse(&page)], &some(), &BTreeSet::new())
}

fn some() -> BTreeMap<String, BTreeSet<Version>> {
    let package = |name, version, source| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{source}\n")
    };
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    locked(&[package("some", "1.4.0", registry), package("some", "2.0.1+x", registry)].concat())
}

#[test]
fn an_advisory_is_judged_by_each_locked_version() {
    assert_eq!(doctored("|patched = [\">= 1.4.0\"]"), [""; 0]);
    assert_eq!(doctored("|patched = [\"^1.3.2\", \">= 2.0.1\"]"), [""; 0]);
    assert_eq!(doctored("|patched = [\">= 2.0.1\"]\nunaffected = [\"< 1.5.0\"]"), [""; 0]);
    assert_eq!(doctored("|patched = [\"< 2.0.0, >= 1.4.1\", \">= 2.0.2\"]").len(), 2);
    for kind in ["unmaintained", "unsound", "notice"] {
        let found = doctored(&format!("informational = \"{kind}\"|patched = []"));
        assert!(found.len() == 2 && found[0].contains(&format!("is {kind} (")), "{found:?}");
        assert!(found[0].contains("patched in no version: replace it"), "{found:?}");
    }
    let found = doctored("|patched = [\">= 2.0.2\"]\nunaffected = [\"< 1.5.0\"]");
    assert_eq!(
        found,
        ["some 2.0.1+x is vulnerable (RUSTSEC-0000-0001: It burns); \
          patched in >=2.0.2: cargo update -p some@2.0.1+x; if we have to live with it, \
          deny.toml: [advisories] ignore = [{ id = \"RUSTSEC-0000-0001\", reason = \"…\" }]"]
    );
}

/// The real lock and a real advisory: as if the patch had never been made.
#[test]
fn a_locked_version_without_its_patch_is_found() {
    let page = read(".ci/advisories/crates/tokio/RUSTSEC-2025-0023.md");
    let (before, after) = page.split_once("patched = ").expect("its patches");
    let (_, after) = after.split_once(']').expect("the end of the list");
    let advisory = Advisory::parse(&format!("{before}patched = [\">= 999.0.0\"]{after}"));
    let found = judge(&[advisory], &locked(&read("Cargo.lock")), &BTreeSet::new());
    assert!(found.len() == 1 && found[0].starts_with("tokio 1."), "{found:?}");
}

#[test]
fn what_deny_toml_accepts_needs_a_reason_and_a_use() {
    let deny = |entry: &str| accepted(&format!("[advisories]\nignore = [{entry}]"));
    let page = "```toml\n[advisory]\nid = \"RUSTSEC-0000-0001\"\npackage = \"some\"\n\n\
                [versions]\npatched = []\n```\n\n# It burns\n";
    let advisories = [Advisory::parse(page)];
    let entry = "{ id = \"RUSTSEC-0000-0001\", reason = \"it is not called\" }";
    assert_eq!(judge(&advisories, &some(), &deny(entry)), [""; 0]);
    let unused = judge(&[], &some(), &deny(entry));
    assert_eq!(unused, ["deny.toml accepts RUSTSEC-0000-0001, which is about nothing"]);
    for entry in ["\"RUSTSEC-0000-0001\"", "{ id = \"RUSTSEC-0000-0001\" }", "{ reason = \"x\" }"] {
        assert!(std::panic::catch_unwind(|| deny(entry)).is_err(), "{entry} is accepted");
    }
}
