//! Tests of a backend's tests: wrong variants of the backend, and what must catch each.
//!
//! A backend that the environment variable [`Mutant::VARIABLE`] can tell to make a known mistake has a
//! test target with `harness = false` that calls [`main`]:
//!
//! ```no_run
//! use conformance_tests::{MemoryHarness, mutation};
//! use lock_core::testing::Mutant;
//!
//! fn main() -> std::process::ExitCode {
//!     let mutants = [Mutant {
//!         name: "release_without_owner",
//!         what: "a release frees the lock of any holder",
//!         killed_by: "c07_a_release_after_busy_does_nothing",
//!     }];
//!     mutation::main(
//!         mutants,
//!         || conformance_tests::main(MemoryHarness::queued()),
//!         |scene| panic!("no scene {scene}"),
//!     )
//! }
//! ```
//!
//! If the mistakes are compiled in only under `--cfg distlock_mutants`, `main` has a second body for the
//! build without: [`not_built`].

use std::collections::{BTreeSet, HashMap};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use lock_core::testing::Mutant;

use crate::cases;
use crate::runner::{MARK, REPEAT, clause, say_once_more};

/// Tells a child process what to run: `suite`, or `scene:` and a name.
const CHILD: &str = "DISTLOCK_MUTATION_CHILD";
const SUITE: &str = "suite";
const SCENE: &str = "scene:";
/// The number of child processes at a time. They mostly sleep, and each has its own server.
const AT_ONCE: usize = 4;

