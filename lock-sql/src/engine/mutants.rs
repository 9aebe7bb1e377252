//! The one place where the text of a statement is prepared: with `--cfg distlock_mutants`, a deliberately
//! wrong one stands for a mistake which locks in a table are known to be made with. The tests of the
//! tests show that the suite fails each of them.

#[cfg(distlock_mutants)]
use std::sync::atomic::{AtomicU64, Ordering};

use super::value::Sql;

/// A deliberately wrong dialect.
#[cfg(distlock_mutants)]
#[derive(Debug)]
pub struct Mutant {
    /// As the environment names it.
    pub name: &'static str,
    /// The mistake that it stands for.
    pub what_is_wrong: &'static str,
    /// The case of the suite, or the scene of the test, that must fail.
    pub killed_by: &'static str,
    /// What is replaced by what in all statements. `{skew}` is another number of microseconds for each
    /// client.
    pub replacements: &'static [(&'static str, &'static str)],
}

/// What becomes of the text of each statement.
#[derive(Debug)]
pub(crate) struct Preparation {
    #[cfg(distlock_mutants)]
    replacements: Vec<(String, String)>,
}

#[cfg(not(distlock_mutants))]
impl Preparation {
    pub(crate) const RIGHT: Self = Self {};

    #[allow(clippy::unused_self, reason = "as with mutants")]
    pub(crate) fn statement(&self, text: String) -> Sql {
        text.into()
    }
}

#[cfg(distlock_mutants)]
impl Preparation {
    /// The mutant that the environment names, if it is one of `mutants`. `terms`: what stands for what in
    /// their texts.
    pub(crate) fn new(variable: &str, mutants: &[Mutant], terms: &[(&str, &str)]) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let wanted = std::env::var(variable).unwrap_or_default();
        let skew = (CLIENTS.fetch_add(1, Ordering::Relaxed) % 4 * 40_000_000).to_string();
        let filled = |text: &str| {
            let text = text.replace("{skew}", &skew);
            terms.iter().fold(text, |text, (term, value)| text.replace(term, value))
        };
        let mutant = mutants.iter().find(|mutant| mutant.name == wanted);
        let replacements = mutant.map_or(&[][..], |mutant| mutant.replacements);
        let replacements =
            replacements.iter().map(|(from, to)| (filled(from), filled(to))).collect();
        Self { replacements }
    }

    pub(crate) fn statement(&self, text: String) -> Sql {
        let wrong = self.replacements.iter().fold(text, |text, (from, to)| text.replace(from, to));
        wrong.into()
    }
}

/// A replacement that changes nothing would survive for the wrong reason.
#[cfg(all(test, distlock_mutants))]
pub(crate) fn find_what_they_change(mutants: &[Mutant], terms: &[(&str, &str)], statements: &str) {
    for mutant in mutants {
        for (from, _) in mutant.replacements {
            let from =
                terms.iter().fold((*from).to_owned(), |text, (term, to)| text.replace(term, to));
            assert!(statements.contains(&from), "{} finds no {from}", mutant.name);
        }
    }
}
