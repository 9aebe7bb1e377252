//! Conversion of the driver's errors into ours.

use std::error::Error as StdError;

use lock_core::{Error, ErrorKind};
use tonic::{Code, ConnectError, Status};

/// A failed request, and what the failure means for its sender.
#[derive(Clone, Debug)]
pub(crate) struct EtcdFailure {
    pub(crate) why: FailureClass,
    pub(crate) error: Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureClass {
    /// There was no connection: nothing was sent. Another member may succeed.
    NotSent,
    /// The member answered that it has no leader: it did nothing, and another member may succeed.
    NoLeader,
    /// The member answered that it is a learner: it did nothing, and another member may succeed.
    Learner,
    /// The member is stopping, or its cluster is unhealthy: it may have acted, and another member
    /// may succeed.
    Ending,
    /// The user's auth token is too old: nothing was done, and a new one helps.
    StaleToken,
    /// The server does not know the lease: nothing was done, and no key is bound to it.
    LeaseGone,
    /// The connection failed, or no reply came: the server may have acted, or may act later.
    Broken,
    /// The server refused, and did nothing.
    Refused,
    /// The server could not say whether it had acted.
    Unsettled,
}

impl From<EtcdFailure> for Error {
    fn from(failed: EtcdFailure) -> Self {
        failed.error
    }
}

impl EtcdFailure {
    pub(crate) fn timeout(endpoint: &str, limit: std::time::Duration) -> Self {
        let text = format!("the etcd member at {endpoint} did not answer within {limit:?}");
        Self { why: FailureClass::Broken, error: Error::new(ErrorKind::NoAnswer, text) }
    }

    /// The client was closed, or its runtime has ended.
    pub(crate) fn closed() -> Self {
        Self::unsettled(ErrorKind::Closed, "the connection to etcd was closed".to_owned())
    }

    /// The connection was replaced while the request was in flight.
    pub(crate) fn moved() -> Self {
        let text = "the connection to an etcd member was abandoned".to_owned();
        Self::unsettled(ErrorKind::Unavailable, text)
    }

    fn unsettled(kind: ErrorKind, text: String) -> Self {
        Self { why: FailureClass::Unsettled, error: Error::new(kind, text).with_unknown_effect() }
    }

    /// The same failure, for a request that changes nothing in the store.
    pub(crate) fn without_effect(self) -> Self {
        if !self.is_unknown() {
            return self;
        }
        let text = self.error.to_string();
        let error = Error::new(ErrorKind::Unavailable, text).with_source_shown_as(self.error, "");
        Self { why: FailureClass::NotSent, error }
    }

    /// Whether the request may have been executed, or may be later.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.why, FailureClass::Broken | FailureClass::Ending | FailureClass::Unsettled)
    }

    /// Whether the user is signed in, but not permitted to do this to this key.
    pub(crate) fn is_about_a_right(&self) -> bool {
        self.why == FailureClass::Refused && self.error.to_string().contains("permission denied")
    }

    /// Whether the connection to this member is no longer of use.
    pub(crate) fn is_about_the_member(&self) -> bool {
        self.is_for_another() || matches!(self.why, FailureClass::Broken | FailureClass::Ending)
    }

    /// Whether nothing was done, and another member is worth trying.
    pub(crate) fn is_for_another(&self) -> bool {
        matches!(self.why, FailureClass::NotSent | FailureClass::NoLeader | FailureClass::Learner)
    }
}

/// Describes an error of the member at `endpoint`. Neither the driver's text nor the server's
/// contains the password.
pub(crate) fn from_etcd(status: &Status, endpoint: &str) -> EtcdFailure {
    let (why, kind) = judge(status);
    let what = match why {
        FailureClass::NotSent => "cannot be reached",
        FailureClass::NoLeader => "has no leader: it is cut off, or an election is under way",
        FailureClass::Learner => "is a learner, which serves no locks",
        FailureClass::Ending => "is stopping, or its cluster is unhealthy",
        FailureClass::StaleToken => "no longer accepts the user's auth token",
        FailureClass::LeaseGone => "does not know the lease",
        FailureClass::Broken => "did not complete its reply",
        FailureClass::Refused => refusal(status, kind),
        FailureClass::Unsettled => "could not carry out the request",
    };
    let described = Error::new(kind, format!("the etcd member at {endpoint} {what}"));
    // The driver's text repeats all headers of the reply.
    let described = described.with_source_shown_as(status.clone(), told(status));
    let error = match why {
        FailureClass::Broken | FailureClass::Ending | FailureClass::Unsettled => {
            described.with_unknown_effect()
        }
        _ => described,
    };
    EtcdFailure { why, error }
}

/// The messages of etcd, and what each means.
const SAID: [(&str, FailureClass, ErrorKind); 10] = [
    ("requested lease not found", FailureClass::LeaseGone, ErrorKind::Store),
    ("invalid auth token", FailureClass::StaleToken, ErrorKind::Denied),
    ("revision of auth store is old", FailureClass::StaleToken, ErrorKind::Denied),
    ("authentication failed", FailureClass::Refused, ErrorKind::Denied),
    (NO_USER, FailureClass::Refused, ErrorKind::Denied),
    ("permission denied", FailureClass::Refused, ErrorKind::Denied),
    ("no leader", FailureClass::NoLeader, ErrorKind::Unavailable),
    ("not supported for learner", FailureClass::Learner, ErrorKind::Unavailable),
    ("etcdserver: server stopped", FailureClass::Ending, ErrorKind::Unavailable),
    ("etcdserver: unhealthy cluster", FailureClass::Ending, ErrorKind::Unavailable),
];

