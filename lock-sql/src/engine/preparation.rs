//! The one place where the text of a statement is prepared. With `--cfg distlock_mutants`, a
//! deliberately wrong text stands for a known mistake in table-based locks. The tests of the tests
//! show that the suite catches each of them.

#[cfg(distlock_mutants)]
use super::super::mutants;
use super::statement::{Places, Statement};
use super::sweep::SWEPT;

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
    pub(crate) fn new(
        _dialect: &'static str,
        style: Places,
        terms: Vec<(&'static str, String)>,
    ) -> Self {
        #[cfg(distlock_mutants)]
        let replacements = mutants::wanted(_dialect, |text| filled(&terms, text));
        Self {
            style,
            terms,
            #[cfg(distlock_mutants)]
            replacements,
        }
    }

    pub(crate) fn statement(&self, text: &str) -> Statement {
        self.sized(SWEPT, text)
    }

    /// `size`: how many places a list has.
    pub(crate) fn sized(&self, size: usize, text: &str) -> Statement {
        let text = filled(&self.terms, text);
        #[cfg(distlock_mutants)]
        let text = self.replacements.iter().fold(text, |text, (from, to)| text.replace(from, to));
        Statement::new(self.style, size, &text)
    }
}

fn filled(terms: &[(&'static str, String)], text: &str) -> String {
    terms.iter().fold(text.to_owned(), |text, (term, value)| text.replace(term, value))
}
