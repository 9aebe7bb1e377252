//! The public API, as rustdoc shows it: `docs/public-api/` is the reviewed listing. Run by
//! `.ci/public-api`, which says how to regenerate it; not by a plain `cargo test`, since it builds
//! the documentation of every published crate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATES: &[&str] = &[
    "distlock",
    "lock-core",
    "lock-redis",
    "lock-sql",
    "lock-etcd",
    "lock-zk",
    "conformance-tests",
];

#[test]
fn the_listing_is_what_rustdoc_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = build_documentation(root);
    let write = std::env::var_os("DISTLOCK_WRITE_PUBLIC_API").is_some();
    let mut changed = Vec::new();
    for name in CRATES {
        let listing = list(&target.join("doc").join(name.replace('-', "_")));
        assert!(listing.lines().count() > 20, "{name}: the pages of rustdoc could not be parsed");
        let file = root.join(format!("docs/public-api/{name}.txt"));
        if write {
            fs::create_dir_all(file.parent().expect("a folder")).expect("docs/public-api");
            fs::write(&file, listing).expect(name);
        } else {
            changed.extend(difference(&file, &listing));
        }
    }
    assert!(
        changed.is_empty(),
        "the public API is not what docs/public-api says; look at the change, say in docs/api.md why a name is there, and run `.ci/public-api write`:\n{}",
        changed.join("\n")
    );
}

/// Builds as a user does, without the mutants of a test build, and as `test.sh` has built it already.
/// Returns the target folder.
fn build_documentation(root: &Path) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["doc", "--locked", "--workspace", "--all-features", "--no-deps", "--quiet"]);
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env("RUSTDOCFLAGS", "-D warnings");
    // With what cargo tells this test of itself, a crate whose build reads such variables would be built again, and once more
    // by whoever builds without them.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    assert!(cargo.current_dir(root).status().expect("cargo runs").success(), "cargo doc fails");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The lines that are in only one of the two.
fn difference(file: &Path, now: &str) -> Vec<String> {
    let before = fs::read_to_string(file).unwrap_or_default();
    if before == now {
        return Vec::new();
    }
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    before.lines().for_each(|line| *counts.entry(line).or_default() -= 1);
    now.lines().for_each(|line| *counts.entry(line).or_default() += 1);
    let shown = counts.iter().filter(|(_, count)| **count != 0);
    let mut lines = vec![format!("{}:", file.display())];
    lines.extend(
        shown.map(|(line, count)| format!("{} {line}", if *count > 0 { '+' } else { '-' })),
    );
    lines
}

/// All items reachable from the first page of a crate, with their declarations.
fn list(folder: &Path) -> String {
    let mut items = BTreeMap::new();
    module(folder, &folder.file_name().expect("a name").to_string_lossy(), &mut items);
    items.into_iter().map(|(path, lines)| format!("{path}\n{}", lines.concat())).collect()
}

fn module(folder: &Path, path: &str, items: &mut BTreeMap<String, Vec<String>>) {
    let page = read(&folder.join("index.html"));
    let reexports = between(&page, "<code>pub use ", "</code>")
        .map(|text| format!("    pub use {}\n", plain(text)));
    items.insert(format!("mod {path}"), reexports.collect());
    for (kind, link) in links(&page) {
        let file = folder.join(&link);
        if kind == "mod" {
            let inner = file.parent().expect("a folder");
            let name = inner.file_name().expect("a name").to_string_lossy().into_owned();
            module(inner, &format!("{path}::{name}"), items);
        } else {
            let name = link.trim_end_matches(".html").rsplit('.').next().unwrap_or_default();
            items.insert(format!("{kind} {path}::{name}"), item(&read(&file)));
        }
    }
}

/// The items of a module: their kinds and pages, which are in the same folder or below it.
fn links(page: &str) -> Vec<(String, String)> {
    let mut links = Vec::new();
    for table in between(page, "<dl class=\"item-table", "</dl>") {
        for link in between(table, "<a class=\"", "\" title=") {
            let Some((kind, link)) = link.split_once("\" href=\"") else { continue };
            if !link.starts_with("..") && !link.contains("://") && link.ends_with(".html") {
                links.push((kind.to_owned(), link.to_owned()));
            }
        }
    }
    links
}

/// An item's declaration, its methods, and the traits that it implements itself, without blanket
/// implementations.
fn item(page: &str) -> Vec<String> {
    let page = page.split("id=\"blanket-implementations\"").next().unwrap_or_default();
    let own = page.split("id=\"trait-implementations\"").next().unwrap_or_default();
    let own = own.split("id=\"deref-methods").next().unwrap_or_default();
    let mut lines = Vec::new();
    for declared in between(own, "<pre class=\"rust item-decl\"><code>", "</code></pre>") {
        lines.extend(plain(declared).lines().map(|line| format!("    {line}\n")));
    }
    for method in between(own, "<h4 class=\"code-header\">", "</h4>") {
        lines.push(format!("    {}\n", one_line(method)));
    }
    let implemented = between(page, "<h3 class=\"code-header\">", "</h3>").map(one_line);
    let named = implemented.filter(|line| {
        line.starts_with("impl")
            && line.contains(" for ")
            && !OF_THE_COMPILER.iter().any(|own| line.contains(&format!("{own} for ")))
    });
    lines.extend(named.map(|line| format!("    {line}\n")));
    lines
}

/// Traits that stable code cannot name.
const OF_THE_COMPILER: &[&str] = &["Freeze", "StructuralPartialEq", "UnsafeUnpin"];

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

fn one_line(html: &str) -> String {
    plain(html).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text of a piece of HTML.
fn plain(html: &str) -> String {
    let mut text = String::new();
    for (at, piece) in html.replace("<br>", "\n").replace("</div>", "\n").split('<').enumerate() {
        text.push_str(if at == 0 {
            piece
        } else {
            piece.split_once('>').map_or("", |(_, rest)| rest)
        });
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&#39;", "'").replace("&nbsp;", " ").replace("\u{a0}", " ").replace("&amp;", "&")
}
