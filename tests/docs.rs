//! The documents quote exactly what is tested, and their links lead somewhere.

use std::fs;
use std::io::Write;
use std::path::{Component, Path};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_store_of_the_guide_is_the_one_that_is_tested() {
    let guide = read("docs/writing-a-backend.md");
    for file in ["main.rs", "store.rs"] {
        let path = format!("conformance-tests/tests/real_server/{file}");
        let code = read(&path);
        assert!(code.len() > 1000);
        assert!(
            guide.contains(&format!("```rust\n{code}```\n")),
            "docs/writing-a-backend.md quotes a different text: copy {path} into it"
        );
    }
}

/// The pages that rustdoc shows, each with the file that includes it.
const SHOWN_BY_RUSTDOC: &[(&str, &str)] = &[
    ("README.md", "src/lib.rs"),
    ("conformance-tests/README.md", "conformance-tests/src/lib.rs"),
    ("lock-redis/README.md", "lock-redis/src/lib.rs"),
    ("lock-redis/REDLOCK.md", "lock-redis/src/redlock/mod.rs"),
    ("lock-redis/SENTINEL.md", "lock-redis/src/sentinel.rs"),
    ("lock-etcd/README.md", "lock-etcd/src/lib.rs"),
    ("lock-zk/README.md", "lock-zk/src/lib.rs"),
    ("lock-sql/README.md", "lock-sql/src/lib.rs"),
];

/// The other pages outside of the guide.
const PAGES: &[&str] = &[
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "lock-cli/README.md",
    "lock-core/README.md",
];

/// The pages of the guide: everything under `docs/`.
fn guide() -> Vec<String> {
    fn walk(folder: &str, pages: &mut Vec<String>) {
        let path = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in fs::read_dir(path).expect("the folder of the guide") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            let path = format!("{folder}/{name}");
            match name.rsplit_once('.') {
                Some((_, "md")) => pages.push(path),
                Some(_) => {}
                None => walk(&path, pages),
            }
        }
    }
    let mut pages = Vec::new();
    walk("docs", &mut pages);
    pages.sort();
    pages
}

#[test]
fn the_table_of_contents_has_every_page_of_the_guide() {
    let contents = read("docs/SUMMARY.md");
    for page in guide().iter().filter_map(|page| page.strip_prefix("docs/")) {
        let listed = contents.matches(&format!("]({page})\n")).count();
        assert_eq!(listed, usize::from(page != "SUMMARY.md"), "{page} in docs/SUMMARY.md");
    }
}

/// The definitions at the end of a page: `[label]: link`.
fn definitions(text: &str) -> impl Iterator<Item = (String, String)> {
    let define = |line: &str| {
        let (label, link) = line.strip_prefix('[')?.split_once("]: ")?;
        Some((label.to_owned(), link.to_owned()))
    };
    text.lines().filter_map(define).collect::<Vec<_>>().into_iter()
}

/// Only rustdoc hides lines that begin with `# `. Every reader should see what is compiled.
#[test]
fn no_page_has_lines_that_only_rustdoc_hides() {
    for (page, _) in SHOWN_BY_RUSTDOC {
        let text = read(page);
        let rust = text.split("```").skip(1).step_by(2);
        for block in rust.filter(|block| block.starts_with("rust") || block.starts_with("no_run")) {
            let hidden = block.lines().find(|line| line.trim_start().starts_with("# "));
            assert_eq!(hidden, None, "in {page}");
        }
    }
}

/// The picture of the README, which has this path as its label.
const PICTURE: &str = "docs/img/paused-holder.svg";

/// For rustdoc, which finds no picture by its path: a definition of its label that holds the picture itself.
fn definition_for_rustdoc() -> String {
    let text: Vec<_> = read(PICTURE).lines().map(|line| line.trim_start().to_owned()).collect();
    let text = text.join(" ").replace('%', "%25").replace('&', "%26");
    let text = text.replace('#', "%23").replace('<', "%3C").replace('>', "%3E");
    format!("[{PICTURE}]: <data:image/svg+xml,{text}>\n")
}

