//! The one place where the text of a statement is prepared.

use crate::engine::table::settings::{MARK, PAGE, TableName};
use crate::engine::wire::statement::{PlaceStyle, SqlStatement};

/// How the statements of a dialect are written.
#[derive(Debug)]
pub(crate) struct Preparation {
    style: PlaceStyle,
    /// The placeholders in their texts, such as `{t}` for the table. The text of an earlier one may
    /// contain later ones.
    terms: Vec<(&'static str, String)>,
}

impl Preparation {
    /// `terms`: those of the dialect. All have `{t}`, `{mark}` and `{page}`.
    pub(crate) fn new(
        style: PlaceStyle,
        table: &TableName,
        terms: &[(&'static str, &str)],
    ) -> Self {
        let quoted = match style {
            PlaceStyle::Marks => format!("`{}`", table.as_str()),
            PlaceStyle::Dollars | PlaceStyle::Numbers => table.quoted(),
        };
        let page = PAGE.to_string();
        let common = [("{t}", &*quoted), ("{mark}", MARK), ("{page}", &*page)];
        let owned = |(term, value): &(&'static str, &str)| (*term, (*value).to_owned());
        let terms = terms.iter().chain(&common).map(owned).collect();
        Self { style, terms }
    }

    /// With the terms filled in.
    pub(crate) fn text(&self, text: &str) -> String {
        self.terms.iter().fold(text.to_owned(), |text, (term, value)| text.replace(term, value))
    }

    /// `size`: how many places a list has.
    pub(crate) fn statement(&self, size: usize, text: &str) -> SqlStatement {
        SqlStatement::new(self.style, size, &self.text(text))
    }

    /// The table as the database looks it up.
    pub(crate) fn looked_up(&self, table: &TableName) -> String {
        match self.style {
            PlaceStyle::Dollars => table.quoted(),
            PlaceStyle::Numbers | PlaceStyle::Marks => table.as_str().to_owned(),
        }
    }
}
