//! The requests to etcd, and how their answers are read.
//!
//! Each look is one transaction, so what it shows was true at one revision (clause C3).

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};

use crate::error::{Failed, unexpected};

/// The places of a queue, the newest first, up to `newest`.
fn latest(queue: &str, newest: Option<i64>) -> TxnOp {
    let mut options = GetOptions::new()
        .with_prefix()
        .with_keys_only()
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(2);
    if let Some(newest) = newest {
        options = options.with_max_create_revision(newest);
    }
    TxnOp::get(queue, Some(options))
}

fn first(queue: &str) -> TxnOp {
    let options = GetOptions::new()
        .with_prefix()
        .with_keys_only()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    TxnOp::get(queue, Some(options))
}

/// Takes a place if there is none yet, and shows it with the one before it. Else shows what is there.
pub(crate) fn place(queue: &str, key: &str, value: &str, lease: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, 0)])
        .and_then([
            TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))),
            latest(queue, None),
        ])
        .or_else([TxnOp::get(key, None), first(queue)])
}

/// Takes a place only if the queue is empty. Else shows the own place, if there is one, and the first.
pub(crate) fn place_if_empty(queue: &str, key: &str, value: &str, lease: i64) -> Txn {
    Txn::new()
        // On a range this holds only if there is no key in it at all.
        .when([Compare::create_revision(queue, CompareOp::Equal, 0).with_prefix()])
        .and_then([TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))), first(queue)])
        .or_else([TxnOp::get(key, None), first(queue)])
}

/// Shows the own place that was taken at revision `rev`, if it still is, and the one before it.
pub(crate) fn look(queue: &str, key: &str, value: Option<&[u8]>, rev: i64) -> Txn {
    Txn::new()
        .when(mine(key, value, rev))
        .and_then([latest(queue, Some(rev))])
        .or_else([TxnOp::get(key, None)])
}

/// Gives up the own place, and touches no other.
pub(crate) fn release(key: &str, value: Option<&[u8]>, rev: i64) -> Txn {
    Txn::new().when(mine(key, value, rev)).and_then([TxnOp::delete(key, None)])
}

/// Takes away whatever stands at `key` since `rev`.
pub(crate) fn force(key: &[u8], rev: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, rev)])
        .and_then([TxnOp::delete(key, None)])
}

/// A release as it must not be: of whatever stands at the name of the key.
pub(crate) fn release_by_name(key: &str) -> Txn {
    Txn::new().and_then([TxnOp::delete(key, None)])
}

/// No two keys are created at one revision, so the value matters only where somebody has written over
/// it. Whoever has taken a lock over from another process knows it after the first look.
fn mine(key: &str, value: Option<&[u8]>, rev: i64) -> Vec<Compare> {
    let mut mine = vec![Compare::create_revision(key, CompareOp::Equal, rev)];
    mine.extend(value.map(|value| Compare::value(key, CompareOp::Equal, value)));
    mine
}

/// What a transaction has shown.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) succeeded: bool,
    /// The revision of the store at which all of it was true.
    pub(crate) revision: i64,
    reads: Vec<GetResponse>,
}

impl Shown {
    pub(crate) fn read(answer: &TxnResponse) -> Result<Self, Failed> {
        let revision = answer.header().map_or(0, |header| header.revision());
        if revision <= 0 {
            return Err(unexpected("a transaction without a revision"));
        }
        let reads = answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        Ok(Self { succeeded: answer.succeeded(), revision, reads: reads.collect() })
    }

    /// The keys of the `at`-th read of the transaction.
    pub(crate) fn found(&self, at: usize) -> Result<&[KeyValue], Failed> {
        let read = self.reads.get(at);
        read.map(GetResponse::kvs).ok_or_else(|| unexpected("a transaction without its reads"))
    }
}
