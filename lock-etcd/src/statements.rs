//! The transactions used by claims and by inspection.
//!
//! Each read is one transaction, so its results were all true at one revision (clause C3).

use crate::entry::Entry;
use crate::names::after;
use crate::proto::{
    Compare, DeleteRangeRequest, Operation, PutRequest, RangeRequest, RequestOp, SortOrder,
    SortTarget, TxnRequest,
};

/// The purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Enter,
    EnterIfEmpty,
    Look,
    Confirm,
    Find,
    Prove,
    Release,
    Force,
    Read,
}

/// One transaction.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) kind: Kind,
    /// The key it concerns.
    #[cfg_attr(not(distlock_mutants), expect(dead_code, reason = "for the tests of the tests"))]
    pub(crate) key: Vec<u8>,
    pub(crate) when: Vec<Compare>,
    pub(crate) then: Vec<RequestOp>,
    otherwise: Vec<RequestOp>,
}

impl Statement {
    fn new(kind: Kind, key: impl Into<Vec<u8>>) -> Self {
        let (when, then, otherwise) = Default::default();
        Self { kind, key: key.into(), when, then, otherwise }
    }

    fn when(self, when: impl Into<Vec<Compare>>) -> Self {
        Self { when: when.into(), ..self }
    }

    fn then(self, then: impl Into<Vec<RequestOp>>) -> Self {
        Self { then: then.into(), ..self }
    }

    fn otherwise(self, otherwise: impl Into<Vec<RequestOp>>) -> Self {
        Self { otherwise: otherwise.into(), ..self }
    }

    pub(crate) fn txn(&self) -> TxnRequest {
        let Self { when, then, otherwise, .. } = self.clone();
        TxnRequest { compare: when, success: then, failure: otherwise }
    }
}

/// The base for the fence of the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The base the store must still have; 0 means none.
    pub(crate) found: i64,
    /// The base it has afterwards.
    pub(crate) base: i64,
    /// The fence must be above this.
    pub(crate) highest: i64,
}

/// An entry to be created.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) queue: &'a str,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: i64,
    /// The key of the base of its fence, and the expected value.
    pub(crate) base: Option<(&'a str, Step)>,
}

impl Wanted<'_> {
    /// Creates the entry if there is none yet, and returns it with the one before it. Otherwise
    /// returns what exists: our entry, the first one, and the base.
    pub(crate) fn enter(&self) -> Statement {
        self.statement(Kind::Enter, absent(&self.key), latest(self.queue, None))
    }

    /// Creates the entry only if the queue is empty. Otherwise returns the same.
    pub(crate) fn enter_if_empty(&self) -> Statement {
        // On a range, this holds only if it contains no key at all.
        let mut empty = absent(self.queue);
        empty.range_end = after(self.queue.as_bytes());
        self.statement(Kind::EnterIfEmpty, empty, first(self.queue))
    }

    fn statement(&self, kind: Kind, free: Compare, show: RequestOp) -> Statement {
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
        Statement::new(kind, &*self.key).when(conditions).then(writes).otherwise(reads)
    }
}

/// Returns our entry, if it still exists, and the one before it.
pub(crate) fn look(queue: &str, entry: &Entry) -> Statement {
    Statement::new(Kind::Look, &*entry.key).when(mine(entry)).then([latest(queue, Some(entry.rev))])
}

/// Whether our entry still exists, bound to `lease`.
pub(crate) fn confirm(entry: &Entry, lease: i64) -> Statement {
    let mut conditions = mine(entry);
    conditions.push(Compare::lease(&*entry.key, lease));
    Statement::new(Kind::Confirm, &*entry.key).when(conditions)
}

/// Returns the value at `key`, where an entry of ours may be.
pub(crate) fn find(key: &str) -> Statement {
    Statement::new(Kind::Find, key).then([get(key)])
}

/// Returns the value at `key`, and the first entry of its queue.
pub(crate) fn prove(queue: &str, key: &str) -> Statement {
    Statement::new(Kind::Prove, key).then([get(key), first(queue)])
}

/// Deletes our entry, and touches no other.
pub(crate) fn release(entry: &Entry) -> Statement {
    let key = entry.key.as_bytes();
    Statement::new(Kind::Release, key).when(mine(entry)).then([delete(key)])
}

/// The same, and returns the first entry of its queue after that, with its value.
pub(crate) fn release_and_show(queue: &str, entry: &Entry) -> Statement {
    let mut release = release(entry);
    let first = RangeRequest { limit: 1, ..all(queue, SortOrder::Ascend) };
    release.then.push(read_of(first));
    release
}

/// Deletes the key `key` that was created at `rev`.
pub(crate) fn force(key: &[u8], rev: i64) -> Statement {
    Statement::new(Kind::Force, key).when([Compare::create_revision(key, rev)]).then([delete(key)])
}

/// Returns the value at `key`, which is not a lock's.
pub(crate) fn read(key: &str) -> Statement {
    Statement::new(Kind::Read, key).then([get(key)])
}

/// Returns all keys that begin with `queue`, oldest first.
pub(crate) fn read_queue(queue: &str) -> Statement {
    Statement::new(Kind::Read, queue).then([read_of(all(queue, SortOrder::Ascend))])
}

/// Returns only the keys up to `newest`, newest first.
pub(crate) fn read_places(queue: &str, newest: i64) -> Statement {
    Statement::new(Kind::Read, queue).then([read_of(newest_first(queue, Some(newest)))])
}

/// Returns up to `limit` keys from `start` up to but excluding `end`, as of `revision`, or of now
/// if that is 0.
pub(crate) fn read_range(start: &[u8], end: &[u8], revision: i64, limit: usize) -> Statement {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let (key, range_end) = (start.to_vec(), end.to_vec());
    let range = RangeRequest { key, range_end, revision, limit, ..RangeRequest::default() };
    Statement::new(Kind::Read, start).then([read_of(range)])
}

fn absent(key: &str) -> Compare {
    Compare::create_revision(key, 0)
}

/// No two keys are created at one revision, so the value matters only if another client has
/// overwritten it.
fn mine(entry: &Entry) -> Vec<Compare> {
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
    Operation::Range(range).into()
}

/// A lease of 0 is none.
fn put(key: &str, value: &str, lease: i64) -> RequestOp {
    Operation::Put(PutRequest { key: key.into(), value: value.into(), lease }).into()
}

fn delete(key: &[u8]) -> RequestOp {
    Operation::DeleteRange(DeleteRangeRequest { key: key.to_vec() }).into()
}
