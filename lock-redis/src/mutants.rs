//! Deliberately wrong scripts, for the tests of the tests.
//!
//! Only in a build with `--cfg distlock_mutants`, and only if the variable below names one: a mistake
//! which a lock on Redis is known to be made with. The seam is the text of a script, before its digest is
//! computed. `tests/mutants.rs` shows that the suite fails each of them.

#[cfg(not(distlock_mutants))]
pub(crate) fn apply(_script: &str, text: &str) -> String {
    text.to_owned()
}

#[cfg(distlock_mutants)]
mod single;
#[cfg(distlock_mutants)]
mod table;
#[cfg(distlock_mutants)]
mod votes;

#[cfg(distlock_mutants)]
pub use table::{MUTANTS, Mutant, VARIABLE};

#[cfg(distlock_mutants)]
pub(crate) use table::apply;
