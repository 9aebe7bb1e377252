//! One session over any number of connections, and the handful of requests that the recipe needs.

mod channel;
mod driver;
mod ensemble;
pub(crate) mod reply;
mod requests;

pub(crate) use channel::Channel;
pub(crate) use driver::{Connection, End};
pub(crate) use ensemble::Ensemble;
