//! One request and its reply: where our values become messages of etcd, and those become values.

use std::time::Duration;

use lock_core::ClockInstant;

use crate::error::{EtcdFailure, unexpected};
use crate::wire::connection::MemberConnection;
use crate::wire::messages::{
    Change, EtcdReply, EtcdRequest, KeepAliveAnswer, Transaction, WatchNews,
};
use crate::wire::protobuf::{
    EventType, KeyEvent, LeaseGrantRequest, LeaseResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, StatusRequest, StatusResponse, TxnRequest,
    TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// Makes one request, without a timeout or a retry.
pub(crate) async fn send(
    connection: &MemberConnection,
    request: &EtcdRequest,
) -> Result<EtcdReply, EtcdFailure> {
    match request {
        EtcdRequest::Txn(transaction) => {
            let reply = EtcdReply::from(connection.call(txn(transaction)).await?);
            if reply.revision <= 0 {
                return Err(unexpected("a transaction without a revision"));
            }
            Ok(reply)
        }
        EtcdRequest::Grant { seconds } => {
            connection.call(LeaseGrantRequest { ttl: *seconds }).await.map(granted)
        }
        EtcdRequest::Revoke { lease } => {
            connection.call(LeaseRevokeRequest { id: *lease }).await?;
            Ok(EtcdReply::default())
        }
        EtcdRequest::TimeToLive { lease } => {
            connection.call(LeaseTimeToLiveRequest { id: *lease }).await.map(lasting)
        }
        EtcdRequest::Status => connection.call(StatusRequest {}).await.map(EtcdReply::from),
    }
}

fn txn(transaction: &Transaction) -> TxnRequest {
    let Transaction { when, then, otherwise, .. } = transaction.clone();
    TxnRequest { compare: when, success: then, failure: otherwise }
}

impl From<TxnResponse> for EtcdReply {
    fn from(answer: TxnResponse) -> Self {
        let reads = answer.responses.into_iter().filter_map(|response| response.range);
        let header = answer.header.unwrap_or_default();
        Self {
            succeeded: answer.succeeded,
            revision: header.revision,
            term: header.raft_term,
            reads: reads.map(|read| read.kvs).collect(),
            ..Self::default()
        }
    }
}

impl From<StatusResponse> for EtcdReply {
    fn from(answer: StatusResponse) -> Self {
        Self { version: answer.version, ..Self::default() }
    }
}

fn granted(lease: LeaseResponse) -> EtcdReply {
    EtcdReply { lease: lease.id, ttl: seconds(lease.ttl), ..EtcdReply::default() }
}

fn lasting(lease: LeaseTimeToLiveResponse) -> EtcdReply {
    let ttl = u64::try_from(lease.ttl).ok().map(Duration::from_secs);
    let granted = seconds(lease.granted_ttl);
    EtcdReply { lease: lease.id, ttl, granted, ..EtcdReply::default() }
}

/// A number of seconds, if it is above 0.
fn seconds(seconds: i64) -> Option<Duration> {
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// The answer to a keep-alive. A server that does not know the lease reports 0 s left.
pub(crate) fn keep_alive_answer(sent: ClockInstant, ttl: i64) -> KeepAliveAnswer {
    KeepAliveAnswer { sent, ttl: seconds(ttl) }
}

/// Asks to be told of changes of `key` from the revision `from` on.
pub(crate) fn watch_request(key: &[u8], from: i64) -> WatchRequest {
    let key = key.to_vec();
    WatchCreateRequest { key, start_revision: from, progress_notify: true }.into()
}

/// What a message says of a watch.
pub(crate) fn watch_news(answer: WatchResponse) -> WatchNews {
    // A watch that is refused has no number, though servers before 3.4.22 and 3.5.6 show one.
    let id = if answer.canceled && answer.created { -1 } else { answer.watch_id };
    if answer.canceled {
        let is_compacted = answer.compact_revision > 0;
        return WatchNews::Ended { id, is_compacted, reason: answer.cancel_reason };
    }
    let revision = answer.header.map_or(0, |header| header.revision);
    let mut changes = answer.events;
    if answer.created && changes.is_empty() {
        return WatchNews::Stands { id, revision };
    }
    // A message with changes carries the revision of the store, which may be that of a change
    // in the next message.
    let at = |change: &KeyEvent| change.kv.as_ref().map_or(revision, |key| key.mod_revision);
    let Some(up_to) = changes.iter().map(at).max() else {
        return WatchNews::Progress { id, up_to: revision, change: None };
    };
    let deletions = changes.iter().filter(|change| change.kind() == EventType::Delete);
    let deleted = deletions.map(at).max();
    let last = changes.iter_mut().rev().find(|change| change.kind() == EventType::Put);
    let written = last.and_then(|change| change.kv.take()).map(|key| key.value);
    WatchNews::Progress { id, up_to, change: Some(Change { deleted, written }) }
}

/// What those who watch are told when nothing reads their stream any more.
pub(crate) fn end_of_the_news() -> WatchNews {
    WatchNews::Unserved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::protobuf::{KeyValue, RangeResponse, ResponseHeader, ResponseOp};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reply_has_what_the_server_said_of_a_lease() {
        let new = granted(LeaseResponse { id: 7, ttl: 9 });
        assert_eq!((new.lease, new.ttl), (7, Some(9 * SECOND)));
        let asked = |ttl| lasting(LeaseTimeToLiveResponse { id: 7, ttl, granted_ttl: 9 });
        assert_eq!((asked(4).lease, asked(4).ttl), (7, Some(4 * SECOND)));
        assert_eq!(asked(4).granted, Some(9 * SECOND));
        assert_eq!(asked(-1).ttl, None, "it is gone");
        assert_eq!(asked(0).ttl, Some(Duration::ZERO), "it is about to end");
        let now = ClockInstant::from_nanos(5);
        assert_eq!([0, 1].map(|ttl| keep_alive_answer(now, ttl).ttl), [None, Some(SECOND)]);
    }

    #[test]
    fn a_reply_has_the_keys_that_each_read_found() {
        let (key, version) = (KeyValue { lease: 7, ..KeyValue::default() }, "3.5.9".to_owned());
        let found = |kvs| ResponseOp { range: Some(RangeResponse { kvs }) };
        let reply = EtcdReply::from(TxnResponse {
            header: Some(ResponseHeader { revision: 5, raft_term: 2 }),
            succeeded: true,
            responses: vec![found(vec![key.clone()]), ResponseOp { range: None }, found(vec![])],
        });
        assert_eq!((reply.succeeded, reply.reads.len()), (true, 2));
        assert_eq!((reply.revision, reply.term), (5, 2));
        assert_eq!(reply.read(0).unwrap(), std::slice::from_ref(&key));
        assert_eq!((reply.first(0).unwrap(), reply.first(1).unwrap()), (Some(&key), None));
        assert!(reply.read(2).is_err() && reply.first(2).is_err());
        let status = StatusResponse { version: version.clone(), ..StatusResponse::default() };
        assert_eq!(EtcdReply::from(status).version, version);
    }

    #[test]
    fn a_watch_that_has_ended_says_whether_it_was_overtaken() {
        for (compact_revision, is_compacted) in [(0, false), (5, true)] {
            let answer =
                WatchResponse { canceled: true, compact_revision, ..WatchResponse::default() };
            let ended = WatchNews::Ended { id: 0, is_compacted, reason: String::new() };
            assert_eq!(watch_news(answer), ended);
        }
        let refused = WatchResponse { created: true, canceled: true, ..WatchResponse::default() };
        let ended = WatchNews::Ended { id: -1, is_compacted: false, reason: String::new() };
        assert_eq!(watch_news(refused), ended, "it has no number");
    }
}