/// Runs what must catch each mutant, with and without it, each in its own process, and says which
/// mutants live. With an argument, runs only the mutants whose names contain it.
///
/// What [`Mutant::killed_by`] names is a case of the suite, or else a scene of the backend. `suite`
/// and `scene` are what the child processes run. A scene ends with an error if it saw the mistake;
/// one that panics did not finish, and has shown nothing.
pub fn main(
    mutants: impl IntoIterator<Item = Mutant>,
    suite: impl FnOnce() -> ExitCode,
    scene: impl FnOnce(&str) -> Result<(), String>,
) -> ExitCode {
    match std::env::var(CHILD) {
        Ok(child) if child == SUITE => return suite(),
        Ok(child) => return play(child.trim_start_matches(SCENE), scene),
        Err(_) => {}
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let mutants: Vec<_> = mutants.into_iter().filter(|it| is_wanted(it.name, &arguments)).collect();
    let killers: BTreeSet<_> = mutants.iter().map(|mutant| mutant.killed_by).collect();
    let killers: Vec<_> = killers.into_iter().collect();
    let unmutated = side_by_side(&killers, |killer| judged(killer, ""));
    let unmutated: HashMap<_, _> = killers.iter().copied().zip(unmutated).collect();
    let verdicts = side_by_side(&mutants, |mutant| {
        let killer = mutant.killed_by;
        match &unmutated[killer] {
            Ok(None) => {}
            // On a line of its own: it may begin with the mark of what is never excused.
            Ok(Some(seen)) => return Err(format!("not judged: without it {killer} sees\n{seen}")),
            Err(why) => return Err(format!("not judged: without it {killer}: {why}")),
        }
        match judged(killer, mutant.name) {
            Ok(Some(seen)) => Ok(format!("killed by {killer}, which saw: {seen}")),
            Ok(None) => Err(format!("SURVIVED {killer}: {}", mutant.what)),
            Err(why) => Err(format!("not judged: {why}")),
        }
    });
    let mut killed = 0;
    for (mutant, verdict) in mutants.iter().zip(verdicts) {
        killed += usize::from(verdict.is_ok());
        println!("{}: {}", mutant.name, verdict.unwrap_or_else(|why| why));
    }
    println!("mutants: {killed} of {} killed", mutants.len());
    if killed == mutants.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the arguments ask for the mutant of this name: with `--exact` by its whole name.
fn is_wanted(mutant: &str, arguments: &[String]) -> bool {
    let is_exact = arguments.iter().any(|argument| argument == "--exact");
    match arguments.iter().find(|argument| !argument.starts_with('-')) {
        Some(name) if is_exact => mutant == name,
        Some(name) => mutant.contains(name.as_str()),
        None => true,
    }
}

/// How often a killer is run that could not judge, as on a machine that is busy with others.
const TRIES: u32 = 3;

/// What a killer has [`seen`] when it could judge.
fn judged(killer: &str, mutant: &str) -> Result<Option<String>, String> {
    for _ in 1..TRIES {
        match seen(killer, mutant) {
            Err(why) => say_once_more(killer, &format!("with the mistake {mutant:?}: {why}")),
            judged => return judged,
        }
    }
    seen(killer, mutant)
}

/// What a killer saw, if it saw a mistake. An error if it did not finish, or a case could not
/// judge.
fn seen(killer: &str, mutant: &str) -> Result<Option<String>, String> {
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(executable);
    let runs = if mutant.is_empty() { 1 } else { RUNS };
    command.env(Mutant::VARIABLE, mutant).env(REPEAT, runs.to_string()).stderr(Stdio::piped());
    let is_case = cases::all().any(|case| case.id == killer);
    let end = if is_case {
        command.env(CHILD, SUITE).args(["--exact", killer]);
        ": 1 ran, "
    } else {
        command.env(CHILD, format!("{SCENE}{killer}"));
        ENDED
    };
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let seen = text.lines().find_map(|line| line.strip_prefix("seen: "));
    match (seen, output.status.success()) {
        _ if !text.contains(end) => {
            Err(quoted("it broke off", &[&text, &String::from_utf8_lossy(&output.stderr)]))
        }
        (Some(_), false) if is_case && !has_judged(killer, &text) => {
            Err(quoted("it says no clause that is broken", &[&text]))
        }
        (None, true) => Ok(None),
        (Some(seen), false) => {
            let is_violated = seen.starts_with(MARK) || text.lines().any(is_marked);
            let mark = if is_violated { MARK } else { "" };
            Ok(Some(format!("{mark}{}", seen.trim_start_matches(MARK))))
        }
        _ => Err(quoted("it failed without a word", &[&text])),
    }
}

/// Whether a case says in its output that its own clause is broken. One that says "not judged" has
/// seen nothing; a scene that did not finish never gets here.
fn has_judged(case: &str, text: &str) -> bool {
    let broken = format!("{} broken: ", clause(case));
    text.lines().any(|line| line.trim_start().starts_with(&broken))
}

/// For the `main` of a build without the mutants: says that they are ignored, and why.
///
/// ```no_run
/// # #[allow(unexpected_cfgs)]
/// # mod target {
/// #[cfg(not(distlock_mutants))]
/// fn main() -> std::process::ExitCode {
///     conformance_tests::mutation::not_built()
/// }
/// # }
/// ```
pub fn not_built() -> ExitCode {
    if !std::env::args().any(|argument| argument == "--list") {
        println!("mutants: ignored: built without --cfg distlock_mutants");
    }
    ExitCode::SUCCESS
}

/// How often a case is run on a mutant until it fails. On a real server a fault or a race may miss the mistake: one that
/// no run has seen has survived.
const RUNS: u32 = 5;

/// Printed by a scene that finished.
const ENDED: &str = "the scene has ended";

fn play(name: &str, scene: impl FnOnce(&str) -> Result<(), String>) -> ExitCode {
    let outcome = scene(name);
    println!("{ENDED}");
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(seen) => {
            println!("seen: {}", seen.lines().next().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn is_marked(line: &str) -> bool {
    line.trim_start().starts_with(MARK)
}

/// The output of a child process. Its lines are no lines of ours.
fn quoted(what: &str, output: &[&str]) -> String {
    let lines = output.iter().flat_map(|text| text.lines());
    lines.fold(what.to_owned(), |all, line| all + "\n| " + line)
}

/// Does `work` for each of `items`, a few at a time; the results are in the same order.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let queue = Mutex::new(items.iter().enumerate());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((at, item)) = next else { return };
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<_> = (0..50).collect();
        assert_eq!(side_by_side(&items, |item| item * 2), (0..100).step_by(2).collect::<Vec<_>>());
    }
}
