//! Tools for the authors of a store: what two stores need stands here, once. Users of locks need none
//! of it, and it knows no store.
//!
//! | module | what for |
//! |---|---|
//! | [`backoff`] | pauses between attempts that fail |
//! | [`batch`] | requests that fall together travel as one |
//! | [`runtime`] | what a driver needs from the Tokio runtime |
//! | [`tasks`] | work in the background that ends with the store |
//! | [`versions`] | the oldest supported servers |

pub mod backoff;
pub mod batch;
pub mod runtime;
pub mod tasks;
pub mod versions;
