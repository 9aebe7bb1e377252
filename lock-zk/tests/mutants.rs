//! The test of the tests: mistakes that locks on ZooKeeper are made with, and what finds each.
//!
//! `cargo test -p lock-zk --features mutants --test mutants`

mod common;

use std::process::{Command, ExitCode, Stdio};

use common::scenarios::{self, Seen};
use lock_zk::mutants::{MUTANTS, VARIABLE};

/// Names the scene that a child process plays.
const SCENE: &str = "LOCK_ZK_SCENE";

/// The scene that must fail for each mutant, and pass without one.
const KILLERS: &[(&str, &str)] = &[
    ("fence_is_the_sequence", "fences_rise_over_a_new_queue"),
    ("trust_any_session", "a_node_of_an_old_session_is_not_trusted"),
    ("create_again", "a_lost_reply_leaves_one_node"),
    ("watch_the_parent", "a_hand_over_wakes_one_waiter"),
    ("read_based_renewal", "a_renewal_needs_the_leader"),
    ("read_based_check", "a_server_that_is_behind_confirms_nothing"),
    ("beat_by_reads", "a_read_prolongs_nothing"),
    ("grant_by_read", "a_server_that_is_behind_grants_nothing"),
    ("watch_everything", "a_reconnect_keeps_a_session_that_watches_much"),
];

fn main() -> ExitCode {
    if let Ok(scene) = std::env::var(SCENE) {
        return match play(&scene) {
            Ok(()) => ExitCode::SUCCESS,
            Err(seen) => {
                println!("seen: {seen}");
                ExitCode::FAILURE
            }
        };
    }
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let mut survivors = 0;
    for mutant in MUTANTS {
        let Some((_, scene)) = KILLERS.iter().find(|(name, _)| name == mutant) else {
            println!("{mutant}: no scene is named that kills it");
            survivors += 1;
            continue;
        };
        match (seen(scene, ""), seen(scene, mutant)) {
            (Ok(None), Ok(Some(seen))) => {
                println!("{mutant}: killed by {scene}, which saw: {seen}")
            }
            (Ok(None), Ok(None)) => {
                println!("{mutant}: SURVIVED {scene}");
                survivors += 1;
            }
            (unchanged, mutated) => {
                println!("{mutant}: without it {unchanged:?}, with it {mutated:?}");
                survivors += 1;
            }
        }
    }
    println!("mutants: {} of {} killed", MUTANTS.len() - survivors, MUTANTS.len());
    if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(scene: &str) -> Seen {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match scene {
            "fences_rise_over_a_new_queue" => scenarios::fences_rise_over_a_new_queue().await,
            "a_node_of_an_old_session_is_not_trusted" => {
                scenarios::a_node_of_an_old_session_is_not_trusted().await
            }
            "a_lost_reply_leaves_one_node" => scenarios::a_lost_reply_leaves_one_node().await,
            "a_hand_over_wakes_one_waiter" => scenarios::a_hand_over_wakes_one_waiter(60).await,
            "a_renewal_needs_the_leader" => scenarios::a_renewal_needs_the_leader().await,
            "a_server_that_is_behind_confirms_nothing" => {
                scenarios::a_server_that_is_behind_confirms_nothing().await
            }
            "a_read_prolongs_nothing" => scenarios::a_read_prolongs_nothing().await,
            "a_server_that_is_behind_grants_nothing" => {
                scenarios::a_server_that_is_behind_grants_nothing().await
            }
            "a_reconnect_keeps_a_session_that_watches_much" => {
                scenarios::a_reconnect_keeps_a_session_that_watches_much().await
            }
            other => panic!("there is no scene {other}"),
        }
    })
}

/// What a scene saw in a process of its own, if it saw a mistake. A panic is none: the scene did not
/// get to its end.
fn seen(scene: &str, mutant: &str) -> Result<Option<String>, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(executable)
        .env(SCENE, scene)
        .env(VARIABLE, mutant)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("seen: ")) {
        Some(seen) => Ok(Some(seen.to_owned())),
        None => Err(format!("it broke off: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
