//! What the databases share: everything except the text of the statements, the meaning of error
//! codes, and the few steps that only one of them needs.

pub(crate) mod backend;
mod claim;
pub(crate) mod dialect;
mod doctor;
pub(crate) mod driver;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod executor;
pub(crate) mod links;
pub(crate) mod lock_table;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod pool;
pub(crate) mod preparation;
pub(crate) mod renewals;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod resting;
pub(crate) mod schema;
pub(crate) mod settings;
pub(crate) mod shield;
pub(crate) mod statement;
pub(crate) mod store;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod target;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod unfinished;
pub(crate) mod value;
pub(crate) mod wake;
