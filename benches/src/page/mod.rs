//! The results, for people: tables, plots, and what follows from them.

mod answers;
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

/// Replaces the figures of `performance.md` and `performance/rows.md` in this folder by those of the files, and draws the
/// plots beside the rows.
pub(crate) fn write(docs: &Path, files: &[PathBuf]) -> Done {
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
    let mut figures = format!("\n{}\n", results.machine);
    for answer in answers::all(&results.rows) {
        let title = answer.title;
        figures += &format!("\n### {title}\n\n{}", answer.table);
        if let Some((name, plot)) = answer.plot {
            let file = format!("performance/{name}.svg");
            fs::write(docs.join(&file), plot.svg())?;
            figures += &format!("\n![{}]({file})\n", plot.description());
        }
    }
    replace(&docs.join("performance.md"), &format!("{figures}\n"))?;
    let capacity = capacity::table(&results.rows);
    let rows = format!("\n{}\n### What a store carries\n\n{capacity}\n", tables(&results));
    replace(&docs.join("performance/rows.md"), &rows)
}

fn replace(page: &Path, figures: &str) -> Done {
    let old = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(fs::write(page, replaced(&old, figures)?)?)
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
