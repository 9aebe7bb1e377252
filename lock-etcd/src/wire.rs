//! What goes over the wire, as data: requests, replies, and stream messages.

use std::time::Duration;

use lock_core::ClockInstant;

use crate::error::{Failed, unexpected};
use crate::proto::{
    Event, EventType, KeyValue, LeaseGrantResponse, LeaseTimeToLiveResponse, StatusResponse,
    TxnResponse, WatchResponse,
};
use crate::statements::{Kind, Statement};

/// One request to a member.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Txn(Statement),
    /// Asks for a new lease.
    Grant {
        seconds: i64,
    },
    Revoke {
        lease: i64,
    },
    /// Asks how long a lease lasts, without renewing it.
    TimeToLive {
        lease: i64,
    },
    Status,
}

impl Request {
    /// Whether doing it twice does no harm: it reads, or grants a lease, which at worst expires unused.
    pub(crate) fn may_be_repeated(&self) -> bool {
        match self {
            Self::Txn(statement) => statement.kind == Kind::Read,
            Self::Grant { .. } | Self::TimeToLive { .. } | Self::Status => true,
            Self::Revoke { .. } => false,
        }
    }
}

impl From<Statement> for Request {
    fn from(statement: Statement) -> Self {
        Self::Txn(statement)
    }
}

/// The reply of a member. Fields that the request did not ask for are empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// Whether the conditions of a transaction were met.
    pub(crate) succeeded: bool,
    /// The revision of the store at which all of it was true.
    pub(crate) revision: i64,
    /// The keys found by each read of a transaction.
    pub(crate) reads: Vec<Vec<KeyValue>>,
    pub(crate) lease: i64,
    /// How long the lease lasts from when the request was sent, if the lease exists.
    pub(crate) ttl: Option<Duration>,
    /// The ttl that the lease was granted with; zero if not known.
    pub(crate) granted: Duration,
    pub(crate) version: String,
}

impl Reply {
    /// The result of the `at`-th read of the transaction.
    pub(crate) fn read(&self, at: usize) -> Result<&[KeyValue], Failed> {
        let read =
            self.reads.get(at).ok_or_else(|| unexpected("a transaction without its reads"))?;
        Ok(read)
    }

    /// The first key found by the `at`-th read.
    pub(crate) fn first(&self, at: usize) -> Result<Option<&KeyValue>, Failed> {
        self.read(at).map(<[KeyValue]>::first)
    }
}

impl From<TxnResponse> for Reply {
    fn from(answer: TxnResponse) -> Self {
        let reads = answer.responses.into_iter().filter_map(|response| response.range);
        Self {
            succeeded: answer.succeeded,
            revision: answer.header.map_or(0, |header| header.revision),
            reads: reads.map(|read| read.kvs).collect(),
            ..Self::default()
        }
    }
}

impl From<LeaseGrantResponse> for Reply {
    fn from(answer: LeaseGrantResponse) -> Self {
        Self { lease: answer.id, ttl: seconds(answer.ttl), ..Self::default() }
    }
}

impl From<LeaseTimeToLiveResponse> for Reply {
    fn from(answer: LeaseTimeToLiveResponse) -> Self {
        let ttl = u64::try_from(answer.ttl).ok().map(Duration::from_secs);
        let granted = seconds(answer.granted_ttl).unwrap_or_default();
        Self { lease: answer.id, ttl, granted, ..Self::default() }
    }
}

impl From<StatusResponse> for Reply {
    fn from(answer: StatusResponse) -> Self {
        Self { version: answer.version, ..Self::default() }
    }
}

/// A number of seconds, if it is above 0.
fn seconds(seconds: i64) -> Option<Duration> {
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// The reply to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    /// When the request was sent.
    pub(crate) sent: ClockInstant,
    /// How long the lease lasts from then on, at least; `None` if the server does not know it.
    pub(crate) ttl: Option<Duration>,
}

