//! The exchange with a member, with a mistake in a request or a reply if it is wanted.

#[path = "../wire/exchange.rs"]
mod right;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use lock_core::testing::Mutant;
use lock_core::{Clock, ClockInstant, SystemClock};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;

use crate::error::{EtcdFailure, FailureClass};
use crate::wire::connection::MemberConnection;
use crate::wire::messages::{
    EtcdReply, EtcdRequest, KeepAliveAnswer, Transaction, TxnKind, WatchNews,
};
use crate::wire::protobuf::{
    Call, Compare, KeyValue, RangeRequest, RequestOp, ResponseHeader, SortOrder, SortTarget,
    TxnOperation, WatchRequest, WatchResponse,
};

pub(crate) async fn send(
    connection: &MemberConnection,
    request: &EtcdRequest,
) -> Result<EtcdReply, EtcdFailure> {
    if let EtcdRequest::Txn(Transaction { kind: TxnKind::ReadEntries, then, .. }) = request
        && Mutant::is_wanted("looks_at_a_copy")
    {
        return read_copies(connection, then).await;
    }
    let request = sent(request.clone());
    replied(&request, right::send(connection, &request).await)
}

/// A read that a member answers from its own copy.
#[derive(Clone, PartialEq, Eq, Message)]
struct CopyRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(enumeration = "SortOrder", tag = "5")]
    sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    sort_target: i32,
    #[prost(bool, tag = "7")]
    serializable: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct CopyReply {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

impl Call for CopyRequest {
    const METHOD: &'static str = "/etcdserverpb.KV/Range";
    type Reply = CopyReply;
}

async fn read_copies(
    connection: &MemberConnection,
    reads: &[RequestOp],
) -> Result<EtcdReply, EtcdFailure> {
    let mut reply = EtcdReply::default();
    for read in reads {
        let Some(TxnOperation::Range(range)) = read.operation.clone() else { continue };
        let RangeRequest { key, range_end, sort_order, sort_target, .. } = range;
        let serializable = true;
        let read = CopyRequest { key, range_end, sort_order, sort_target, serializable };
        let answer = connection.call(read).await?;
        reply.revision = answer.header.map_or(0, |header| header.revision);
        reply.reads.push(answer.kvs);
    }
    Ok(reply)
}

/// What has passed so far.
#[derive(Default)]
struct Past {
    /// By requested ttl.
    granted: HashMap<i64, Vec<EtcdReply>>,
    is_lease_gone: bool,
    /// The keys of entries that wait, or will.
    entered: Vec<Vec<u8>>,
}

fn past() -> MutexGuard<'static, Past> {
    static PAST: LazyLock<Mutex<Past>> = LazyLock::new(Mutex::default);
    PAST.lock()
}

/// A request, before it is sent.
fn sent(request: EtcdRequest) -> EtcdRequest {
    match request {
        EtcdRequest::Txn(statement) => EtcdRequest::Txn(stated(statement)),
        // It is not sent, and counts as answered.
        EtcdRequest::Revoke { .. } if Mutant::is_wanted("keeps_unknown_leases") => {
            EtcdRequest::Status
        }
        EtcdRequest::TimeToLive { lease } if Mutant::is_wanted("revokes_what_it_was_told_of") => {
            EtcdRequest::Revoke { lease }
        }
        request => request,
    }
}

fn stated(mut statement: Transaction) -> Transaction {
    let Transaction { kind, when, then, .. } = &mut statement;
    match kind {
        TxnKind::Enter => {
            past().entered.push(when[0].key.clone());
            if Mutant::is_wanted("counts_from_any_base") {
                when.truncate(1);
            }
        }
        TxnKind::EnterIfEmpty if Mutant::is_wanted("try_leaves_a_place") => {
            when[0] = Compare::create_revision(written_by(then), 0);
        }
        TxnKind::EnterIfEmpty if Mutant::is_wanted("counts_from_any_base") => when.truncate(1),
        TxnKind::Release if Mutant::is_wanted("release_by_name") => when.clear(),
        TxnKind::Release if Mutant::is_wanted("release_keeps_the_key") => then.clear(),
        TxnKind::LookIfNotTold if Mutant::is_wanted("believes_in_whom_it_stood_behind") => {
            when.truncate(2)
        }
        TxnKind::LookIfNotBehind if Mutant::is_wanted("stays_behind_whom_it_saw") => {
            when.truncate(2)
        }
        TxnKind::Confirm if Mutant::is_wanted("confirms_from_a_copy") => then.clear(),
        TxnKind::Force if Mutant::is_wanted("force_needs_no_owner") => when.clear(),
        TxnKind::ReadEntries if Mutant::is_wanted("looks_at_the_last_place") => {
            then.iter_mut().for_each(sort_newest_first)
        }
        _ => {}
    }
    statement
}

fn sort_newest_first(read: &mut RequestOp) {
    if let Some(TxnOperation::Range(range)) = &mut read.operation {
        range.sort_order = SortOrder::Descend.into();
    }
}

