//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features postgres,mutants --test postgres_mutants`

mod postgres_harness;

use std::process::{Command, ExitCode, Stdio};

use lock_sql::postgres_mutants::{MUTANTS, VARIABLE};

/// Set for the child processes, which are the suite.
const SUITE: &str = "LOCK_POSTGRES_MUTANT_SUITE";

/// The case that must fail for each mutant.
const KILLERS: &[(&str, &str)] = &[
    ("client_clock", "c03_two_releases_make_one_grant"),
    ("affected_rows_trusted", "c13_a_waiter_that_declines_passes_it_on"),
    ("fence_reset_by_delete", "c09_fences_rise_over_releases"),
    ("case_folding_names", "c11_distinct_names_never_block_each_other"),
    ("advisory_lock_left_in_the_pool", "l01_an_abandoned_lock_is_free_after_its_ttl"),
    ("expiry_is_not_asked", "s01_a_lock_is_not_reentrant"),
    ("release_without_owner", "c07_a_release_after_busy_does_nothing"),
    ("renewal_without_owner", "s03_a_late_renewal_does_not_touch_the_next_holder"),
    ("renewal_of_what_has_ended", "c06_a_renewal_after_the_end_is_lost"),
    ("a_lease_that_is_never_longer", "c04_renewals_keep_the_lock"),
    ("new_token_on_repeat", "c02_a_repeated_try_returns_the_same_token"),
    ("the_fence_stays", "c09_fences_rise_over_releases"),
    ("a_waiter_is_not_on_the_list", "c05_a_release_is_pushed"),
    ("a_release_tells_nobody", "c05_a_release_is_pushed"),
    ("force_by_owner_frees_any", "s03_a_forced_release_of_another_owner_does_nothing"),
];

fn main() -> ExitCode {
    if std::env::var_os(SUITE).is_some() {
        return conformance_tests::main(postgres_harness::PostgresHarness(
            postgres_harness::Route::Direct,
        ));
    }
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let mut survivors = 0;
    for (mutant, ..) in MUTANTS {
        let Some((_, cases)) = KILLERS.iter().find(|(name, _)| name == mutant) else {
            println!("{mutant}: no case is named that kills it");
            survivors += 1;
            continue;
        };
        match failed_cases(mutant, cases) {
            Ok(failed) if failed.is_empty() => {
                println!("{mutant}: SURVIVED {cases}*");
                survivors += 1;
            }
            Ok(failed) => println!("{mutant}: killed by {}", failed.join(", ")),
            Err(error) => {
                println!("{mutant}: {error}");
                survivors += 1;
            }
        }
    }
    println!("mutants: {} of {} killed", MUTANTS.len() - survivors, MUTANTS.len());
    if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed_cases(mutant: &str, cases: &str) -> Result<Vec<String>, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(executable)
        .arg(cases)
        .env(SUITE, "1")
        .env(VARIABLE, mutant)
        .stderr(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains(" ran, ") {
        return Err(format!("the suite did not run: {text}"));
    }
    let failed = text.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
        Some(name.trim_end_matches([' ', '.']).to_owned())
    });
    Ok(failed.collect())
}
