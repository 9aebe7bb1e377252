//! What a server says to a request, and what it may have done if it says nothing.

use lock_core::Error;
use zookeeper_client as zk;

/// What a server answers to a request, or why there is no such answer.
pub(crate) type Reply<T> = Result<T, Failure>;

/// A node of one's own that has just been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
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

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    NoNode,
    NodeExists,
    Denied,
    /// The server does not know this request.
    TooOld,
    /// The session is over: nothing of it is executed any more, once the server has ended it.
    SessionEnded,
    /// The server refused, and did nothing.
    Refused(String),
    /// No answer came: the request may have been executed, or may be later.
    Unknown(String),
    /// What is no failure of a request.
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
            // A moved session, a lost connection, a silent one, and everything else.
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// Whether the connection went before the driver had taken the request: then nobody has it, and the driver
/// says that it "got none" of an answer. What it had taken ends with another error.
pub(crate) fn was_not_sent(error: &zk::Error) -> bool {
    matches!(error, zk::Error::UnexpectedError(why) if why.ends_with("response, but got none"))
}

/// A node that does not exist is an answer to a read.
pub(crate) fn none_if_missing<T>(reply: Reply<T>) -> Reply<Option<T>> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}
