//! A server's reply to a request, and what may have happened if there is none.

use lock_core::Error;
use zookeeper_client as zk;

/// The reply to a request, or why there is none.
pub(crate) type Reply<T> = Result<T, Failure>;

/// A node of ours that was just created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Its name, without the path.
    pub(crate) name: String,
    /// The transaction that created it.
    pub(crate) czxid: i64,
}

/// A node as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) data: Vec<u8>,
    pub(crate) czxid: i64,
    /// The session that it lives and dies with; 0 if it is not ephemeral.
    pub(crate) owner: i64,
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    NoNode,
    NodeExists,
    Denied,
    /// The server does not know this request.
    TooOld,
    /// The session is over: once the server has ended it, none of its requests are executed.
    SessionEnded,
    /// The server refused, and did nothing.
    Refused(String),
    /// No reply came: the request may have been executed, or may be later.
    Unknown(String),
    /// Any other error.
    Other(Error),
}

impl Failure {
    /// Whether nothing was done.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Denied | Self::TooOld | Self::Refused(_))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<zk::Error> for Failure {
    fn from(error: zk::Error) -> Self {
        match error {
            zk::Error::NoNode => Self::NoNode,
            zk::Error::NodeExists => Self::NodeExists,
            zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => Self::Denied,
            zk::Error::SessionExpired | zk::Error::ClientClosed => Self::SessionEnded,
            zk::Error::Unimplemented => Self::TooOld,
            zk::Error::BadArguments(_)
            | zk::Error::BadVersion
            | zk::Error::NotEmpty
            | zk::Error::NoChildrenForEphemerals
            | zk::Error::NotReadOnly
            | zk::Error::QuotaExceeded
            | zk::Error::Throttled
            | zk::Error::MarshallingError
            | zk::Error::NoHosts => Self::Refused(error.to_string()),
            // A moved session, a lost or silent connection, and everything else.
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// Whether the connection was lost before the driver took the request: then it was not sent, and
/// the driver reports that it "got none" of a response. A request that it had taken ends with
/// another error.
pub(crate) fn was_not_sent(error: &zk::Error) -> bool {
    matches!(error, zk::Error::UnexpectedError(why) if why.ends_with("response, but got none"))
}

/// For a read, a missing node is an answer, not a failure.
pub(crate) fn none_if_missing<T>(reply: Reply<T>) -> Reply<Option<T>> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}
