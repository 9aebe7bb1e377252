//! `docs/matrix.md`: made of what the cases and the reasons say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use super::Axis;
use super::reason::{Like, Why};
use super::{Cell, Decided, Matrix, store, user};
use crate::cases;
use crate::runner::case::Case;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/matrix.md");

const ABOUT: &str = "\
# What decides what

This page is made of what the cases of the conformance suite say that they decide. `.ci/matrix write` makes it anew, and `./test.sh`
fails if it is out of date, or if a cell is empty without a reason.

It has two parts: [what a store does](#what-a-store-does), for those who write one, and [what a user sees](#what-a-user-sees), for
those who change the core. A case of the first part fails if the store is wrong there, one of the second if the store or the core is.

**How to read it.** Say you write a store, and want to know what happens to your `renew` when its reply is late. Under
[`renew`](#renew), the row *the reply is late* has a column for each state in which that call is legal (the states are those of the
[table of legal calls](../lock-core/src/contract/mod.rs)). In the column *held* stand the clauses that decide, such as C4 and S3,
each with a letter for one case; the list below the table names the cases. A number in brackets stands where there is no case of
its own, with the reason below: most often another cell decides, and the reason says which. An empty cell is a call that is not
legal in that state.

What happens may happen before the call or during it. *The reply is late* stands for a request that arrives late, too.
Where a call of a claim is *dropped at an await*, the claim is dropped with it: only `changed` is dropped alone.
";

struct Section<'a, C: 'static, S: 'static> {
    matrix: &'a Matrix<C, S>,
    decided: &'a Decided<C, S>,
    call: C,
    labels: BTreeMap<&'static str, String>,
    /// The reasons in the order in which they are needed, each with its text.
    footnotes: Vec<String>,
}

impl<'a, C: Axis, S: Axis> Section<'a, C, S> {
    fn new(matrix: &'a Matrix<C, S>, decided: &'a Decided<C, S>, call: C) -> Self {
        let mut section =
            Self { matrix, decided, call, labels: BTreeMap::new(), footnotes: Vec::new() };
        let mut letters = BTreeMap::<String, u8>::new();
        for case in section.cases() {
            let (letter, number) = clause(case).expect("verified");
            let rule = format!("{}{number}", letter.to_ascii_uppercase());
            let letter = letters.entry(rule.clone()).or_insert(b'a');
            section.labels.insert(case.id, format!("{rule}{}", char::from(*letter)));
            *letter += 1;
        }
        section
    }

    /// The cases that decide anything about this call, by clause and property.
    fn cases(&self) -> Vec<&'static Case> {
        let mine = self.decided.iter().filter(|(cell, _)| cell.call == self.call);
        let ids: BTreeSet<_> = mine.flat_map(|(_, cases)| cases.iter().copied()).collect();
        let mut cases: Vec<_> = cases::all().filter(|case| ids.contains(case.id)).collect();
        cases.sort_by_key(|case| clause(case).map(|(letter, number)| (order(letter), number)));
        cases
    }

    fn states(&self) -> Vec<S> {
        let legal = self.matrix.legal.iter().filter(|(_, calls)| calls.contains(&self.call));
        legal.map(|(state, _)| *state).collect()
    }

    fn table(&mut self, page: &mut String) {
        let states = self.states();
        let heads: Vec<_> = states.iter().map(|state| state.label()).collect();
        let _ = writeln!(page, "\n### {}\n\n| | {} |", self.call.label(), heads.join(" | "));
        let _ = writeln!(page, "|---{}|", "|---".repeat(heads.len()));
        for event in self.matrix.events {
            let cells = states
                .iter()
                .map(|state| self.shown(&Cell { call: self.call, state: *state, event: *event }));
            let cells: Vec<_> = cells.collect();
            let _ = writeln!(page, "| {} | {} |", event.label(), cells.join(" | "));
        }
    }

    fn shown(&mut self, cell: &Cell<C, S>) -> String {
        if let Some(cases) = self.decided.get(cell) {
            let mine = |case: &&Case| cases.contains(&case.id);
            let mine = self.cases().into_iter().filter(mine);
            let labels: Vec<_> = mine.map(|case| &*self.labels[case.id]).collect();
            return labels.join(" ");
        }
        let why = &self.matrix.reason(cell).expect("verified").why;
        let text = match why {
            Why::As(_, like) => format!("as {}: {}", other(like), why.text()),
            _ => why.text(),
        };
        let known = self.footnotes.iter().position(|footnote| *footnote == text);
        let at = known.unwrap_or_else(|| {
            self.footnotes.push(text);
            self.footnotes.len() - 1
        });
        format!("({})", at + 1)
    }

    fn lists(&self, page: &mut String) {
        for (at, case) in self.cases().into_iter().enumerate() {
            let label = &self.labels[case.id];
            let gap = if at == 0 { "\n" } else { "" };
            let _ = writeln!(page, "{gap}- **{label}** `{}`: {}", case.id, case.about);
        }
        for (at, footnote) in self.footnotes.iter().enumerate() {
            let gap = if at == 0 { "\n" } else { "" };
            let _ = writeln!(page, "{gap}- **({})** {footnote}", at + 1);
        }
    }
}

