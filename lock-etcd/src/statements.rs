//! The requests to etcd, and how their answers are read.
//!
//! Each look is one transaction, so what it shows was true at one revision (clause C3).

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};

use crate::base::Step;
use crate::error::{Failed, unexpected};
use crate::mutants;

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

/// A place that is to be taken.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) queue: &'a str,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: i64,
    /// The key of the base from which its fence counts, and what stands there.
    pub(crate) base: Option<(&'a str, Step)>,
}

impl Wanted<'_> {
    /// Takes the place if there is none yet, and shows it with the one before it. Else shows what is
    /// there: the own place, the first one, and the base.
    pub(crate) fn place(&self) -> Txn {
        let free = Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0);
        self.txn(free, latest(self.queue, None))
    }

    /// Takes the place only if the queue is empty. Else shows the same.
    pub(crate) fn place_if_empty(&self) -> Txn {
        // On a range this holds only if there is no key in it at all.
        let empty = Compare::create_revision(self.queue, CompareOp::Equal, 0).with_prefix();
        self.txn(empty, first(self.queue))
    }

    fn txn(&self, free: Compare, show: TxnOp) -> Txn {
        let options = PutOptions::new().with_lease(self.lease);
        let mut conditions = vec![free];
        let mut writes = vec![TxnOp::put(self.key.as_str(), self.value.as_str(), Some(options))];
        let mut reads = vec![TxnOp::get(self.key.as_str(), None), first(self.queue)];
        if let Some((key, step)) = &self.base {
            if !mutants::on("counts_from_any_base") {
                conditions.push(if step.found == 0 {
                    Compare::version(*key, CompareOp::Equal, 0)
                } else {
                    Compare::value(*key, CompareOp::Equal, step.found.to_string())
                });
            }
            if step.base != step.found {
                writes.push(TxnOp::put(*key, step.base.to_string(), None));
            }
            reads.push(TxnOp::get(*key, None));
        }
        writes.push(show);
        Txn::new().when(conditions).and_then(writes).or_else(reads)
    }
}

/// Shows the own place that was taken at revision `rev`, if it still is, and the one before it.
pub(crate) fn look(queue: &str, key: &str, value: &[u8], rev: i64) -> Txn {
    Txn::new()
        .when(mine(key, value, rev))
        .and_then([latest(queue, Some(rev))])
        .or_else([TxnOp::get(key, None)])
}

/// Shows a place and the first one of its queue.
pub(crate) fn show(queue: &str, key: &str) -> Txn {
    Txn::new().and_then([TxnOp::get(key, None), first(queue)])
}

/// Gives up the own place, and touches no other.
pub(crate) fn release(key: &str, value: &[u8], rev: i64) -> Txn {
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
/// it.
fn mine(key: &str, value: &[u8], rev: i64) -> [Compare; 2] {
    [
        Compare::create_revision(key, CompareOp::Equal, rev),
        Compare::value(key, CompareOp::Equal, value),
    ]
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
