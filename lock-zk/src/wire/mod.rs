//! What is sent to an ensemble, and what comes back: one session over any number of connections, the few requests
//! that the recipe needs, and what each reply proves.

mod connection;
pub(crate) mod requests;
pub(crate) mod session;
mod timeline;

pub(crate) use connection::{
    ConnectionEnd, DriverConnection, NodeWatch, WatchOutcome, close, connect, sever,
};
pub(crate) use requests::{Created, Listings, NodeRecord};
pub(crate) use session::{Footing, Session};
pub(crate) use timeline::Timeline;
