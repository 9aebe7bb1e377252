//! The test of the tests: deliberately wrong steps, and the case that fails for each.
//!
//! `cargo test -p lock-etcd --features mutants --test mutants`

mod common;
mod harness;
mod scenarios;

use std::process::{Command, ExitCode, Stdio};

use lock_etcd::mutants::{MUTANTS, VARIABLE};

/// Set for the child processes: `suite`, or the name of a scenario.
const CHILD: &str = "LOCK_ETCD_MUTANT_CHILD";

/// What must fail for a mutant.
#[derive(Clone, Copy)]
enum Killer {
    /// Cases of the suite that begin so.
    Case(&'static str),
    Scenario(&'static str),
}

use Killer::{Case, Scenario};

const KILLERS: &[(&str, Killer)] = &[
    ("no_look_after_waiting", Scenario("a_waiter_looks_before_it_believes")),
    ("swallows_ttl_0", Scenario("a_lease_that_has_ended_is_enough_to_know")),
    ("release_by_name", Scenario("a_release_leaves_what_others_have_written")),
    ("resumes_after_compaction", Scenario("a_waiter_looks_after_a_compaction")),
    ("skips_what_was_not_told", Scenario("a_stream_that_breaks_twice_hides_nothing")),
    ("ignores_a_refused_watch", Scenario("a_watch_is_not_refused_unnoticed")),
    ("trusts_its_watch", Scenario("a_holder_looks_although_its_watch_stands")),
    ("believes_in_the_lease", Scenario("attaching_needs_to_see_the_key")),
    ("two_keep_alives_in_flight", Scenario("an_answer_counts_from_its_own_request")),
    ("sees_nested_names", Scenario("a_foreign_queue_below_ours_blocks_nobody")),
    ("own_place_unwatched", Scenario("a_waiter_sees_that_its_own_place_has_gone")),
    ("shares_a_lease", Scenario("every_claim_has_a_lease_of_its_own")),
    ("keeps_unknown_leases", Case("c07_a_release_after_a_failed_try")),
    ("valid_from_the_reply", Case("c04_")),
    ("fence_is_the_lease", Case("c09_fences_rise_over")),
    ("try_leaves_a_place", Case("c13_a_refused_try")),
    ("ignores_the_queue", Case("s01_")),
    ("release_keeps_the_key", Case("c07_")),
    ("force_needs_no_owner", Case("s03_a_forced_release")),
];

macro_rules! scenarios {
    ($wanted:expr, $($name:ident)+) => {
        match $wanted {
            $(stringify!($name) => scenarios::$name().await,)+
            other => panic!("no scenario {other}"),
        }
    };
}

fn main() -> ExitCode {
    match std::env::var(CHILD) {
        Ok(suite) if suite == "suite" => {
            return conformance_tests::main(harness::EtcdHarness::default());
        }
        Ok(scenario) => return run_scenario(&scenario),
        Err(_) => {}
    }
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    // Each takes seconds, most of which are spent waiting.
    let outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> =
            MUTANTS.iter().map(|(mutant, _)| (*mutant, scope.spawn(|| examine(mutant)))).collect();
        threads
            .into_iter()
            .map(|(mutant, thread)| {
                (mutant, thread.join().unwrap_or_else(|_| Err("a panic".into())))
            })
            .collect::<Vec<_>>()
    });
    let mut killed = 0;
    for (mutant, outcome) in outcomes {
        match outcome {
            Ok(by) => {
                println!("{mutant}: killed by {by}");
                killed += 1;
            }
            Err(why) => println!("{mutant}: {why}"),
        }
    }
    println!("mutants: {killed} of {} killed", MUTANTS.len());
    if killed == MUTANTS.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_scenario(name: &str) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    runtime.block_on(async {
        scenarios!(
            name,
            a_waiter_sees_that_its_own_place_has_gone
            a_waiter_looks_before_it_believes
            a_lease_that_has_ended_is_enough_to_know
            a_release_leaves_what_others_have_written
            a_waiter_looks_after_a_compaction
            a_stream_that_breaks_twice_hides_nothing
            a_watch_is_not_refused_unnoticed
            a_holder_looks_although_its_watch_stands
            attaching_needs_to_see_the_key
            an_answer_counts_from_its_own_request
            a_foreign_queue_below_ours_blocks_nobody
            every_claim_has_a_lease_of_its_own
        );
    });
    println!("the scenario has passed");
    ExitCode::SUCCESS
}

/// What has failed for a mutant; an error if nothing has.
fn examine(mutant: &str) -> Result<String, String> {
    let (_, killer) =
        KILLERS.iter().find(|(name, _)| *name == mutant).ok_or("nothing is named that kills it")?;
    match killer {
        Scenario(name) => {
            // It must pass for the right backend, or its failure says nothing.
            for (variable, passes) in [("", true), (mutant, false)] {
                let text = child(name, variable, &[])?;
                if text.contains("the scenario has passed") != passes {
                    return Err(format!(
                        "SURVIVED {name}, or that fails for every backend: {text}"
                    ));
                }
            }
            Ok((*name).to_owned())
        }
        Case(cases) => {
            let text = child("suite", mutant, &[cases])?;
            if !text.contains(" ran, ") {
                return Err(format!("the suite did not run: {text}"));
            }
            let failed = text.lines().filter_map(|line| {
                let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
                Some(name.trim_end_matches([' ', '.']).to_owned())
            });
            let failed: Vec<_> = failed.collect();
            if failed.is_empty() {
                Err(format!("SURVIVED {cases}*"))
            } else {
                Ok(failed.join(", "))
            }
        }
    }
}

fn child(what: &str, mutant: &str, arguments: &[&str]) -> Result<String, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(executable)
        .args(arguments)
        .env(CHILD, what)
        .env(VARIABLE, mutant)
        .stderr(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
