//! What a server says to a request, and what it may have done if it says nothing.

use std::future::Future;
use std::pin::Pin;

use zookeeper_client as zk;

/// Ready when the watched node has changed or has gone, or when the session has ended.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

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

/// The answer to a transaction of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    All,
    /// The first one that is missing. Those before it exist.
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

impl From<&zk::Error> for Failure {
    fn from(error: &zk::Error) -> Self {
        match error {
            zk::Error::NoNode => Self::NoNode,
            zk::Error::NodeExists => Self::NodeExists,
            zk::Error::NotEmpty => Self::NotEmpty,
            zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => Self::Denied,
            zk::Error::SessionExpired | zk::Error::ClientClosed => Self::SessionEnded,
            zk::Error::Unimplemented => Self::TooOld,
            zk::Error::BadArguments(_)
            | zk::Error::BadVersion
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

/// What the server or the driver said.
pub(crate) fn reply<T>(result: Result<T, zk::Error>) -> Reply<T> {
    result.map_err(|error| Failure::from(&error))
}

/// A node that does not exist is an answer to a read.
pub(crate) fn none_if_missing<T>(reply: Reply<T>) -> Reply<Option<T>> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_unknown() {
        for error in [zk::Error::ConnectionLoss, zk::Error::Timeout, zk::Error::SessionMoved] {
            assert!(matches!(Failure::from(&error), Failure::Unknown(_)), "{error}");
        }
        assert_eq!(Failure::from(&zk::Error::NoNode), Failure::NoNode);
        assert_eq!(Failure::from(&zk::Error::SessionExpired), Failure::SessionEnded);
    }
}
