//! Tools for the authors of a store: what two stores need stands here, once. Users of locks need none
//! of it, and it knows no store.
//!
//! | module | what for |
//! |---|---|
//! | [`backoff`] | pauses between attempts that fail |
//! | [`batch`] | requests that fall together travel as one |
//! | [`connect_once`] | one connection, made once for all who need it |
//! | [`endpoint`] | user, hosts and path of a URL, and what of it may be shown |
//! | [`in_doubt`] | what may still land in the store, and what a release proves |
//! | [`lines`] | one task for each runtime serves what is asked there |
//! | [`runtime`] | what a driver needs from the Tokio runtime |
//! | [`tasks`] | work in the background that ends with the store |
//! | [`url`] | the parameters of a store URL |
//! | [`versions`] | the oldest supported servers |
//! | [`wake`] | waking the waiters of a client when the store pushes |

pub mod backoff;
pub mod batch;
pub mod connect_once;
pub mod endpoint;
pub mod in_doubt;
pub mod lines;
pub mod runtime;
pub mod tasks;
pub mod url;
pub mod versions;
pub mod wake;
