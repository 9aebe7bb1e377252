//! What the recipe needs of a client of ZooKeeper: one session, and a handful of requests.

mod client;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use lock_core::async_trait;
use tokio_util::sync::CancellationToken;

pub(crate) use client::{ClientTransport, open};

/// Ready when the watched node has changed or has gone, or when the session has ended.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// One session, and requests within it.
///
/// Requests are sent when the method is called or first polled, and are executed in the order of
/// their sending. One that is dropped may be executed all the same, also much later.
#[async_trait]
pub(crate) trait Transport: Debug + Send + Sync {
    fn session_id(&self) -> i64;

    /// How many bytes the client puts before each path: its chroot.
    fn chroot_len(&self) -> usize;

    /// Cancelled when the session is over for good: ended by the server, given up by the client after
    /// a long silence, or closed.
    fn ended(&self) -> &CancellationToken;

    /// Makes a container node, or a persistent one on a server that has no containers.
    async fn create_parent(&self, path: &str) -> Result<(), Failure>;

    /// Makes an ephemeral sequential node under `parent`, and lists the children of `parent` right
    /// after it. Both requests are on their way before either is answered.
    async fn enter(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Result<Entered, Failure>, Result<Vec<String>, Failure>);

    async fn list(&self, path: &str) -> Result<Vec<String>, Failure>;

    /// Waits until this client's server has seen everything that the leader had done.
    async fn sync(&self, path: &str) -> Result<(), Failure>;

    async fn get(&self, path: &str) -> Result<Option<Node>, Failure>;

    /// Watches a node; `None` if it does not exist, and then nothing is left on the server.
    async fn watch(&self, path: &str) -> Result<Option<Watch>, Failure>;

    /// Watches the children of a node. Only a mutant does.
    #[cfg(feature = "mutants")]
    async fn watch_children(&self, path: &str) -> Result<Option<Watch>, Failure>;

    /// One transaction that checks that all these nodes exist, and changes nothing. It is committed
    /// by the leader, unlike a read.
    async fn check(&self, paths: &[&str]) -> Result<Checked, Failure>;

    /// As [`sync`](Self::sync), and right after it a listing of the children. Both requests are on their
    /// way before either is answered. A server executes the requests of a session in order, so the
    /// listing is no older than the answer of the leader.
    async fn sync_and_list(
        &self,
        path: &str,
    ) -> (Result<(), Failure>, Result<Vec<String>, Failure>);

    async fn delete(&self, path: &str) -> Result<(), Failure>;

    /// Ends the session on the server, and with it all its nodes. Returns when the server has said so,
    /// or the client has given the session up.
    async fn close(&self);
}

/// A node of one's own that has just been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Its name, without the path.
    pub(crate) name: String,
    /// The transaction that made it; `None` where an old server does not say.
    pub(crate) czxid: Option<i64>,
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
    /// The session is over: nothing of it is executed any more, once the server has ended it.
    SessionEnded,
    /// The server refused, and did nothing.
    Refused(String),
    /// No answer came: the request may have been executed, or may be later.
    Unknown(String),
}