/// A reply, before it is trusted.
fn replied(
    request: &EtcdRequest,
    reply: Result<EtcdReply, EtcdFailure>,
) -> Result<EtcdReply, EtcdFailure> {
    match (request, reply) {
        (EtcdRequest::Txn(statement), Ok(reply)) => Ok(shown(statement, reply)),
        (EtcdRequest::Grant { seconds }, Ok(reply)) => Ok(granted(*seconds, reply)),
        (EtcdRequest::Txn(statement), Err(_))
            if statement.kind == TxnKind::Confirm && Mutant::is_wanted("believes_in_the_lease") =>
        {
            Ok(EtcdReply { succeeded: true, ..EtcdReply::default() })
        }
        (_, Err(failed))
            if failed.why == FailureClass::Learner && Mutant::is_wanted("stays_with_a_learner") =>
        {
            Err(EtcdFailure { why: FailureClass::Refused, ..failed })
        }
        (_, Err(failed)) => {
            past().is_lease_gone |= failed.why == FailureClass::LeaseGone;
            Err(failed)
        }
        (_, reply) => reply,
    }
}

fn shown(statement: &Transaction, mut reply: EtcdReply) -> EtcdReply {
    let hides_others = match statement.kind {
        TxnKind::Enter => reply.succeeded && Mutant::is_wanted("ignores_the_queue"),
        TxnKind::Look | TxnKind::LookIfNotTold | TxnKind::LookIfNotBehind => {
            Mutant::is_wanted("ignores_the_queue") || Mutant::is_wanted("no_look_after_waiting")
        }
        _ => false,
    };
    for read in &mut reply.reads {
        if hides_others {
            read.retain(|found| found.key == statement.when[0].key);
        }
        if Mutant::is_wanted("sees_nested_names") {
            read.iter_mut().for_each(flatten);
        }
    }
    match statement.kind {
        TxnKind::Find if Mutant::is_wanted("checks_what_it_has_heard_of") => reply.reads[0].clear(),
        TxnKind::Prove if Mutant::is_wanted("takes_a_place_for_a_hold") => {
            reply.reads[1] = reply.reads[0].clone()
        }
        _ => {}
    }
    reply
}

/// Turns an entry of `a/b` into one of `a`.
fn flatten(found: &mut KeyValue) {
    let slashes = found.key.iter_mut().filter(|byte| **byte == b'/').skip(1);
    slashes.for_each(|slash| *slash = b'-');
}

fn granted(seconds: i64, mut reply: EtcdReply) -> EtcdReply {
    let mut past = past();
    let is_lease_gone = past.is_lease_gone;
    let before = past.granted.entry(seconds).or_default();
    if Mutant::is_wanted("shares_a_lease")
        && let Some(first) = before.first()
    {
        return first.clone();
    }
    if Mutant::is_wanted("keeps_its_pool")
        && is_lease_gone
        && let Some(last) = before.pop()
    {
        return last;
    }
    if Mutant::is_wanted("believes_in_twice_the_ttl") {
        reply.ttl = reply.ttl.map(|ttl| ttl * 2);
    }
    before.push(reply.clone());
    reply
}

/// The key that a transaction makes.
fn written_by(operations: &[RequestOp]) -> Vec<u8> {
    match operations.first().and_then(|operation| operation.operation.as_ref()) {
        Some(TxnOperation::Put(put)) => put.key.clone(),
        _ => Vec::new(),
    }
}

pub(crate) fn keep_alive_answer(sent: ClockInstant, ttl: i64) -> KeepAliveAnswer {
    let mut answer = right::keep_alive_answer(sent, ttl);
    if Mutant::is_wanted("swallows_ttl_0") {
        answer.ttl = answer.ttl.or(Some(Duration::from_secs(60)));
    }
    if Mutant::is_wanted("believes_in_twice_the_ttl") {
        answer.ttl = answer.ttl.map(|ttl| ttl * 2);
    }
    if Mutant::is_wanted("credits_an_answer_to_a_later_request") {
        answer.sent = SystemClock::default().now();
    }
    answer
}

pub(crate) fn watch_request(key: &[u8], from: i64) -> WatchRequest {
    let is_own = past().entered.iter().any(|entered| entered == key);
    if is_own && Mutant::is_wanted("own_place_unwatched") {
        return right::watch_request(b"nobody", from);
    }
    right::watch_request(key, from)
}

pub(crate) fn watch_news(answer: WatchResponse) -> WatchNews {
    let nothing = |id| WatchNews::Progress { id, up_to: 0, change: None };
    match right::watch_news(answer) {
        WatchNews::Ended { id, is_compacted: true, .. }
            if Mutant::is_wanted("resumes_after_compaction") =>
        {
            nothing(id)
        }
        WatchNews::Ended { id, .. } if id < 0 && Mutant::is_wanted("ignores_a_refused_watch") => {
            nothing(id)
        }
        WatchNews::Stands { id, revision } if Mutant::is_wanted("skips_what_was_not_told") => {
            WatchNews::Progress { id, up_to: revision, change: None }
        }
        news => news,
    }
}

pub(crate) fn end_of_the_news() -> WatchNews {
    if Mutant::is_wanted("dies_with_its_runtime") {
        return WatchNews::Progress { id: -1, up_to: 0, change: None };
    }
    right::end_of_the_news()
}
