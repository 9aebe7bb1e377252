//! Tools for the authors of a store: what two stores need stands here, once. Users of locks need none
//! of it.

pub mod batch;
pub mod versions;