impl Renewed {
    /// A server that does not know the lease reports 0 s left.
    pub(crate) fn read(sent: ClockInstant, ttl: i64) -> Self {
        Self { sent, ttl: seconds(ttl) }
    }
}

/// Events of the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A new stream was opened.
    Opened,
    /// The watch `id` is set, on a store at `revision`. Changes since its first revision follow.
    Stands { id: i64, revision: i64 },
    /// All changes up to `up_to` were reported to the watch `id`. `changed`: there was one, the last
    /// at `up_to`; `deleted`: the last one that deleted the key.
    Told { id: i64, up_to: i64, changed: bool, deleted: Option<i64> },
    /// The server has ended the watch `id`, or refused one, which has no id.
    Ended { id: i64, is_compacted: bool, reason: String },
    /// The watches are no longer served.
    Unserved,
}

impl News {
    pub(crate) fn read(answer: WatchResponse) -> Self {
        let id = answer.watch_id;
        if answer.canceled {
            let is_compacted = answer.compact_revision > 0;
            return Self::Ended { id, is_compacted, reason: answer.cancel_reason };
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let changes = answer.events;
        if answer.created && changes.is_empty() {
            return Self::Stands { id, revision };
        }
        // A message with changes carries the revision of the store, which may be that of a change
        // in the next message.
        let at = |change: &Event| change.kv.as_ref().map_or(revision, |key| key.mod_revision);
        let last = changes.iter().map(at).max();
        let deletions = changes.iter().filter(|change| change.kind() == EventType::Delete);
        let (up_to, deleted) = (last.unwrap_or(revision), deletions.map(at).max());
        Self::Told { id, up_to, changed: last.is_some(), deleted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{RangeResponse, ResponseHeader, ResponseOp};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reply_has_what_the_server_said_of_a_lease() {
        let granted = Reply::from(LeaseGrantResponse { id: 7, ttl: 9 });
        assert_eq!((granted.lease, granted.ttl), (7, Some(9 * SECOND)));
        let asked = |ttl| Reply::from(LeaseTimeToLiveResponse { id: 7, ttl, granted_ttl: 9 });
        assert_eq!((asked(4).lease, asked(4).ttl), (7, Some(4 * SECOND)));
        assert_eq!(asked(4).granted, 9 * SECOND);
        assert_eq!(asked(-1).ttl, None, "it is gone");
        assert_eq!(asked(0).ttl, Some(Duration::ZERO), "it is about to end");
        let now = ClockInstant::from_nanos(5);
        assert_eq!([0, 1].map(|ttl| Renewed::read(now, ttl).ttl), [None, Some(SECOND)]);
    }

    #[test]
    fn a_reply_has_the_keys_that_each_read_found() {
        let (key, version) = (KeyValue { lease: 7, ..KeyValue::default() }, "3.5.9".to_owned());
        let found = |kvs| ResponseOp { range: Some(RangeResponse { kvs }) };
        let reply = Reply::from(TxnResponse {
            header: Some(ResponseHeader { revision: 5 }),
            succeeded: true,
            responses: vec![found(vec![key.clone()]), ResponseOp { range: None }, found(vec![])],
        });
        assert_eq!((reply.succeeded, reply.revision, reply.reads.len()), (true, 5, 2));
        assert_eq!(reply.read(0).unwrap(), std::slice::from_ref(&key));
        assert_eq!((reply.first(0).unwrap(), reply.first(1).unwrap()), (Some(&key), None));
        assert!(reply.read(2).is_err() && reply.first(2).is_err());
        let status = StatusResponse { version: version.clone(), ..StatusResponse::default() };
        assert_eq!(Reply::from(status).version, version);
    }

    #[test]
    fn a_watch_that_has_ended_says_whether_it_was_overtaken() {
        for (compact_revision, is_compacted) in [(0, false), (5, true)] {
            let answer =
                WatchResponse { canceled: true, compact_revision, ..WatchResponse::default() };
            let ended = News::Ended { id: 0, is_compacted, reason: String::new() };
            assert_eq!(News::read(answer), ended);
        }
    }
}
