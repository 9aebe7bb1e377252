//! Puts a wrong text in the place of a right one.

#[path = "../engine/table/preparation.rs"]
mod right;

use crate::engine::table::settings::TableName;
use crate::engine::wire::statement::{PlaceStyle, SqlStatement};
use crate::mutants;

#[derive(Debug)]
pub(crate) struct Preparation {
    right: right::Preparation,
    /// Of the mutant that the environment names, if this dialect can make its mistake.
    replacements: Vec<(String, String)>,
}

impl Preparation {
    pub(crate) fn new(
        style: PlaceStyle,
        table: &TableName,
        terms: &[(&'static str, &str)],
    ) -> Self {
        let dialect = match style {
            PlaceStyle::Numbers => "sqlite",
            PlaceStyle::Dollars => "postgres",
            PlaceStyle::Marks => "mysql",
        };
        let right = right::Preparation::new(style, table, terms);
        let replacements = mutants::wanted(dialect, |text| right.text(text));
        Self { right, replacements }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        self.right.text(text)
    }

    pub(crate) fn statement(&self, size: usize, text: &str) -> SqlStatement {
        self.right.statement(size, &self.replaced(text))
    }

    fn replaced(&self, text: &str) -> String {
        let text = self.right.text(text);
        self.replacements.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }

    pub(crate) fn looked_up(&self, table: &TableName) -> String {
        self.right.looked_up(table)
    }
}
