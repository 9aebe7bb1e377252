//! The table, held against the statements.

use super::*;
use crate::engine::settings::Settings;

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
            format!("{:?}", crate::postgres::statements::table(at.clone(), "", &settings)),
        ),
        ("mysql", "`distlock`", format!("{:?}", crate::mysql::statements::table(at, &settings))),
    ] {
        for mutant in mutants_of(dialect) {
            for (from, _) in mutant.of(dialect) {
                let from =
                    from.replace("{t}", quoted).replace("{now}", crate::mysql::statements::NOW);
                assert!(table.contains(&from), "{dialect} {}: {from}", mutant.name);
            }
        }
    }
}
