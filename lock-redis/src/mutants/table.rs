//! What a mistake is, and the one place where it is made.

use super::{single, votes};

/// Names the mistake to make, in the environment.
pub const VARIABLE: &str = "LOCK_REDIS_MUTANT";

/// One mistake: a text in scripts that another one takes the place of.
#[derive(Debug)]
pub struct Mutant {
    /// As the variable names it.
    pub name: &'static str,
    /// What is wrong with a store that makes it.
    pub wrong: &'static str,
    /// The case of the suite that must fail, or the scene of this store.
    pub killed_by: &'static str,
    pub(super) scripts: &'static [&'static str],
    pub(super) right: &'static str,
    pub(super) replaced_by: &'static str,
}

/// All mistakes, by what they are made in.
pub const MUTANTS: [&[Mutant]; 2] = [single::MUTANTS, votes::MUTANTS];

pub(crate) fn apply(script: &str, text: &str) -> String {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let mut mutants =
        MUTANTS.iter().copied().flatten().filter(|mutant| mutant.scripts.contains(&script));
    let Some(mutant) = mutants.find(|mutant| mutant.name == wanted) else {
        return text.to_owned();
    };
    if !text.contains(mutant.right) {
        // A panic would fail the case that is to see the mistake, which would then count as seen.
        eprintln!("the mutant {wanted} finds nothing to change in {script}");
        std::process::exit(1);
    }
    text.replace(mutant.right, mutant.replaced_by)
}
