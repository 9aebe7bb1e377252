//! Tests of a backend's tests: wrong variants of the backend, and what must catch each.
//!
//! A backend that an environment variable can tell to make a known mistake has a test target with
//! `harness = false` that calls [`main`](Mutation::main):
//!
//! ```no_run
//! use conformance_tests::mutation::{Killer, Mutation};
//! use conformance_tests::MemoryHarness;
//!
//! fn main() -> std::process::ExitCode {
//!     let mutation = Mutation {
//!         variable: "MY_STORE_MUTANT",
//!         mutants: vec!["release_without_owner"],
//!         killers: &[("release_without_owner", Killer::Case("c07_a_release_after_busy_does_nothing"))],
//!     };
//!     mutation.main(|| conformance_tests::main(MemoryHarness::queued()), |_| Ok(()))
//! }
//! ```
//!
//! If the mistakes are compiled in only under a `--cfg`, `main` has a second body for the build
//! without: [`not_built`].

use std::collections::HashMap;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::runner::REPEAT;

/// Tells a child process what to run: `suite`, or `scene:` and a name.
const CHILD: &str = "DISTLOCK_MUTATION_CHILD";
const SUITE: &str = "suite";
const SCENE: &str = "scene:";
/// The number of child processes at a time. They mostly sleep, and each has its own server.
const AT_ONCE: usize = 4;

/// What must fail for a mutant, and pass for the correct backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Killer {
    /// A case of the suite, by its full name.
    Case(&'static str),
    /// A scene that only this backend has.
    Scene(&'static str),
}

/// The wrong variants of one backend.
#[derive(Clone, Debug)]
pub struct Mutation<'a> {
    /// The environment variable that names the mistake to the backend.
    pub variable: &'a str,
    /// The names of all mistakes.
    pub mutants: Vec<&'a str>,
    /// What must catch each of them.
    pub killers: &'a [(&'a str, Killer)],
}

impl Mutation<'_> {
    /// Runs every killer with and without its mutant, each in its own process, and says which
    /// mutants live. With an argument, runs only the mutants whose names contain it.
    ///
    /// `suite` and `scene` are what the child processes run. A scene ends with an error if it saw
    /// the mistake; one that panics did not finish, and has shown nothing.
    pub fn main(
        &self,
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
        let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
        let mutants = self.mutants.iter().copied();
        let mutants = mutants.filter(|mutant| wanted.is_none_or(|wanted| mutant.contains(wanted)));
        let mutants: Vec<_> = mutants.collect();
        let killers: HashMap<_, _> = self.killers.iter().copied().collect();
        let mut baseline: Vec<_> =
            mutants.iter().filter_map(|mutant| killers.get(mutant)).collect();
        baseline.sort_unstable_by_key(|killer| format!("{killer:?}"));
        baseline.dedup();
        let unmutated = side_by_side(&baseline, |killer| self.seen(**killer, ""));
        let unmutated: HashMap<_, _> = baseline.into_iter().zip(unmutated).collect();
        let verdicts = side_by_side(&mutants, |mutant| {
            let killer = killers.get(mutant).ok_or("nothing is named that kills it")?;
            match &unmutated[killer] {
                Ok(None) => {}
                other => return Err(format!("without it {killer:?} sees {other:?}")),
            }
            match self.seen(*killer, mutant)? {
                Some(seen) => Ok(format!("killed by {killer:?}, which saw: {seen}")),
                None => Err(format!("SURVIVED {killer:?}")),
            }
        });
        let mut killed = 0;
        for (mutant, verdict) in mutants.iter().zip(verdicts) {
            killed += usize::from(verdict.is_ok());
            println!("{mutant}: {}", verdict.unwrap_or_else(|why| why));
        }
        println!("mutants: {killed} of {} killed", mutants.len());
        if killed == mutants.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// What a killer saw, if it saw a mistake. An error if it did not finish.
    fn seen(&self, killer: Killer, mutant: &str) -> Result<Option<String>, String> {
        let executable = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(executable);
        // One run each: a failing mutant gets no second chance.
        command.env(self.variable, mutant).env(REPEAT, "1").stderr(Stdio::piped());
        let end = match killer {
            Killer::Case(case) => {
                command.env(CHILD, SUITE).args(["--exact", case]);
                ": 1 ran, "
            }
            Killer::Scene(scene) => {
                command.env(CHILD, format!("{SCENE}{scene}"));
                ENDED
            }
        };
        let output = command.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let seen = text.lines().find_map(|line| line.strip_prefix("seen: "));
        match (seen, output.status.success()) {
            _ if !text.contains(end) => {
                Err(format!("it broke off: {text}{}", String::from_utf8_lossy(&output.stderr)))
            }
            (None, true) => Ok(None),
            (Some(seen), false) => Ok(Some(seen.to_owned())),
            _ => Err(format!("it failed without a word: {text}")),
        }
    }
}

/// For the `main` of a build without the mutants: says that they are ignored, and why.
///
/// ```no_run
/// # #[allow(unexpected_cfgs)]
/// # mod target {
/// #[cfg(not(distlock_mutants))]
/// fn main() -> std::process::ExitCode {
///     conformance_tests::mutation::not_built("--cfg distlock_mutants")
/// }
/// # }
/// ```
pub fn not_built(without: &str) -> ExitCode {
    if !std::env::args().any(|argument| argument == "--list") {
        println!("mutants: ignored: built without {without}");
    }
    ExitCode::SUCCESS
}

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
