//! What became of a request that failed: whether it may have had an effect, and what users are told.

use std::time::Duration;

use lock_core::{Error, ErrorKind};
use lock_kit::server::MinimumVersion;
use zookeeper_client as zk;

/// Container nodes came with 3.5.3; the first stable release of that line was 3.5.5.
pub(crate) const ZOOKEEPER: MinimumVersion =
    MinimumVersion::new("ZooKeeper", [3, 5, 5], "older ones have no stable container nodes");

/// The reply to a request, or why there is none.
pub(crate) type Reply<T> = Result<T, RequestFailure>;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum RequestFailure {
    NoNode,
    NodeExists,
    /// A right is missing, named for people.
    Denied(String),
    /// The server does not know this request.
    TooOld,
    /// The session is over: once the server has ended it, none of its requests are executed.
    SessionEnded,
    /// The server refused, and did nothing.
    Refused(zk::Error),
    /// No reply came: the request may have been executed, or may be later.
    Unknown(zk::Error),
    /// Any other error.
    Other(Error),
}

impl RequestFailure {
    /// Whether nothing was done.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::TooOld | Self::Refused(_))
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<zk::Error> for RequestFailure {
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
            | zk::Error::NoHosts => Self::Refused(error),
            // A moved session, a lost or silent connection, and everything else.
            _ => Self::Unknown(error),
        }
    }
}

/// Why a request failed that needs the right to read `node`. The server names no right.
pub(crate) fn reading(node: &str) -> impl Fn(zk::Error) -> RequestFailure {
    needs("read", node)
}

/// Why creating the node at `path` failed.
pub(crate) fn creating(path: &str) -> impl Fn(zk::Error) -> RequestFailure {
    needs("create", parent(path))
}

/// Why deleting the node at `path` failed.
pub(crate) fn deleting(path: &str) -> impl Fn(zk::Error) -> RequestFailure {
    needs("delete", parent(path))
}

fn needs(right: &'static str, node: &str) -> impl Fn(zk::Error) -> RequestFailure {
    move |error| match error {
        zk::Error::NoAuth => RequestFailure::Denied(format!("{right:?} on the node {node}")),
        error => error.into(),
    }
}

/// The node above the one at `path`: creating and deleting that are rights on it.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Whether the driver dropped the request without a word, and reports that it "got none" of a response.
/// One that it had taken ends with another error, unless the driver has panicked.
pub(crate) fn got_none(error: &zk::Error) -> bool {
    matches!(error, zk::Error::UnexpectedError(why) if why.ends_with("response, but got none"))
}

impl RequestFailure {
    /// Describes the failure of a request to the ensemble at `endpoint`.
    pub(crate) fn at(self, endpoint: &str) -> Error {
        let said = |kind, what: &str| {
            Error::new(kind, format!("the ZooKeeper ensemble at {endpoint} {what}"))
        };
        match self {
            Self::Other(error) => error,
            Self::Denied(what) => said(
                ErrorKind::Denied,
                &format!(
                    "denied a right that locks need: {what}. `getAcl` in zkCli.sh shows who has it: use the user and password with which the node was created, grant the right with `setAcl`, or name another root in the URL"
                ),
            ),
            Self::TooOld => said(
                ErrorKind::Unsupported,
                &format!(
                    "does not support a request that locks need, such as creating a container node: {ZOOKEEPER} or newer is needed"
                ),
            ),
            Self::Refused(error) => {
                said(ErrorKind::Unavailable, "refused the request").with_source(error)
            }
            Self::SessionEnded => {
                said(ErrorKind::Unavailable, "no longer has this session").with_unknown_effect()
            }
            Self::Unknown(error) => {
                let described = said(ErrorKind::Unavailable, "did not answer").with_source(error);
                described.with_unknown_effect()
            }
            Self::NoNode | Self::NodeExists => {
                said(ErrorKind::Store, &format!("gave an unexpected answer: {self:?}"))
                    .with_unknown_effect()
            }
        }
    }
}

