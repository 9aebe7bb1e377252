//! From the failures of requests to errors.

use std::time::Duration;

use lock_core::kit::versions::ZOOKEEPER;
use lock_core::{Error, ErrorKind};
use zookeeper_client as zk;

use crate::connection::reply::Failure;

/// Describes `failure` of a request to the ensemble at `endpoint`.
pub(crate) fn describe(failure: &Failure, endpoint: &str) -> Error {
    match failure {
        Failure::Denied => Error::new(
            ErrorKind::Denied,
            format!(
                "the ZooKeeper ensemble at {endpoint} denied a right that locks need: read, create and delete on the node of the lock, which may have been made by another user"
            ),
        ),
        Failure::TooOld => Error::unsupported(format!(
            "the ZooKeeper ensemble at {endpoint} does not know a request that locks need, such as making a container node: {ZOOKEEPER} or newer is needed"
        )),
        Failure::SessionEnded => Error::new(
            ErrorKind::Unavailable,
            format!("the session with the ZooKeeper ensemble at {endpoint} has ended"),
        )
        .with_unknown_effect(),
        Failure::Refused(why) => Error::new(
            ErrorKind::Unavailable,
            format!("the ZooKeeper ensemble at {endpoint} refused the request: {why}"),
        ),
        Failure::Unknown(why) => Error::new(
            ErrorKind::Unavailable,
            format!("the ZooKeeper ensemble at {endpoint} did not answer: {why}"),
        )
        .with_unknown_effect(),
        Failure::NoNode | Failure::NodeExists | Failure::NotEmpty => Error::new(
            ErrorKind::Store,
            format!("the ZooKeeper ensemble at {endpoint} gave an unexpected answer: {failure:?}"),
        )
        .with_unknown_effect(),
    }
}

/// No session could be opened; no request was sent.
pub(crate) fn not_connected(error: &zk::Error, endpoint: &str) -> Error {
    let (kind, why) = match error {
        zk::Error::AuthFailed => (ErrorKind::Denied, "refused the credentials"),
        zk::Error::BadArguments(_) => (ErrorKind::Config, "cannot be addressed"),
        _ => (ErrorKind::Unavailable, "cannot be reached"),
    };
    Error::new(kind, format!("the ZooKeeper ensemble at {endpoint} {why}: {error}"))
}

/// A connect string that cannot be read. It has no credentials.
pub(crate) fn bad_hosts(cluster: &str) -> Error {
    Error::config(format!(
        "{cluster:?} is no connect string of ZooKeeper: it is host[:port][,host…][/chroot]"
    ))
}

pub(crate) fn unreachable(why: &str, endpoint: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the ZooKeeper ensemble at {endpoint} cannot be reached: {why}"),
    )
}

/// No answer within the limit of a call.
pub(crate) fn no_answer(limit: Duration, endpoint: &str) -> Error {
    Error::new(
        ErrorKind::NoAnswer,
        format!("the ZooKeeper ensemble at {endpoint} did not answer within {limit:?}"),
    )
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the session with ZooKeeper was closed")
}
