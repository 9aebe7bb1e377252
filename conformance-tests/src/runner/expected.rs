//! Which cases of a store run, and why the others do not, as a committed file says: a case that is suddenly
//! ignored would look like any other that is not for this store.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::cases;
use crate::runner::report::{CaseResult, Outcome};

/// The variable that has the file written instead of compared.
pub(crate) const WRITE: &str = "LOCK_TEST_EXPECT_WRITE";

const HEAD: &str = "\
# Which cases of the suite run here, and why the others do not. A run of the whole suite is compared with
# this file; with LOCK_TEST_EXPECT_WRITE=1 it writes it. Where chance decides, write `ran or ignored: why`.
";

/// What the file says of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Ran,
    Ignored(String),
    /// Chance decides.
    Either(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ran => f.write_str("ran"),
            Self::Ignored(reason) => write!(f, "ignored: {reason}"),
            Self::Either(reason) => write!(f, "ran or ignored: {reason}"),
        }
    }
}

impl Line {
    fn read(text: &str) -> Option<Self> {
        match text.split_once(": ") {
            None if text == "ran" => Some(Self::Ran),
            Some(("ignored", reason)) => Some(Self::Ignored(reason.to_owned())),
            Some(("ran or ignored", reason)) => Some(Self::Either(reason.to_owned())),
            _ => None,
        }
    }

    fn allows(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Either(_), Self::Ran) => true,
            (Self::Either(reason), Self::Ignored(seen)) => reason == seen,
            (line, seen) => line == seen,
        }
    }
}

type Lines = BTreeMap<String, Line>;

/// How much of the suite has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// The cases that were asked for.
    Part,
}

/// Compares a run with the file, if there is one, or writes it after a run of the whole suite: what is to be printed, or
/// what is not as expected. A run without the store says nothing, unless the store is required: then all that is ignored
/// is not for it.
pub(crate) fn compared(
    path: Option<&Path>,
    results: &[CaseResult],
    (extent, is_required): (Extent, bool),
) -> Result<Option<String>, Vec<String>> {
    let has_run = results.iter().any(|one| !matches!(one.outcome, Outcome::Ignored(_)));
    let (is_part, write) = (extent == Extent::Part, std::env::var_os(WRITE).is_some());
    if !(has_run || is_required) || (write && is_part) {
        return Ok(None);
    }
    let not_compared = |why: String| Ok((!is_part).then(|| format!("not compared: {why}")));
    let Some(path) = path else {
        return not_compared("no file says which cases have to run".to_owned());
    };
    let shown = path.display();
    if !(write || path.exists()) {
        return not_compared(format!("there is no {shown}; {WRITE}=1 writes it"));
    }
    let failed = |error: std::io::Error| vec![format!("{shown}: {error}")];
    let old = if path.exists() {
        read(&std::fs::read_to_string(path).map_err(failed)?).map_err(|line| {
            vec![format!("{shown} has the line `{line}`, which says nothing of a case")]
        })?
    } else {
        Lines::new()
    };
    if write {
        let folder = path.parent().unwrap_or(path);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(path, written(&old, results)))
            .map_err(failed)?;
        return Ok(Some(format!("written: {shown}")));
    }
    let different = different(&old, results, extent);
    match different.is_empty() {
        true if is_part => Ok(None),
        true => Ok(Some(format!("as expected: what has run is as {shown} says"))),
        false => Err(different),
    }
}

fn read(text: &str) -> Result<Lines, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (case, rest) = line.split_once(": ").ok_or(line)?;
            Ok((case.to_owned(), Line::read(rest).ok_or(line)?))
        })
        .collect()
}

/// One that has failed says nothing, as it might have been ignored.
fn seen(result: &CaseResult) -> Option<Line> {
    match &result.outcome {
        Outcome::Passed => Some(Line::Ran),
        Outcome::Ignored(reason) => Some(Line::Ignored(reason.clone())),
        Outcome::Failed(_) => None,
    }
}