/// No session could be opened; no request was sent.
pub(crate) fn not_connected(error: &zk::Error, endpoint: &str) -> Error {
    let (kind, why) = match error {
        zk::Error::AuthFailed => (ErrorKind::Denied, "refused the credentials"),
        zk::Error::BadArguments(_) => (ErrorKind::Config, "cannot be addressed"),
        _ => (ErrorKind::Unavailable, "cannot be reached"),
    };
    Error::new(kind, format!("the ZooKeeper ensemble at {endpoint} {why}"))
        .with_source(error.clone())
}

/// An invalid connect string. It contains no credentials.
pub(crate) fn bad_hosts(cluster: &str) -> Error {
    Error::config(format!(
        "{cluster:?} is not a ZooKeeper connect string: its form is host[:port][,host…][/chroot]"
    ))
}

/// The topmost node of a path cannot be created, since there is none for the chroot.
pub(crate) fn no_chroot() -> Error {
    Error::config(
        "the chroot of the ZooKeeper connect string does not exist: create its node first",
    )
}

/// No answer within the timeout of a call.
pub(crate) fn no_answer(limit: Duration, endpoint: &str) -> Error {
    Error::new(
        ErrorKind::NoAnswer,
        format!("the ZooKeeper ensemble at {endpoint} did not answer within {limit:?}"),
    )
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the session with ZooKeeper was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_that_is_missing_is_named() {
        let (read, create) = (reading("/locks/a"), creating("/locks/a/_c_1"));
        let (delete, root) = (deleting("/locks/a"), creating("/locks"));
        for (why, words) in [
            (&read as &dyn Fn(zk::Error) -> RequestFailure, "\"read\" on the node /locks/a"),
            (&create, "\"create\" on the node /locks/a"),
            (&delete, "\"delete\" on the node /locks"),
            (&root, "\"create\" on the node /"),
        ] {
            let RequestFailure::Denied(what) = why(zk::Error::NoAuth) else { panic!("{words}") };
            assert_eq!(what, words);
            assert!(matches!(why(zk::Error::NoNode), RequestFailure::NoNode));
        }
    }

    #[test]
    fn a_reply_without_an_effect_is_told_from_an_unknown_one() {
        let words = |error: zk::Error| format!("{:?}", RequestFailure::from(error));
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
            assert_eq!(RequestFailure::from(error.clone()).is_refusal(), is_refusal, "{error}");
        }
    }

    #[test]
    fn the_error_of_the_driver_can_be_reached() {
        let request = |error| RequestFailure::from(error).at("h:2181");
        let lost = zk::Error::ConnectionLoss;
        for (error, said) in [
            (request(lost.clone()), "did not answer: "),
            (request(zk::Error::NotEmpty), "refused the request: "),
            (not_connected(&lost, "h:2181"), "cannot be reached: "),
        ] {
            assert!(error.to_string().contains(said), "{error}");
            let driver = std::error::Error::source(&error).and_then(|it| it.downcast_ref());
            assert!(
                matches!(driver, Some(zk::Error::ConnectionLoss | zk::Error::NotEmpty)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_request_that_is_dropped_is_told_from_one_that_fails() {
        let unexpected = |why: &str| zk::Error::UnexpectedError(why.to_owned());
        assert!(got_none(&unexpected("expect response, but got none")));
        assert!(!got_none(&unexpected("expect response, but got another")));
        assert!(!got_none(&zk::Error::ConnectionLoss));
    }

    #[test]
    fn a_session_that_was_not_opened_is_told_by_its_cause() {
        for (error, kind) in [
            (zk::Error::AuthFailed, ErrorKind::Denied),
            (zk::Error::BadArguments(&"no host"), ErrorKind::Config),
            (zk::Error::ConnectionLoss, ErrorKind::Unavailable),
        ] {
            assert_eq!(not_connected(&error, "h:2181").kind(), kind, "{error}");
        }
    }
}
