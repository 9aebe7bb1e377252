//! The transactions used by claims and by inspection.
//!
//! Each read is one transaction, so its results were all true at one revision (clause C3).

use crate::queue::entry::QueueEntry;
use crate::queue::entry::after;
use crate::wire::Era;
use crate::wire::messages::{Transaction, TxnKind};
use crate::wire::protobuf::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget,
    TxnOperation,
};

/// The base for the fence of the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseStep {
    /// The base the store must still have; 0 means none.
    pub(crate) found: i64,
    /// The base it has afterwards.
    pub(crate) base: i64,
    /// When that was known.
    pub(crate) era: Era,
}

/// An entry to be created.
#[derive(Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) queue: &'a str,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: i64,
    /// The key of the base of its fence, and the expected value.
    pub(crate) base: Option<(&'a str, BaseStep)>,
}

impl NewEntry<'_> {
    /// Creates the entry if there is none yet, and returns it with the one in front of it. Otherwise
    /// returns what exists: our entry, the first one, and the base.
    pub(crate) fn enter(&self) -> Transaction {
        self.statement(TxnKind::Enter, absent(&self.key), latest(self.queue, None))
    }

    /// Creates the entry only if the queue is empty. Otherwise returns the same.
    pub(crate) fn enter_if_empty(&self) -> Transaction {
        // On a range, this holds only if it contains no key at all.
        let mut empty = absent(self.queue);
        empty.range_end = after(self.queue.as_bytes());
        self.statement(TxnKind::EnterIfEmpty, empty, first(self.queue))
    }

    fn statement(&self, kind: TxnKind, free: Compare, show: RequestOp) -> Transaction {
        let mut conditions = vec![free];
        let mut writes = vec![put(&self.key, &self.value, self.lease)];
        let mut reads = vec![get(&self.key), first(self.queue)];
        if let Some((key, step)) = &self.base {
            conditions.push(match step.found {
                0 => Compare::version(*key, 0),
                found => Compare::value(*key, found.to_string()),
            });
            if step.base != step.found {
                writes.push(put(key, &step.base.to_string(), 0));
            }
            reads.push(get(key));
        }
        writes.push(show);
        Transaction::new(kind).when(conditions).then(writes).otherwise(reads)
    }
}

/// Returns our entry, if it still exists, and the one in front of it.
pub(crate) fn look(queue: &str, entry: &QueueEntry) -> Transaction {
    Transaction::new(TxnKind::Look).when(mine(entry)).then([latest(queue, Some(entry.rev))])
}

/// Whether our entry still exists, bound to `lease`.
///
/// It reads something: a member answers a transaction that only compares from its own copy, which
/// may be that of a member that is cut off.
pub(crate) fn confirm(entry: &QueueEntry, lease: i64) -> Transaction {
    let mut conditions = mine(entry);
    conditions.push(Compare::lease(&*entry.key, lease));
    let read =
        RangeRequest { key: entry.key.clone().into(), keys_only: true, ..Default::default() };
    Transaction::new(TxnKind::Confirm).when(conditions).then([read_of(read)])
}

/// Returns the value at `key`, where an entry of ours may be.
pub(crate) fn find(key: &str) -> Transaction {
    Transaction::new(TxnKind::Find).then([get(key)])
}

/// Returns the value at `key`, and the first entry of its queue.
pub(crate) fn prove(queue: &str, key: &str) -> Transaction {
    Transaction::new(TxnKind::Prove).then([get(key), first(queue)])
}

/// Deletes our entry, and touches no other.
pub(crate) fn release(entry: &QueueEntry) -> Transaction {
    let key = entry.key.as_bytes();
    Transaction::new(TxnKind::Release).when(mine(entry)).then([delete(key)])
}

/// The same, and returns the first entry of its queue after that, with its value.
pub(crate) fn release_and_show(queue: &str, entry: &QueueEntry) -> Transaction {
    let mut release = release(entry);
    let first = RangeRequest { limit: 1, ..all(queue, SortOrder::Ascend) };
    release.then.push(read_of(first));
    release
}

/// Deletes the key `key` that was created at `rev`.
pub(crate) fn force(key: &[u8], rev: i64) -> Transaction {
    Transaction::new(TxnKind::Force).when([Compare::create_revision(key, rev)]).then([delete(key)])
}

/// Returns the value at `key`, which is not a lock's.
pub(crate) fn read(key: &str) -> Transaction {
    Transaction::new(TxnKind::Read).then([get(key)])
}

/// Returns all keys that begin with `queue`, oldest first.
pub(crate) fn read_queue(queue: &str) -> Transaction {
    Transaction::new(TxnKind::Read).then([read_of(all(queue, SortOrder::Ascend))])
}

/// Returns only the keys up to `newest`, newest first.
pub(crate) fn read_places(queue: &str, newest: i64) -> Transaction {
    Transaction::new(TxnKind::Read).then([read_of(newest_first(queue, Some(newest)))])
}

/// Returns up to `limit` keys from `start` up to but excluding `end`, without their values, as of
/// `revision`, or of now if that is 0.
pub(crate) fn read_range(start: &[u8], end: &[u8], revision: i64, limit: usize) -> Transaction {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let (key, range_end, keys_only) = (start.to_vec(), end.to_vec(), true);
    let range = RangeRequest { key, range_end, revision, limit, keys_only, ..Default::default() };
    Transaction::new(TxnKind::Read).then([read_of(range)])
}

/// Returns these keys with their values, as of `revision`.
pub(crate) fn read_all<'a>(keys: impl Iterator<Item = &'a [u8]>, revision: i64) -> Transaction {
    let get =
        |key: &[u8]| read_of(RangeRequest { key: key.into(), revision, ..Default::default() });
    Transaction::new(TxnKind::Read).then(keys.map(get).collect::<Vec<_>>())
}

fn absent(key: &str) -> Compare {
    Compare::create_revision(key, 0)
}

/// No two keys are created at one revision, so the value matters only if another client has
/// overwritten it.
fn mine(entry: &QueueEntry) -> Vec<Compare> {
    vec![
        Compare::create_revision(&*entry.key, entry.rev),
        Compare::value(&*entry.key, &*entry.value),
    ]
}

/// The last two keys of a queue up to `newest`, newest first.
fn latest(queue: &str, newest: Option<i64>) -> RequestOp {
    read_of(RangeRequest { limit: 2, ..newest_first(queue, newest) })
}

fn newest_first(queue: &str, newest: Option<i64>) -> RangeRequest {
    // 0 is no limit.
    let max_create_revision = newest.unwrap_or(0);
    RangeRequest { keys_only: true, max_create_revision, ..all(queue, SortOrder::Descend) }
}

fn first(queue: &str) -> RequestOp {
    read_of(RangeRequest { keys_only: true, limit: 1, ..all(queue, SortOrder::Ascend) })
}

/// All keys that begin with `queue`, by when they were created.
fn all(queue: &str, order: SortOrder) -> RangeRequest {
    RangeRequest {
        key: queue.into(),
        range_end: after(queue.as_bytes()),
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

fn get(key: &str) -> RequestOp {
    read_of(RangeRequest { key: key.into(), ..RangeRequest::default() })
}

fn read_of(range: RangeRequest) -> RequestOp {
    TxnOperation::Range(range).into()
}

/// A lease of 0 is none.
fn put(key: &str, value: &str, lease: i64) -> RequestOp {
    TxnOperation::Put(PutRequest { key: key.into(), value: value.into(), lease }).into()
}

fn delete(key: &[u8]) -> RequestOp {
    TxnOperation::DeleteRange(DeleteRangeRequest { key: key.to_vec() }).into()
}