/// What a refusal means that is about the user, and what to do.
const USERS: [(&str, &str); 2] = [
    (
        NO_USER,
        "asks for a user: write user and password into the URL, as in etcd://user:password@host",
    ),
    ("authentication failed", "refused the user or the password"),
];

/// Said where a request has no token.
const NO_USER: &str = "user name is empty";

/// Whether the server refused to sign a user in because it asks nobody who they are.
pub(crate) fn asks_nobody(status: &Status) -> bool {
    status.message().contains("authentication is not enabled")
}

/// Whether the server refused a request because it has no token.
pub(crate) fn asks_for_a_user(status: &Status) -> bool {
    status.message().contains(NO_USER)
}

fn refusal(status: &Status, kind: ErrorKind) -> &'static str {
    let text = status.message();
    match USERS.iter().find(|(said, _)| text.contains(said)) {
        Some((_, meaning)) => meaning,
        None if kind == ErrorKind::Denied => "denied a permission that locks need",
        None => "refused the request",
    }
}

fn judge(status: &Status) -> (FailureClass, ErrorKind) {
    let text = status.message();
    if let Some((_, why, kind)) = SAID.iter().find(|(said, ..)| text.contains(said)) {
        return (*why, *kind);
    }
    // etcd's own messages begin so; all others come from the transport.
    let said = text.contains("etcdserver:") || text.contains("auth:");
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => {
            (FailureClass::Refused, ErrorKind::Denied)
        }
        Code::Unimplemented => (FailureClass::Refused, ErrorKind::Store),
        Code::ResourceExhausted if said => (FailureClass::Refused, ErrorKind::Unavailable),
        Code::Unavailable if said => (FailureClass::Unsettled, ErrorKind::Unavailable),
        Code::Unavailable if is_about_connecting(status) => {
            (FailureClass::NotSent, ErrorKind::Unavailable)
        }
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange
            if said =>
        {
            (FailureClass::Refused, ErrorKind::Store)
        }
        _ => (FailureClass::Broken, ErrorKind::Unavailable),
    }
}

/// Whether the connection was never made: there is no address, nobody accepts it, or TLS fails.
fn is_about_connecting(status: &Status) -> bool {
    let mut cause = StdError::source(status);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn told(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = format!("{:?}", status.code());
    }
    let mut source = StdError::source(status);
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

/// A reply that a correct server does not give.
pub(crate) fn unexpected(what: &str) -> EtcdFailure {
    EtcdFailure::unsettled(ErrorKind::Store, format!("the etcd server answered {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_left_where_another_may_do_better() {
        for (text, why, leaves, unknown) in [
            ("rpc not supported for learner", FailureClass::Learner, true, false),
            ("no leader", FailureClass::NoLeader, true, false),
            ("server stopped", FailureClass::Ending, true, true),
            ("unhealthy cluster", FailureClass::Ending, true, true),
            ("request timed out", FailureClass::Unsettled, false, true),
            ("too many requests", FailureClass::Refused, false, false),
        ] {
            let is_busy = text == "too many requests";
            let code = if is_busy { Code::ResourceExhausted } else { Code::Unavailable };
            let text = format!("etcdserver: {text}");
            let failed = from_etcd(&Status::new(code, &*text), "h:1");
            assert_eq!(failed.why, why, "{text}");
            assert_eq!(failed.is_about_the_member(), leaves, "{text}");
            assert_eq!(failed.is_unknown(), unknown, "{text}");
            assert!(failed.error.is_retryable(), "{text}");
        }
    }

    #[test]
    fn the_error_of_the_driver_can_be_reached() {
        let mut status = Status::new(Code::Unavailable, "etcdserver: request timed out");
        status.metadata_mut().insert("trailer", "not shown".parse().unwrap());
        let failed = from_etcd(&status, "h:1");
        assert!(
            failed.is_unknown() && failed.error.to_string().ends_with("timed out"),
            "{failed:?}"
        );
        assert!(!format!("{:?}", failed.error).contains("not shown"), "{:?}", failed.error);
        let read = failed.clone().without_effect().error;
        assert_eq!(read.to_string(), failed.error.to_string());
        for error in [failed.error, read] {
            let chain = std::iter::successors(StdError::source(&error), |below| (*below).source());
            let driver = chain.filter_map(|below| below.downcast_ref::<Status>()).next();
            assert_eq!(driver.map(Status::code), Some(Code::Unavailable), "{error}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (code, text, kind, part, is_about_a_right) in [
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::Denied,
                "denied a permission",
                true,
            ),
            (Code::Unauthenticated, "who?", ErrorKind::Denied, "denied a permission", false),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                ErrorKind::Denied,
                "asks for a user",
                false,
            ),
            (
                Code::Unimplemented,
                "unknown service",
                ErrorKind::Store,
                "refused the request",
                false,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: key is not provided",
                ErrorKind::Store,
                "refused the request",
                false,
            ),
        ] {
            let failed = from_etcd(&Status::new(code, text), "h:1");
            assert_eq!((failed.why, failed.error.kind()), (FailureClass::Refused, kind), "{text}");
            assert!(failed.error.to_string().contains(part), "{}", failed.error);
            assert_eq!(failed.is_about_a_right(), is_about_a_right, "{text}");
        }
        let said = "etcdserver: lost: permission denied";
        assert!(from_etcd(&Status::new(Code::Unavailable, said), "h:1").is_about_a_right());
        // Whatever the words are, as those of TLS.
        let never = ConnectError("certificate has expired".into());
        let never = from_etcd(&Status::from_error(Box::new(never)), "h:1");
        assert_eq!((never.why, never.is_about_a_right()), (FailureClass::NotSent, false));
        let broken = from_etcd(&Status::new(Code::Unavailable, "goodbye"), "h:1");
        assert_eq!(broken.why, FailureClass::Broken);
    }
}
