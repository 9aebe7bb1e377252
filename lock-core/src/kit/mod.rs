//! Tools for store authors: whatever two stores need is here, once. Users of locks need none of it,
//! and it is specific to no store.
//!
//! | module | what for |
//! |---|---|
//! | [`backoff`] | pauses between failing attempts |
//! | [`batch`] | requests made at about the same time travel as one |
//! | [`connect_once`] | one connection, made once and shared by all its users |
//! | [`diagnosis`] | findings that several stores report |
//! | [`endpoint`] | user, hosts and path of a URL, and which parts may be shown |
//! | [`in_doubt`] | requests that may still take effect, and what a release proves |
//! | [`lines`] | one task per runtime serves the requests made there |
//! | [`outage`] | a server that is down is asked a few times a second, however many callers there are |
//! | [`runtime`] | what a driver needs from the Tokio runtime |
//! | [`tasks`] | work in the background that ends with the store |
//! | [`url`] | the parameters of a store URL |
//! | [`versions`] | the oldest supported servers |
//! | [`wake`] | waking a client's waiters when the store pushes |

pub mod backoff;
pub mod batch;
pub mod connect_once;
pub mod diagnosis;
pub mod endpoint;
pub mod in_doubt;
pub mod lines;
pub mod outage;
pub mod runtime;
pub mod tasks;
pub mod url;
pub mod versions;
pub mod wake;
