//! The one place where the text of a statement is prepared. With `--cfg distlock_mutants`, a
//! deliberately wrong text stands for a known mistake in table-based locks. The tests of the tests
//! show that the suite catches each of them.

use super::statement::{MARK, PAGE, Places, SWEPT, Statement};
use super::table::TableName;
#[cfg(distlock_mutants)]
use crate::mutants;

/// How the statements of a dialect are written.
#[derive(Debug)]
pub(crate) struct Preparation {
    style: Places,
    /// The placeholders in their texts, such as `{t}` for the table. The text of an earlier one may
    /// contain later ones.
    terms: Vec<(&'static str, String)>,
    /// The mutant that the environment names, if it is one of this dialect.
    #[cfg(distlock_mutants)]
    replacements: Vec<(String, String)>,
}

impl Preparation {
    /// `terms`: those of the dialect. All have `{t}`, `{mark}` and `{page}`.
    pub(crate) fn new(
        _dialect: &'static str,
        style: Places,
        table: &TableName,
        terms: &[(&'static str, &str)],
    ) -> Self {
        let quoted = match style {
            Places::Marks => format!("`{}`", table.as_str()),
            Places::Dollars | Places::Numbers => table.quoted(),
        };
        let page = PAGE.to_string();
        let common = [("{t}", &*quoted), ("{mark}", MARK), ("{page}", &*page)];
        let owned = |(term, value): &(&'static str, &str)| (*term, (*value).to_owned());
        let terms = terms.iter().chain(&common).map(owned).collect();
        let this = Self {
            style,
            terms,
            #[cfg(distlock_mutants)]
            replacements: Vec::new(),
        };
        #[cfg(distlock_mutants)]
        let this = Self { replacements: mutants::wanted(_dialect, |text| this.text(text)), ..this };
        this
    }

    /// With the terms filled in.
    pub(crate) fn text(&self, text: &str) -> String {
        self.terms.iter().fold(text.to_owned(), |text, (term, value)| text.replace(term, value))
    }

    pub(crate) fn statement(&self, text: &str) -> Statement {
        self.sized(SWEPT, text)
    }

    /// `size`: how many places a list has.
    pub(crate) fn sized(&self, size: usize, text: &str) -> Statement {
        let text = self.text(text);
        #[cfg(distlock_mutants)]
        let text = self.replacements.iter().fold(text, |text, (from, to)| text.replace(from, to));
        Statement::new(self.style, size, &text)
    }

    /// The table as the database looks it up.
    pub(crate) fn looked_up(&self, table: &TableName) -> String {
        match self.style {
            Places::Dollars => table.quoted(),
            Places::Numbers | Places::Marks => table.as_str().to_owned(),
        }
    }
}
