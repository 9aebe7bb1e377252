//! The test of the tests: deliberately wrong scripts, and the case of the suite that fails each.
//!
//! `cargo test -p lock-redis --features mutants --test mutants`

mod harness;

use std::process::{Command, ExitCode, Stdio};

use lock_redis::mutants::{MUTANTS, VARIABLE};

/// Set for the child processes, which are the suite.
const SUITE: &str = "LOCK_REDIS_MUTANT_SUITE";

/// The case that must fail for each mutant.
const KILLERS: &[(&str, &str)] = &[
    ("release_without_owner", "c07_"),
    ("renew_without_owner", "c06_a_renewal_after_a_loss_is_lost"),
    ("set_without_nx", "s01_"),
    ("lock_without_expiry", "l01_"),
    ("new_token_on_repeat", "c02_"),
    ("newcomer_passes_the_queue", "l03_"),
    ("try_leaves_a_place", "c13_"),
    ("release_hands_nothing_over", "l03_users_are_served_in_order"),
    ("place_is_not_given_up", "c13_"),
    ("last_in_first_out", "l03_"),
    ("fence_of_each_name", "c09_"),
    ("grace_is_the_ttl_of_nobody", "l05_a_dead_waiter_delays_by_one_ttl"),
    ("confirm_keeps_the_grace", "c04_"),
    ("force_forgets_the_holder", "s05_"),
    ("check_prolongs", "c04_"),
    ("place_is_never_renewed", "l03_a_renewed_place_is_kept"),
];

fn main() -> ExitCode {
    if std::env::var_os(SUITE).is_some() {
        return conformance_tests::main(harness::RedisHarness);
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