/// `DISTLOCK_WRITE_PICTURE=1` writes the file, after a change of the picture.
#[test]
fn the_page_of_rustdoc_has_the_picture_of_the_readme_in_it() {
    let made = definition_for_rustdoc();
    if std::env::var_os("DISTLOCK_WRITE_PICTURE").is_some() {
        let file = format!("{}/src/picture.md", env!("CARGO_MANIFEST_DIR"));
        fs::write(file, &made).expect("src is writable");
    }
    assert_eq!(
        read("src/picture.md"),
        made,
        "the picture was changed: DISTLOCK_WRITE_PICTURE=1 cargo test --test docs"
    );
    let lib = read("src/lib.rs");
    let included = |file: &str| lib.find(&format!("\n#![doc = include_str!(\"{file}\")]\n"));
    let (picture, page) = (included("picture.md"), included("../README.md"));
    assert!(picture.is_some() && picture < page, "the first definition of a label counts");
    for (page, _) in SHOWN_BY_RUSTDOC {
        let text = read(page);
        let all = text.matches("\n![").count();
        let held = text.matches(&format!("][{PICTURE}]\n")).count();
        assert_eq!(all, held, "{page} has a picture that rustdoc does not find");
    }
}

/// A relative path works in a clone, but not on docs.rs. For a page shown there too, the including
/// file defines the label first, since the first definition of a label counts.
#[test]
fn a_path_in_a_page_that_rustdoc_shows_leads_somewhere_there_too() {
    for (page, source) in SHOWN_BY_RUSTDOC {
        let (text, source) = (read(page), read(source));
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in inline {
            assert!(link.starts_with('#') || link.contains("://"), "{page}: {link} has no label");
        }
        let definitions = definitions(&text).filter(|(label, _)| label != PICTURE);
        for (label, link) in definitions.filter(|(_, link)| !link.contains("://")) {
            let there = source.find(&format!("//! [{label}]: "));
            let page = source.find("#![doc = include_str!(");
            assert!(
                there.is_some() && there < page,
                "[{label}]: {link} is not defined for rustdoc"
            );
        }
    }
}

#[test]
fn the_tests_of_the_testing_page_are_the_ones_that_run() {
    let code = read("tests/testing_your_code.rs");
    assert!(code.len() > 1000);
    assert!(
        read("docs/testing.md").contains(&format!("```rust\n{code}```\n")),
        "docs/testing.md quotes a different text: copy tests/testing_your_code.rs into it"
    );
}

/// What the headings of a page are linked by: a repeated one gets a number.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        anchors.push(names.find(|name| !anchors.contains(name)).expect("some number is free"));
    }
    anchors
}

/// The files of which pages of the guide quote everything but the comments. The tests of the program use them.
const QUOTED: &[(&str, &[&str])] = &[
    (
        "jobs",
        &[
            "one_job/nightly-report.cron",
            "one_job/nightly-report.service",
            "one_job/nightly-report.timer",
        ],
    ),
    ("one-replica", &["one_replica/scheduler.service"]),
    (
        "kubernetes",
        &["kubernetes/secret.yaml", "kubernetes/deployment.yaml", "kubernetes/cronjob.yaml"],
    ),
];

#[test]
fn the_files_in_the_guide_are_the_ones_that_are_tested() {
    for (page, files) in QUOTED {
        let guide = read(&format!("docs/guide/{page}.md"));
        for file in *files {
            let text = read(&format!("examples/{file}"));
            let lines =
                text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with('#'));
            let text: String = lines.collect();
            assert!(
                text.lines().count() > 3 && guide.contains(&format!("\n{text}```\n")),
                "{file}"
            );
        }
    }
}

/// Where the code of the guide is compiled, and the pages that quote a file instead.
const COMPILED: &[&str] = &["src/lib.rs", "examples/guide.rs"];
const QUOTES: &[&str] = &["docs/testing.md", "docs/writing-a-backend.md"];

#[test]
fn the_code_in_the_guide_is_compiled() {
    let compiled: String = COMPILED.iter().map(|file| read(file)).collect();
    for page in guide().iter().filter(|page| !QUOTES.contains(&page.as_str())) {
        let text = read(page);
        if text.contains("```rust\n") || text.contains("```rust,no_run\n") {
            assert!(
                compiled.contains(&format!("include_str!(\"../{page}\")")),
                "{page} is in no doctest"
            );
        }
    }
}

