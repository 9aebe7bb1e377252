//! What the databases share: everything but the text of the statements, how their values are bound, and
//! what an error code means.

pub(crate) mod claim;
pub(crate) mod codes;
pub(crate) mod driver;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod limits;
pub(crate) mod mutants;
pub(crate) mod operations;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod pool;
pub(crate) mod renewals;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod resting;
pub(crate) mod schema;
pub(crate) mod steps;
pub(crate) mod store;
pub(crate) mod sweep;
mod sweeper;
pub(crate) mod table;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod unfinished;
pub(crate) mod value;
pub(crate) mod wake;