/// The clause or property that a case is named after: its letter and number.
fn clause(case: &Case) -> Option<(char, u8)> {
    let rule = case.id.split('_').next()?;
    Some((rule.chars().next()?, rule.get(1..)?.parse().ok()?))
}

/// Clauses first, then what must never happen, then what must happen in time.
fn order(letter: char) -> Option<usize> {
    "csl".find(letter)
}

fn other<C: Axis, S: Axis>(like: &Like<C, S>) -> String {
    let mut parts = Vec::new();
    parts.extend(like.call.map(|call| format!("under {}", call.label())));
    parts.extend(like.state.map(|state| format!("in the column *{}*", state.label())));
    parts.extend(like.event.map(|event| format!("in the row *{}*", event.label())));
    parts.join(", ")
}

fn part<C: Axis, S: Axis>(
    page: &mut String,
    heading: &str,
    matrix: &Matrix<C, S>,
    decides: fn(&Case) -> &'static [Cell<C, S>],
) {
    let decided = matrix.decided(cases::all().map(|case| (case.id, decides(case)))).unwrap();
    let cells = matrix.cells();
    let _ = writeln!(
        page,
        "\n## {heading}\n\n{} of {} cells have cases of their own.",
        decided.len(),
        cells.len()
    );
    for call in C::ALL {
        let mut section = Section::new(matrix, &decided, *call);
        section.table(page);
        section.lists(page);
    }
}

/// The cases that name no cell, since what they demand holds everywhere.
fn everywhere(page: &mut String) {
    let cases = cases::all();
    let mut cases =
        cases.filter(|case| case.covers.is_empty() && case.guards.is_empty()).peekable();
    if cases.peek().is_some() {
        page.push_str("\n## What no single cell decides\n\n");
    }
    for case in cases {
        let _ = writeln!(page, "- `{}`: {}", case.id, case.about);
    }
}

#[test]
fn the_page_shows_what_the_cases_say() {
    let mut page = ABOUT.to_owned();
    part(&mut page, "What a store does", &store::MATRIX, |case| case.covers);
    part(&mut page, "What a user sees", &user::MATRIX, |case| case.guards);
    everywhere(&mut page);
    if std::env::var_os("DISTLOCK_WRITE_MATRIX").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap();
    let mut lines = written.lines().zip(page.lines()).enumerate();
    let differs = lines.find(|(_, (written, now))| written != now);
    assert!(
        written == page,
        "docs/matrix.md is out of date: run `.ci/matrix write` and look at the change. First: {differs:?}"
    );
}

#[test]
fn the_tests_that_decide_instead_of_a_case_exist() {
    for reason in user::MATRIX.reasons {
        if let Why::Test { file, name } = reason.why {
            let code = fs::read_to_string(format!("{ROOT}/{file}")).unwrap();
            assert!(code.contains(&format!("fn {name}() {{")), "{file} has no test {name}");
        }
    }
}
