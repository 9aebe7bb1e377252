//! Conversion of request failures into errors.

use std::time::Duration;

use lock_core::kit::versions::ZOOKEEPER;
use lock_core::{Error, ErrorKind};
use zookeeper_client as zk;

use crate::connection::reply::Failure;

impl Failure {
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
            Self::Refused(why) => {
                said(ErrorKind::Unavailable, &format!("refused the request: {why}"))
            }
            Self::SessionEnded => {
                said(ErrorKind::Unavailable, "no longer has this session").with_unknown_effect()
            }
            Self::Unknown(why) => said(ErrorKind::Unavailable, &format!("did not answer: {why}"))
                .with_unknown_effect(),
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
    Error::new(kind, format!("the ZooKeeper ensemble at {endpoint} {why}: {error}"))
}

/// An invalid connect string. It contains no credentials.
pub(crate) fn bad_hosts(cluster: &str) -> Error {
    Error::config(format!(
        "{cluster:?} is not a ZooKeeper connect string: its form is host[:port][,host…][/chroot]"
    ))
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
