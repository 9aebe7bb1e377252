//! What the databases share: everything but the text of the statements, how their values are bound, and
//! what an error code means.

pub(crate) mod claim;
pub(crate) mod error;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod limits;
pub(crate) mod operations;
pub(crate) mod renewals;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod runtime;
#[cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "the other databases cannot push, so nobody has a slot there")
)]
pub(crate) mod wake;
