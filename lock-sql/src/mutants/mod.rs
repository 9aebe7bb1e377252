//! Deliberately wrong statements, for the tests of the tests: mistakes which locks in a table are
//! known to be made with, and the case of the suite, or the scene of a test, that must fail each.

pub(crate) mod fence;
mod texts;

use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::testing::Mutant;

use texts::ALL;

/// What is replaced by what in all statements of a dialect. `{t}` is the table, `{now}` MySQL's
/// clock, and `{skew}` another number of microseconds for each client.
type Replacements = &'static [(&'static str, &'static str)];

/// A mistake, in the dialects that can make it.
struct WrongTexts {
    name: &'static str,
    what: &'static str,
    killed_by: &'static str,
    sqlite: Replacements,
    postgres: Replacements,
    mysql: Replacements,
}

impl WrongTexts {
    fn of(&self, dialect: &str) -> Replacements {
        match dialect {
            "sqlite" => self.sqlite,
            "postgres" => self.postgres,
            _ => self.mysql,
        }
    }
}

/// Those of one dialect.
pub fn mutants_of(dialect: &str) -> impl Iterator<Item = Mutant> {
    let made = ALL.iter().chain(fence::ALL).filter(move |mutant| !mutant.of(dialect).is_empty());
    made.map(|WrongTexts { name, what, killed_by, .. }| Mutant { name, what, killed_by })
}

/// The replacements of the mutant that the environment names.
pub(crate) fn wanted(dialect: &str, filled: impl Fn(&str) -> String) -> Vec<(String, String)> {
    static CLIENTS: AtomicU64 = AtomicU64::new(0);
    let skew = (CLIENTS.fetch_add(1, Ordering::Relaxed) % 4 * 40_000_000).to_string();
    let filled = |text: &str| filled(&text.replace("{skew}", &skew));
    let mutant = ALL.iter().find(|mutant| Mutant::is_wanted(mutant.name));
    let replacements = mutant.map_or(&[][..], |mutant| mutant.of(dialect));
    replacements.iter().map(|(from, to)| (filled(from), filled(to))).collect()
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;
    use crate::engine::table::settings::Settings;
    use crate::fence::FencedDatabase;

    /// A replacement that changes nothing would survive for the wrong reason.
    #[test]
    fn every_replacement_finds_what_it_changes() {
        let (at, settings) = (String::new(), Settings::default());
        for (dialect, quoted, table) in [
            (
                "sqlite",
                "\"distlock\"",
                format!("{:?}", crate::sqlite::statements::table(at.clone(), &settings)),
            ),
            (
                "postgres",
                "\"distlock\"",
                format!(
                    "{:?}",
                    crate::postgres::statements::table(at.clone(), "", &settings, &settings.table)
                ),
            ),
            (
                "mysql",
                "`distlock`",
                format!("{:?}", crate::mysql::statements::table(at, &settings)),
            ),
        ] {
            for mutant in ALL {
                for (from, _) in mutant.of(dialect) {
                    let from =
                        from.replace("{t}", quoted).replace("{now}", crate::mysql::statements::NOW);
                    assert!(table.contains(&from), "{dialect} {}: {from}", mutant.name);
                }
            }
        }
    }

    #[test]
    fn every_replacement_in_the_fence_finds_what_it_changes() {
        fn texts<D: FencedDatabase>() -> String {
            [D::LOOK, D::RAISE, D::FORGET, D::CHECK].concat()
        }
        for (dialect, texts) in [
            ("sqlite", texts::<sqlx::Sqlite>()),
            ("postgres", texts::<sqlx::Postgres>()),
            ("mysql", texts::<sqlx::MySql>()),
        ] {
            for mutant in fence::ALL {
                for (from, _) in mutant.of(dialect) {
                    assert!(texts.contains(from), "{dialect} {}: {from}", mutant.name);
                }
            }
        }
    }
}