/// The pages with a part of an example that no doctest compiles, and the file that has it.
const PARTS: &[(&str, &str)] = &[("axum", "edit_lock/main.rs"), ("workers", "tasks.rs")];

#[test]
fn the_parts_of_examples_in_the_guide_are_those_of_the_examples() {
    for (page, file) in PARTS {
        let (guide, example) =
            (read(&format!("docs/guide/{page}.md")), read(&format!("examples/{file}")));
        let parts =
            guide.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("```").next());
        let parts: Vec<_> = parts.collect();
        assert!(!parts.is_empty(), "{page} quotes nothing");
        for part in parts {
            assert!(part.lines().count() > 2 && example.contains(part), "{file} has no\n{part}");
        }
    }
}

/// The links of a page, inline and in its definitions, that do not name another server.
fn local_links(text: &str) -> impl Iterator<Item = String> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inline: Vec<_> = inline.map(str::to_owned).collect();
    let all = inline.into_iter().chain(definitions(text).map(|(_, link)| link));
    all.filter(|link| !link.contains("://"))
}

/// Where a path on a page leads to, from the root of the repository.
fn target(page: &str, path: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                assert!(parts.pop().is_some(), "{page}: {path} leaves the repository")
            }
            Component::Normal(name) => parts.push(name.to_str().expect("UTF-8")),
            _ => {}
        }
    }
    parts.join("/")
}

