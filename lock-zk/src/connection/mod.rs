//! One session over any number of connections, and the few requests that the recipe needs.

mod driver;
pub(crate) mod reply;
mod requests;
mod session;

pub(crate) use driver::{Connection, End, Event, Watch, connect};
#[cfg(distlock_mutants)]
pub(crate) use session::Proves;
pub(crate) use session::Session;
