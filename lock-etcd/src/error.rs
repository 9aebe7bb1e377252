//! Conversion of the driver's errors into ours.

use std::error::Error as StdError;

use lock_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// A failed request, and what the failure means for its sender.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) why: Why,
    pub(crate) error: Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
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

impl Failed {
    pub(crate) fn timeout(endpoint: &str, limit: std::time::Duration) -> Self {
        let text = format!("the etcd member at {endpoint} did not answer within {limit:?}");
        Self { why: Why::Broken, error: Error::new(ErrorKind::NoAnswer, text) }
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
        Self { why: Why::Unsettled, error: Error::new(kind, text).with_unknown_effect() }
    }

    /// The same failure, for a request that changes nothing in the store.
    pub(crate) fn without_effect(self) -> Self {
        if !self.is_unknown() {
            return self;
        }
        let error = Error::new(ErrorKind::Unavailable, self.error.to_string());
        Self { why: Why::NotSent, error }
    }

    /// Whether the request may have been executed, or may be later.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.why, Why::Broken | Why::Ending | Why::Unsettled)
    }

    /// Whether the user is signed in, but not permitted to do this to this key.
    pub(crate) fn is_about_a_right(&self) -> bool {
        self.why == Why::Refused && self.error.to_string().contains("permission denied")
    }

    /// Whether the connection to this member is no longer of use.
    pub(crate) fn is_about_the_member(&self) -> bool {
        self.is_for_another() || matches!(self.why, Why::Broken | Why::Ending)
    }

    /// Whether nothing was done, and another member is worth trying.
    pub(crate) fn is_for_another(&self) -> bool {
        matches!(self.why, Why::NotSent | Why::NoLeader | Why::Learner)
    }
}

/// Describes an error of the member at `endpoint`. Neither the driver's text nor the server's
/// contains the password.
pub(crate) fn from_etcd(status: &Status, endpoint: &str) -> Failed {
    let (why, kind) = judge(status);
    let what = match why {
        Why::NotSent => "cannot be reached",
        Why::NoLeader => "has no leader: it is cut off, or an election is under way",
        Why::Learner => "is a learner, which serves no locks",
        Why::Ending => "is stopping, or its cluster is unhealthy",
        Why::StaleToken => "no longer accepts the user's auth token",
        Why::LeaseGone => "does not know the lease",
        Why::Broken => "did not complete its reply",
        Why::Refused => refusal(status, kind),
        Why::Unsettled => "could not carry out the request",
    };
    let described = Error::new(kind, format!("the etcd member at {endpoint} {what}"));
    // The driver's text repeats all headers of the reply.
    let described = described.with_source(Told(told(status)));
    let error = match why {
        Why::Broken | Why::Ending | Why::Unsettled => described.with_unknown_effect(),
        _ => described,
    };
    Failed { why, error }
}

/// The messages of etcd, and what each means.
const SAID: [(&str, Why, ErrorKind); 10] = [
    ("requested lease not found", Why::LeaseGone, ErrorKind::Store),
    ("invalid auth token", Why::StaleToken, ErrorKind::Denied),
    ("revision of auth store is old", Why::StaleToken, ErrorKind::Denied),
    ("authentication failed", Why::Refused, ErrorKind::Denied),
    ("user name is empty", Why::Refused, ErrorKind::Denied),
    ("permission denied", Why::Refused, ErrorKind::Denied),
    ("no leader", Why::NoLeader, ErrorKind::Unavailable),
    ("not supported for learner", Why::Learner, ErrorKind::Unavailable),
    ("etcdserver: server stopped", Why::Ending, ErrorKind::Unavailable),
    ("etcdserver: unhealthy cluster", Why::Ending, ErrorKind::Unavailable),
];

/// What a refusal means that is about the user, and what to do.
const USERS: [(&str, &str); 3] = [
    (
        "user name is empty",
        "asks for a user: write user and password into the URL, as in etcd://user:password@host",
    ),
    ("authentication failed", "refused the user or the password"),
    ("authentication is not enabled", "has no users: omit user and password from the URL"),
];

fn refusal(status: &Status, kind: ErrorKind) -> &'static str {
    let text = status.message();
    match USERS.iter().find(|(said, _)| text.contains(said)) {
        Some((_, meaning)) => meaning,
        None if kind == ErrorKind::Denied => "denied a permission that locks need",
        None => "refused the request",
    }
}

fn judge(status: &Status) -> (Why, ErrorKind) {
    let text = status.message();
    if let Some((_, why, kind)) = SAID.iter().find(|(said, ..)| text.contains(said)) {
        return (*why, *kind);
    }
    // etcd's own messages begin so; all others come from the transport.
    let said = text.contains("etcdserver:") || text.contains("auth:");
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => (Why::Refused, ErrorKind::Denied),
        Code::Unimplemented => (Why::Refused, ErrorKind::Store),
        Code::ResourceExhausted if said => (Why::Refused, ErrorKind::Unavailable),
        Code::Unavailable if said => (Why::Unsettled, ErrorKind::Unavailable),
        Code::Unavailable if is_about_connecting(status) => (Why::NotSent, ErrorKind::Unavailable),
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange
            if said =>
        {
            (Why::Refused, ErrorKind::Store)
        }
        _ => (Why::Broken, ErrorKind::Unavailable),
    }
}

/// Whether the connection was never made. The transport shows it only in its text.
fn is_about_connecting(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if ["tcp connect error", "dns error", "error trying to connect", "connection refused"]
            .iter()
            .any(|known| text.to_ascii_lowercase().contains(known))
        {
            return true;
        }
        next = error.source();
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

/// What the server or the transport said.
#[derive(Debug)]
struct Told(String);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Told {}

/// A reply that a correct server does not give.
pub(crate) fn unexpected(what: &str) -> Failed {
    Failed::unsettled(ErrorKind::Store, format!("the etcd server answered {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_left_where_another_may_do_better() {
        for (text, why, leaves, unknown) in [
            ("rpc not supported for learner", Why::Learner, true, false),
            ("no leader", Why::NoLeader, true, false),
            ("server stopped", Why::Ending, true, true),
            ("unhealthy cluster", Why::Ending, true, true),
            ("request timed out", Why::Unsettled, false, true),
            ("too many requests", Why::Refused, false, false),
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
            assert_eq!((failed.why, failed.error.kind()), (Why::Refused, kind), "{text}");
            assert!(failed.error.to_string().contains(part), "{}", failed.error);
            assert_eq!(failed.is_about_a_right(), is_about_a_right, "{text}");
        }
        let said = "etcdserver: lost: permission denied";
        assert!(from_etcd(&Status::new(Code::Unavailable, said), "h:1").is_about_a_right());
        let never = from_etcd(&Status::new(Code::Unavailable, "tcp connect error"), "h:1");
        assert_eq!((never.why, never.is_about_a_right()), (Why::NotSent, false));
        let broken = from_etcd(&Status::new(Code::Unavailable, "goodbye"), "h:1");
        assert_eq!(broken.why, Why::Broken);
    }
}