#[test]
fn local_links_of_the_documents_lead_somewhere() {
    let mut checked = 0;
    let named = SHOWN_BY_RUSTDOC.iter().map(|(page, _)| page).chain(PAGES);
    for page in named.map(|page| (*page).to_owned()).chain(guide()) {
        for link in local_links(&read(&page)) {
            let (link, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = if link.is_empty() { page.clone() } else { target(&page, link) };
            assert!(
                fs::exists(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap_or(false),
                "{page} links to {link}, which does not exist"
            );
            assert!(
                anchor.is_empty() || anchors(&read(&path)).iter().any(|known| known == anchor),
                "{page} links to {path}#{anchor}, where no heading has this name"
            );
            checked += 1;
        }
    }
    assert!(checked > 0);
}

/// The pictures below `docs/`, by their paths.
fn pictures() -> Vec<String> {
    let mut pictures = Vec::new();
    for folder in ["docs", "docs/img", "docs/performance"] {
        let path = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in fs::read_dir(path).expect("a folder of the guide") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(".svg") || name.ends_with(".png") {
                pictures.push(format!("{folder}/{name}"));
            }
        }
    }
    pictures
}

#[test]
fn a_picture_is_small_and_says_what_it_shows() {
    for picture in pictures() {
        let bytes = fs::read(format!("{}/{picture}", env!("CARGO_MANIFEST_DIR"))).expect("a file");
        if picture.ends_with(".png") {
            assert!(bytes.len() <= 120_000, "{picture} has {} bytes", bytes.len());
            continue;
        }
        assert!(bytes.len() <= 60_000, "{picture} has {} bytes", bytes.len());
        let text = String::from_utf8(bytes).expect("UTF-8");
        // Its title is read aloud, and it suits a dark page.
        for part in
            ["role=\"img\"", "aria-labelledby=\"", "<title id=\"", "(prefers-color-scheme:dark)"]
        {
            assert!(text.contains(part), "{picture} has no {part}");
        }
        let is_still =
            !text.contains("animation") || text.contains("(prefers-reduced-motion:reduce)");
        assert!(is_still, "{picture} moves for those who do not want it");
        for part in ["<script", "<foreignObject", "href=", "url(h", "/home/", "/root/", "/tmp/"] {
            assert!(!text.contains(part), "{picture} contains {part}");
        }
    }
}

#[test]
fn each_picture_is_on_a_page_and_its_text_describes_it() {
    let mut unused = pictures();
    let named = SHOWN_BY_RUSTDOC.iter().map(|(page, _)| page).chain(PAGES);
    for page in named.map(|page| (*page).to_owned()).chain(guide()) {
        for rest in read(&page).split("\n![").skip(1) {
            let (words, rest) = rest.split_once(']').expect("the end of a text");
            assert!(words.len() > 30, "{page}: {words:?} describes no picture");
            let path = match rest.strip_prefix('(') {
                Some(path) => target(&page, path.split(')').next().expect("a first part")),
                None => PICTURE.to_owned(),
            };
            unused.retain(|picture| *picture != path);
        }
    }
    assert_eq!(unused, [] as [&str; 0], "on no page");
}

/// What the guide may link to outside of `docs/`. The book leads to the repository there.
const OUTSIDE: &[&str] = &[
    // Pages that belong to a crate, or to the project.
    "CONTRIBUTING.md",
    "SECURITY.md",
    "lock-cli/README.md",
    "lock-etcd/README.md",
    "lock-redis/README.md",
    "lock-redis/REDLOCK.md",
    "lock-redis/SENTINEL.md",
    "lock-sql/README.md",
    "lock-zk/README.md",
    "verification/soak/README.md",
    // What a reader starts or copies.
    "compose.yaml",
    "examples/",
    // The map of each crate, and code that is its own documentation.
    "src/lib.rs",
    "conformance-tests/src/lib.rs",
    "lock-cli/src/main.rs",
    "lock-core/src/lib.rs",
    "lock-core/src/contract/mod.rs",
    "lock-core/src/testing.rs",
    "lock-etcd/src/lib.rs",
    "lock-kit/src/lib.rs",
    "lock-redis/src/lib.rs",
    "lock-sql/src/lib.rs",
    "lock-zk/src/lib.rs",
    "verification/keeper-schedules/src/lib.rs",
    "verification/lock-simulation/src/lib.rs",
    // Tests that show what a page says.
    "conformance-tests/tests/",
    "lock-core/tests/it/",
];

#[test]
fn links_in_the_book_stay_in_it_or_lead_to_a_place_that_is_meant() {
    let mut used = vec![false; OUTSIDE.len()];
    for page in guide().into_iter().filter(|page| page != "docs/SUMMARY.md") {
        for link in local_links(&read(&page)) {
            let path = link.split('#').next().unwrap_or_default();
            let to = if path.is_empty() { page.clone() } else { target(&page, path) };
            if to.starts_with("docs/") {
                // The book has neither a page of contents nor pages for folders.
                assert!(to != "docs/SUMMARY.md" && to.contains('.'), "{page} links to {to}");
                continue;
            }
            let place = OUTSIDE
                .iter()
                .position(|place| to == *place || place.ends_with('/') && to.starts_with(place));
            used[place.unwrap_or_else(|| panic!("{page} leaves the book for {to}"))] = true;
        }
    }
    for (place, is_used) in OUTSIDE.iter().zip(used) {
        assert!(is_used, "no page links to {place}");
    }
}

/// The book as mdBook would hand it to a preprocessor, and as it gets it back.
fn preprocessed(book: Value) -> Value {
    let mut preprocessor = Command::new(format!("{}/.ci/book-links", env!("CARGO_MANIFEST_DIR")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = preprocessor.stdin.take().expect("a pipe");
    let written =
        std::thread::spawn(move || input.write_all(json!([{}, book]).to_string().as_bytes()));
    let output = preprocessor.wait_with_output().expect("it ends");
    written.join().expect("no panic").expect("it reads");
    assert!(output.status.success(), "is jq installed?");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn links_that_leave_the_book_get_the_address_of_the_repository() {
    let pages = guide();
    let chapter = |page: &String| {
        let path = page.strip_prefix("docs/").expect("in docs");
        json!({"Chapter": {"content": read(page), "path": path, "sub_items": []}})
    };
    let book = json!({"items": pages.iter().map(chapter).collect::<Vec<_>>()});
    let made = preprocessed(book);
    let mut replaced = 0;
    for (page, made) in pages.iter().zip(made["items"].as_array().expect("chapters")) {
        let made = made["Chapter"]["content"].as_str().expect("a text");
        for link in local_links(made) {
            let path = link.split('#').next().unwrap_or_default();
            assert!(path.is_empty() || target(page, path).starts_with("docs/"), "{page}: {link}");
        }
        let left = local_links(&read(page)).count() - local_links(made).count();
        assert!(made.matches("/distlock/blob/HEAD/").count() >= left, "{page}");
        replaced += left;
    }
    assert!(replaced > 50, "{replaced} links were replaced");
}
