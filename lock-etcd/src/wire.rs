//! What goes over the wire, as data: requests and their replies, and what the streams bring.

use std::time::Duration;

use etcd_client::{
    EventType, KeyValue, LeaseGrantResponse, LeaseTimeToLiveResponse, StatusResponse,
    TxnOpResponse, TxnResponse, WatchResponse,
};
use lock_core::ClockInstant;

use crate::error::{Failed, unexpected};
use crate::statements::Statement;

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
    /// Asks how long a lease lasts, and does not renew it.
    TimeToLive {
        lease: i64,
    },
    Status,
}

impl From<Statement> for Request {
    fn from(statement: Statement) -> Self {
        Self::Txn(statement)
    }
}

/// What a member said. What the request did not ask for is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// Whether the conditions of a transaction were met.
    pub(crate) succeeded: bool,
    /// The revision of the store at which all of it was true.
    pub(crate) revision: i64,
    /// The keys that each read of a transaction has found.
    pub(crate) reads: Vec<Vec<KeyValue>>,
    pub(crate) lease: i64,
    /// How long the lease lasts from the sending of the request on, if there is such a lease.
    pub(crate) ttl: Option<Duration>,
    /// For how long the lease was granted; zero if that is not known.
    pub(crate) granted: Duration,
    pub(crate) version: String,
}

impl Reply {
    /// What the `at`-th read of the transaction has found.
    pub(crate) fn read(&self, at: usize) -> Result<&[KeyValue], Failed> {
        let read =
            self.reads.get(at).ok_or_else(|| unexpected("a transaction without its reads"))?;
        Ok(read)
    }

    /// The first key that the `at`-th read has found.
    pub(crate) fn first(&self, at: usize) -> Result<Option<&KeyValue>, Failed> {
        self.read(at).map(<[KeyValue]>::first)
    }
}

impl From<TxnResponse> for Reply {
    fn from(answer: TxnResponse) -> Self {
        let reads = answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(mut read) => Some(read.take_kvs()),
            _ => None,
        });
        Self {
            succeeded: answer.succeeded(),
            revision: answer.header().map_or(0, |header| header.revision()),
            reads: reads.collect(),
            ..Self::default()
        }
    }
}

impl From<LeaseGrantResponse> for Reply {
    fn from(answer: LeaseGrantResponse) -> Self {
        Self { lease: answer.id(), ttl: seconds(answer.ttl()), ..Self::default() }
    }
}

impl From<LeaseTimeToLiveResponse> for Reply {
    fn from(answer: LeaseTimeToLiveResponse) -> Self {
        let ttl = u64::try_from(answer.ttl()).ok().map(Duration::from_secs);
        let granted = seconds(answer.granted_ttl()).unwrap_or_default();
        Self { lease: answer.id(), ttl, granted, ..Self::default() }
    }
}

impl From<StatusResponse> for Reply {
    fn from(answer: StatusResponse) -> Self {
        Self { version: answer.version().to_owned(), ..Self::default() }
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
    /// For how long the lease lasts from then on at least; `None` if the server does not know it.
    pub(crate) ttl: Option<Duration>,
}

impl Renewed {
    /// A server that does not know the lease says that it has 0 s left.
    pub(crate) fn read(sent: ClockInstant, ttl: i64) -> Self {
        Self { sent, ttl: seconds(ttl) }
    }
}

/// What there is to know of the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Another stream was opened.
    Opened,
    /// The watch `id` stands, on a store at `revision`. What has changed since its first revision comes
    /// later.
    Stands { id: i64, revision: i64 },
    /// All changes up to `up_to` have been told to the watch `id`. `deleted` says whether the key is gone
    /// by one of these, `changed` whether there was one.
    Told { id: i64, up_to: i64, changed: bool, deleted: bool },
    /// The server has ended the watch `id`, or refused one, which has no number.
    Ended { id: i64, is_compacted: bool, reason: String },
    /// Nobody serves the watches any more.
    Unserved,
}

impl News {
    pub(crate) fn read(answer: &WatchResponse) -> Self {
        let id = answer.watch_id();
        if answer.canceled() {
            let reason = answer.cancel_reason().to_owned();
            return Self::Ended { id, is_compacted: answer.compact_revision() > 0, reason };
        }
        let revision = answer.header().map_or(0, |header| header.revision());
        let changes = answer.events();
        if answer.created() && changes.is_empty() {
            return Self::Stands { id, revision };
        }
        // An answer with changes has the revision of the store, which may be that of a change that comes
        // in the next answer.
        let last =
            changes.iter().filter_map(|change| change.kv()).map(KeyValue::mod_revision).max();
        let deleted = changes.iter().any(|change| change.event_type() == EventType::Delete);
        Self::Told { id, up_to: last.unwrap_or(revision), changed: !changes.is_empty(), deleted }
    }
}
