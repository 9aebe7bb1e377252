//! The results, for people: tables, plots, and what follows from them.

mod capacity;
mod plot;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use crate::Done;
use crate::results::{Part, Results, Row};

const BEGIN: &str = "<!-- figures: written by the program -->\n";
const END: &str = "<!-- end of the figures -->\n";

/// Everything as tables in Markdown.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = format!("{}\n", results.machine);
    for (part, rows) in by_part(&results.rows) {
        text += &format!("\n### {}\n\n{}", part.title(), table::of(&rows));
    }
    text
}

fn by_part(rows: &[Row]) -> Vec<(Part, Vec<&Row>)> {
    let mut parts: Vec<(Part, Vec<&Row>)> = Vec::new();
    for row in rows {
        match parts.iter_mut().find(|(part, _)| *part == row.part) {
            Some((_, rows)) => rows.push(row),
            None => parts.push((row.part, vec![row])),
        }
    }
    parts
}

/// Replaces the figures of a page by those of the files.
pub(crate) fn write(page: &Path, files: &[PathBuf]) -> Done {
    let mut all: Option<Results> = None;
    for file in files {
        let read: Results = serde_json::from_str(&fs::read_to_string(file)?)?;
        let mut older = all.map_or_else(Vec::new, |all| all.rows);
        older.retain(|old| !read.rows.iter().any(|row| row.is_of_the_same(old)));
        older.extend(read.rows);
        older.sort_by_key(|row| (row.part, row.store));
        all = Some(Results { machine: read.machine, rows: older });
    }
    let results = all.ok_or("no results")?;
    let folder = page.parent().ok_or("no folder")?.join("plots");
    fs::create_dir_all(&folder)?;
    let mut figures = format!("\n{}\n", results.machine);
    for (part, rows) in by_part(&results.rows) {
        let plot = plot::of(part.title(), &rows);
        let shown: Vec<_> = rows.into_iter().filter(|row| is_on_page(row)).collect();
        figures += &format!("\n### {}\n\n{}", part.title(), table::of(&shown));
        if let Some(plot) = plot {
            let name = format!("{part:?}.svg").to_lowercase();
            fs::write(folder.join(&name), plot)?;
            figures += &format!("\n![{}](plots/{name})\n", part.title());
        }
    }
    figures += &format!("\n### What a store carries\n\n{}\n", capacity::table(&results.rows));
    let old = fs::read_to_string(page)?;
    fs::write(page, replaced(&old, &figures)?)?;
    Ok(())
}

/// A page with every case is read by nobody. In the files and the plots only are the halves of a pair,
/// the numbers of waiters and of held locks in between, and of other libraries what nobody compares.
fn is_on_page(row: &Row) -> bool {
    let (case, is_peer) = (row.case.as_str(), !row.library.starts_with("distlock"));
    match row.part {
        _ if row.failed.is_some() => true,
        Part::Pair if is_peer => case == "busy: both",
        Part::Pair => case.ends_with("both"),
        Part::HandOver if is_peer && case.ends_with(" 1 processes") => false,
        Part::HandOver => !case.starts_with("1 waiting") && !case.starts_with("100 waiting"),
        Part::Throughput if is_peer => case.ends_with(" 1 names"),
        Part::Held => !case.starts_with("1000 "),
        _ => true,
    }
}

/// The page with other text between its markers.
fn replaced(page: &str, figures: &str) -> Done<String> {
    let missing = || format!("the page has no {BEGIN}");
    let (head, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (_, tail) = rest.split_once(END).ok_or_else(|| format!("the page has no {END}"))?;
    Ok(format!("{head}{BEGIN}{figures}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(replaced("a\n", "new\n").unwrap_err().to_string().contains(BEGIN.trim()));
    }
}
