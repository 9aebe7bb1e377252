//! What goes over the wire, as data: requests, replies, and stream messages.

use std::time::Duration;

use lock_core::ClockInstant;

use crate::error::{EtcdFailure, unexpected};
use crate::wire::protobuf::{Compare, KeyValue, RequestOp};

/// The purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnKind {
    Enter,
    EnterIfEmpty,
    Look,
    LookIfNotTold,
    LookIfNotBehind,
    Confirm,
    Find,
    Prove,
    Release,
    Force,
    Read,
    ReadEntries,
}

/// One transaction.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) kind: TxnKind,
    pub(crate) when: Vec<Compare>,
    pub(crate) then: Vec<RequestOp>,
    pub(crate) otherwise: Vec<RequestOp>,
}

impl Transaction {
    pub(crate) fn new(kind: TxnKind) -> Self {
        let (when, then, otherwise) = Default::default();
        Self { kind, when, then, otherwise }
    }

    pub(crate) fn when(self, when: impl Into<Vec<Compare>>) -> Self {
        Self { when: when.into(), ..self }
    }

    pub(crate) fn then(self, then: impl Into<Vec<RequestOp>>) -> Self {
        Self { then: then.into(), ..self }
    }

    pub(crate) fn otherwise(self, otherwise: impl Into<Vec<RequestOp>>) -> Self {
        Self { otherwise: otherwise.into(), ..self }
    }
}

/// One request to a member.
#[derive(Clone, Debug)]
pub(crate) enum EtcdRequest {
    Txn(Transaction),
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

impl EtcdRequest {
    /// Whether doing it twice does no harm: it reads, or grants a lease, which at worst expires unused.
    pub(crate) fn may_be_repeated(&self) -> bool {
        match self {
            Self::Txn(statement) => {
                matches!(statement.kind, TxnKind::Read | TxnKind::ReadEntries)
            }
            Self::Grant { .. } | Self::TimeToLive { .. } | Self::Status => true,
            Self::Revoke { .. } => false,
        }
    }
}

impl From<Transaction> for EtcdRequest {
    fn from(statement: Transaction) -> Self {
        Self::Txn(statement)
    }
}

/// The reply of a member. Fields that the request did not ask for are empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct EtcdReply {
    /// Whether the conditions of a transaction were met.
    pub(crate) succeeded: bool,
    /// The revision of the store at which all of it was true.
    pub(crate) revision: i64,
    /// The term of the elections that the member was in.
    pub(crate) term: u64,
    /// The keys found by each read of a transaction.
    pub(crate) reads: Vec<Vec<KeyValue>>,
    pub(crate) lease: i64,
    /// How long the lease lasts from when the request was sent, if the lease exists.
    pub(crate) ttl: Option<Duration>,
    /// The ttl that the lease was granted with, if the lease exists.
    pub(crate) granted: Option<Duration>,
    pub(crate) version: String,
}

impl EtcdReply {
    /// The result of the `at`-th read of the transaction.
    pub(crate) fn read(&self, at: usize) -> Result<&[KeyValue], EtcdFailure> {
        let read =
            self.reads.get(at).ok_or_else(|| unexpected("a transaction without its reads"))?;
        Ok(read)
    }

    /// The first key found by the `at`-th read.
    pub(crate) fn first(&self, at: usize) -> Result<Option<&KeyValue>, EtcdFailure> {
        self.read(at).map(<[KeyValue]>::first)
    }
}

/// The reply to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAliveAnswer {
    /// When the request was sent.
    pub(crate) sent: ClockInstant,
    /// How long the lease lasts from then on, at least; `None` if the server does not know it.
    pub(crate) ttl: Option<Duration>,
}

/// Events of the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchNews {
    /// The watch with the number `id` is set, on a store at `revision`. Changes since its first revision follow.
    Stands { id: i64, revision: i64 },
    /// All changes up to `up_to` were reported to the watch `id`. If there was any, the last one was at `up_to`.
    Progress { id: i64, up_to: i64, change: Option<Change> },
    /// The server has ended the watch `id`, or refused one, whose id is negative.
    Ended { id: i64, is_compacted: bool, reason: String },
    /// The watches are no longer served.
    Unserved,
}

/// How a watched key has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// When it was deleted, for the last time.
    pub(crate) deleted: Option<i64>,
    /// What was written last.
    pub(crate) written: Option<Vec<u8>>,
}

/// What a reply shows: nothing that is sent after it may be answered with less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) revision: i64,
    /// 0 before the first reply.
    pub(crate) term: u64,
}
