//! What the recipe needs of ZooKeeper: one session over any number of connections, and a handful of
//! requests.

mod ensemble;
mod line;
mod link;
mod requests;

use std::future::Future;
use std::pin::Pin;

pub(crate) use ensemble::Ensemble;
pub(crate) use line::Line;
pub(crate) use link::{Link, patience};

/// Ready when the watched node has changed or has gone, or when the session has ended.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A node of one's own that has just been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Its name, without the path.
    pub(crate) name: String,
    /// The transaction that made it.
    pub(crate) czxid: i64,
}

/// A node as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) data: Vec<u8>,
    pub(crate) czxid: i64,
    /// The session that it lives and dies with; 0 if it is not ephemeral.
    pub(crate) owner: i64,
}

/// The answer to a transaction of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    All,
    /// The first one that is missing.
    Missing(usize),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoNode,
    NodeExists,
    NotEmpty,
    Denied,
    /// The server does not know this request.
    TooOld,
    /// The session is over: nothing of it is executed any more, once the server has ended it.
    SessionEnded,
    /// The server refused, and did nothing.
    Refused(String),
    /// No answer came: the request may have been executed, or may be later.
    Unknown(String),
}
