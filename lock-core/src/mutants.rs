//! The seam where the mutation tests make the core wrong on purpose. Without `--cfg
//! distlock_mutants` it changes nothing.

#[cfg(not(distlock_mutants))]
pub(crate) use right::rules;
#[cfg(distlock_mutants)]
pub(crate) use wrong::rules;
#[cfg(distlock_mutants)]
pub use wrong::{MUTANTS, Mutant, VARIABLE};

#[cfg(not(distlock_mutants))]
mod right {
    use crate::keeper::Rules;

    pub(crate) const fn rules() -> Rules {
        Rules::REAL
    }
}

#[cfg(distlock_mutants)]
mod wrong;
