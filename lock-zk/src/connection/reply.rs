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
    /// A right is missing, named for people.
    Denied(String),
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
        matches!(self, Self::Denied(_) | Self::TooOld | Self::Refused(_))
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
            zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => {
                Self::Denied(error.to_string())
            }
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

/// Why a request failed that needs the right to read `node`. The server names no right.
pub(crate) fn reading(node: &str) -> impl Fn(zk::Error) -> Failure {
    needs("read", node)
}

/// Why creating the node at `path` failed.
pub(crate) fn creating(path: &str) -> impl Fn(zk::Error) -> Failure {
    needs("create", parent(path))
}

/// Why deleting the node at `path` failed.
pub(crate) fn deleting(path: &str) -> impl Fn(zk::Error) -> Failure {
    needs("delete", parent(path))
}

fn needs(right: &'static str, node: &str) -> impl Fn(zk::Error) -> Failure {
    move |error| match error {
        zk::Error::NoAuth => Failure::Denied(format!("{right:?} on the node {node}")),
        error => error.into(),
    }
}

/// Creating and deleting a node are rights on the one above it.
fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_that_is_missing_is_named() {
        let (read, create) = (reading("/locks/a"), creating("/locks/a/_c_1"));
        let (delete, root) = (deleting("/locks/a"), creating("/locks"));
        for (why, words) in [
            (&read as &dyn Fn(zk::Error) -> Failure, "\"read\" on the node /locks/a"),
            (&create, "\"create\" on the node /locks/a"),
            (&delete, "\"delete\" on the node /locks"),
            (&root, "\"create\" on the node /"),
        ] {
            let Failure::Denied(what) = why(zk::Error::NoAuth) else { panic!("{words}") };
            assert_eq!(what, words);
            assert!(matches!(why(zk::Error::NoNode), Failure::NoNode));
        }
    }

    #[test]
    fn a_reply_without_an_effect_is_told_from_an_unknown_one() {
        let words = |error: zk::Error| format!("{:?}", Failure::from(error));
        for (error, is_refusal, kind) in [
            (zk::Error::NoNode, false, "NoNode"),
            (zk::Error::NodeExists, false, "NodeExists"),
            (zk::Error::NoAuth, true, "Denied"),
            (zk::Error::AuthFailed, true, "Denied"),
            (zk::Error::SessionExpired, false, "SessionEnded"),
            (zk::Error::ClientClosed, false, "SessionEnded"),
            (zk::Error::Unimplemented, true, "TooOld"),
            (zk::Error::NotEmpty, true, "Refused"),
            (zk::Error::QuotaExceeded, true, "Refused"),
            (zk::Error::ConnectionLoss, false, "Unknown"),
            (zk::Error::SessionMoved, false, "Unknown"),
        ] {
            assert!(words(error.clone()).starts_with(kind), "{error}");
            assert_eq!(Failure::from(error.clone()).is_refusal(), is_refusal, "{error}");
        }
    }

    #[test]
    fn only_what_the_driver_did_not_take_was_not_sent() {
        let unexpected = |why: &str| zk::Error::UnexpectedError(why.to_owned());
        assert!(was_not_sent(&unexpected("expect response, but got none")));
        assert!(!was_not_sent(&unexpected("expect response, but got another")));
        assert!(!was_not_sent(&zk::Error::ConnectionLoss));
    }
}
