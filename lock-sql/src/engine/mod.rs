//! What the databases share: everything except the text of the statements, the meaning of error
//! codes, and the few steps that only one of them needs.

pub(crate) mod backend;
pub(crate) mod claim;
pub(crate) mod renewals;
pub(crate) mod store;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod waiters;

/// The lock table: its settings, its texts, its rows, how it comes to be, and how it stays small.
pub(crate) mod table {
    pub(crate) mod creation;
    pub(crate) mod lock_table;
    #[cfg_attr(distlock_mutants, path = "../../mutants/preparation.rs")]
    pub(crate) mod preparation;
    pub(crate) mod row;
    pub(crate) mod settings;
    pub(crate) mod sweep;
}

/// How a statement reaches the database, and what comes back.
pub(crate) mod wire {
    pub(crate) mod connections;
    pub(crate) mod driver;
    pub(crate) mod errors;
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) mod pool;
    pub(crate) mod statement;
}