fn different(expected: &Lines, results: &[CaseResult], extent: Extent) -> Vec<String> {
    let mut all = Vec::new();
    for result in results {
        let case = result.id;
        match (expected.get(case), seen(result)) {
            (None, _) => all.push(format!("{case} is not in the file")),
            (Some(line), Some(seen)) if !line.allows(&seen) => {
                all.push(format!("{case}: {seen}, and the file says {line}"));
            }
            _ => {}
        }
    }
    let is_gone =
        |case: &&String| extent == Extent::Whole && !results.iter().any(|one| one.id == **case);
    let gone = expected.keys().filter(is_gone);
    all.extend(gone.map(|case| format!("{case} is in the file, and there is no such case")));
    all.sort();
    all
}

fn written(old: &Lines, results: &[CaseResult]) -> String {
    let line = |result: &CaseResult| {
        let (old, seen) = (old.get(result.id).cloned(), seen(result));
        match (old, seen) {
            (Some(old), Some(seen)) if old.allows(&seen) => old,
            (_, Some(seen)) => seen,
            (old, None) => old.unwrap_or(Line::Ran),
        }
    };
    let results = cases::all().filter_map(|case| results.iter().find(|one| one.id == case.id));
    results.fold(HEAD.to_owned(), |all, one| all + &format!("{}: {}\n", one.id, line(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(outcomes: [Outcome; 3]) -> Vec<CaseResult> {
        let cases = cases::all().map(|case| case.id);
        cases.zip(outcomes).map(|(id, outcome)| CaseResult { id, outcome }).collect()
    }

    fn ignored(reason: &str) -> Outcome {
        Outcome::Ignored(reason.to_owned())
    }

    #[test]
    fn what_is_written_is_what_is_expected() {
        let first = results([Outcome::Passed, ignored("no queue"), ignored("no luck")]);
        let text = written(&Lines::new(), &first);
        assert_eq!(different(&read(&text).unwrap(), &first, Extent::Whole), [""; 0]);

        let by_hand = text.replace(": ignored: no luck", ": ran or ignored: no luck");
        let by_hand = read(&by_hand).unwrap();
        let lucky = results([Outcome::Passed, ignored("no queue"), Outcome::Passed]);
        assert_eq!(different(&by_hand, &first, Extent::Whole), [""; 0]);
        assert_eq!(different(&by_hand, &lucky, Extent::Whole), [""; 0]);
        assert_eq!(read(&written(&by_hand, &lucky)).unwrap(), by_hand, "the line is kept");

        let failed = Outcome::Failed("seen".to_owned());
        let failed = results([failed.clone(), failed.clone(), failed]);
        assert_eq!(different(&by_hand, &failed, Extent::Whole), [""; 0]);
        assert_eq!(read(&written(&by_hand, &failed)).unwrap(), by_hand);
    }

    #[test]
    fn each_difference_is_told() {
        let before = results([Outcome::Passed, ignored("no queue"), Outcome::Passed]);
        let [a, b, c] = [0, 1, 2].map(|at| before[at].id);
        let mut expected = read(&written(&Lines::new(), &before)).unwrap();
        expected.remove(c);
        expected.insert("x99_gone".to_owned(), Line::Ran);
        let now = results([ignored("no luck"), ignored("no luck"), Outcome::Passed]);
        let mut told = vec![
            format!("{a}: ignored: no luck, and the file says ran"),
            format!("{b}: ignored: no luck, and the file says ignored: no queue"),
            format!("{c} is not in the file"),
            "x99_gone is in the file, and there is no such case".to_owned(),
        ];
        told.sort();
        assert_eq!(different(&expected, &now, Extent::Whole), told);
        // What was not asked for is not missing.
        assert_eq!(different(&expected, &now[..1], Extent::Part), told[..1]);
        assert_eq!(read("c01_x: passed"), Err("c01_x: passed".to_owned()));
    }
    #[test]
    fn a_run_of_a_part_is_compared_with_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.txt");
        let before = results([Outcome::Passed, ignored("no queue"), Outcome::Passed]);
        std::fs::write(&path, written(&Lines::new(), &before)).unwrap();
        let part = |outcome: Outcome, is_required| {
            let now = [CaseResult { id: before[0].id, outcome }];
            compared(Some(&path), &now, (Extent::Part, is_required)).map_err(|all| all.len())
        };
        assert_eq!(part(Outcome::Passed, true), Ok(None));
        assert_eq!(part(ignored("no luck"), true), Err(1));
        assert_eq!(part(ignored("no server"), false), Ok(None));
    }
}
