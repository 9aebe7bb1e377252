//! Each published crate begins with a map of its rooms, on which every file is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of each crate, and the file that begins with its map.
const CRATES: &[(&str, &str)] = &[
    ("", "lib.rs"),
    ("lock-core", "lib.rs"),
    ("lock-kit", "lib.rs"),
    ("lock-redis", "lib.rs"),
    ("lock-sql", "lib.rs"),
    ("lock-etcd", "lib.rs"),
    ("lock-zk", "lib.rs"),
    ("conformance-tests", "lib.rs"),
    ("lock-cli", "main.rs"),
];

/// The longest map that is read.
const LONGEST: usize = 25;

fn sources(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder`, each as the folders on the way to it and its name without the ending.
fn files(folder: &Path) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        if path.is_dir() {
            let below = files(&path).into_iter();
            found.extend(below.map(|rest| std::iter::once(name.clone()).chain(rest).collect()));
        } else {
            found.push(vec![name]);
        }
    }
    found
}

/// The lines of the map: ``//! - `queue` — the requests of one claim``, which may go on in the next line.
fn map(text: &str) -> Vec<&str> {
    let mut is_map = false;
    let lines = text.lines().filter(|line| {
        is_map = line.starts_with("//! - `") || (is_map && line.starts_with("//!   "));
        is_map
    });
    lines.collect()
}

/// The words in backquotes. Each folder may have a `mod.rs`: it is on the map as the folder.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split('`').skip(1).step_by(2).map(|word| word.trim_end_matches(".rs"));
    words.filter(|word| *word != "mod")
}

#[test]
fn every_file_is_on_the_map_of_its_crate() {
    let mut wrong = Vec::new();
    for (folder, root) in CRATES {
        let src = sources(folder);
        let text = read(&src.join(root));
        let map = map(&text);
        // A room may be named with its folder: `engine/table`.
        let rooms: BTreeSet<&str> = map.iter().flat_map(|line| quoted(line)).collect();
        let root = root.trim_end_matches(".rs");
        let files: Vec<String> = files(&src).iter().map(|file| file.join("/")).collect();
        for file in files.iter().filter(|file| *file != root) {
            if !rooms.iter().any(|room| is_in(file, room)) {
                wrong.push(format!("{folder}/src/{file} is on no map"));
            }
        }
        // What a line is about; the words after the dash may be others.
        let heads = map.iter().filter_map(|line| line.split_once(" — "));
        for room in heads.flat_map(|(head, _)| quoted(head)) {
            if !files.iter().any(|file| is_in(file, room)) {
                wrong.push(format!("{folder}: the map names {room}, which is not there"));
            }
        }
        if !(1..=LONGEST).contains(&map.len()) {
            wrong.push(format!("{folder}: the map has {} lines", map.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether `room` is the file, or one of the folders on the way to it.
fn is_in(file: &str, room: &str) -> bool {
    format!("/{file}/").contains(&format!("/{room}/"))
}
