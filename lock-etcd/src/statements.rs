//! The transactions used by claims and by inspection.
//!
//! Each read is one transaction, so its results were all true at one revision (clause C3).

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};

use crate::entry::Entry;

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
    pub(crate) then: Vec<TxnOp>,
    otherwise: Vec<TxnOp>,
}

impl Statement {
    fn new(kind: Kind, key: impl Into<Vec<u8>>) -> Self {
        let (when, then, otherwise) = Default::default();
        Self { kind, key: key.into(), when, then, otherwise }
    }

    fn when(self, when: impl Into<Vec<Compare>>) -> Self {
        Self { when: when.into(), ..self }
    }

    fn then(self, then: impl Into<Vec<TxnOp>>) -> Self {
        Self { then: then.into(), ..self }
    }

    fn otherwise(self, otherwise: impl Into<Vec<TxnOp>>) -> Self {
        Self { otherwise: otherwise.into(), ..self }
    }

    pub(crate) fn txn(&self) -> Txn {
        let Self { when, then, otherwise, .. } = self.clone();
        Txn::new().when(when).and_then(then).or_else(otherwise)
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
        let empty = absent(self.queue).with_prefix();
        self.statement(Kind::EnterIfEmpty, empty, first(self.queue))
    }

    fn statement(&self, kind: Kind, free: Compare, show: TxnOp) -> Statement {
        let options = PutOptions::new().with_lease(self.lease);
        let mut conditions = vec![free];
        let mut writes = vec![TxnOp::put(self.key.as_str(), self.value.as_str(), Some(options))];
        let mut reads = vec![TxnOp::get(self.key.as_str(), None), first(self.queue)];
        if let Some((key, step)) = &self.base {
            conditions.push(match step.found {
                0 => Compare::version(*key, CompareOp::Equal, 0),
                found => Compare::value(*key, CompareOp::Equal, found.to_string()),
            });
            if step.base != step.found {
                writes.push(TxnOp::put(*key, step.base.to_string(), None));
            }
            reads.push(TxnOp::get(*key, None));
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
    conditions.push(Compare::lease(&*entry.key, CompareOp::Equal, lease));
    Statement::new(Kind::Confirm, &*entry.key).when(conditions)
}

/// Returns the value at `key`, where an entry of ours may be.
pub(crate) fn find(key: &str) -> Statement {
    Statement::new(Kind::Find, key).then([TxnOp::get(key, None)])
}

/// Returns the value at `key`, and the first entry of its queue.
pub(crate) fn prove(queue: &str, key: &str) -> Statement {
    Statement::new(Kind::Prove, key).then([TxnOp::get(key, None), first(queue)])
}

/// Deletes our entry, and touches no other.
pub(crate) fn release(entry: &Entry) -> Statement {
    let delete = TxnOp::delete(&*entry.key, None);
    Statement::new(Kind::Release, &*entry.key).when(mine(entry)).then([delete])
}

/// Deletes the key `key` that was created at `rev`.
pub(crate) fn force(key: &[u8], rev: i64) -> Statement {
    Statement::new(Kind::Force, key)
        .when([Compare::create_revision(key, CompareOp::Equal, rev)])
        .then([TxnOp::delete(key, None)])
}

/// Returns the value at `key`, which is not a lock's.
pub(crate) fn read(key: &str) -> Statement {
    Statement::new(Kind::Read, key).then([TxnOp::get(key, None)])
}

/// Returns all keys that begin with `queue`, oldest first.
pub(crate) fn read_queue(queue: &str) -> Statement {
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    Statement::new(Kind::Read, queue).then([TxnOp::get(queue, Some(options))])
}

/// Returns only the keys up to `newest`, newest first.
pub(crate) fn read_places(queue: &str, newest: i64) -> Statement {
    Statement::new(Kind::Read, queue).then([TxnOp::get(queue, Some(newest_first(Some(newest))))])
}

/// Returns up to `limit` keys from `start` up to but excluding `end`, as of `revision`, or of now
/// if that is 0.
pub(crate) fn read_range(start: &[u8], end: &[u8], revision: i64, limit: usize) -> Statement {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let options = GetOptions::new().with_range(end).with_revision(revision).with_limit(limit);
    Statement::new(Kind::Read, start).then([TxnOp::get(start, Some(options))])
}

fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// The last two keys of a queue up to `newest`, newest first.
fn latest(queue: &str, newest: Option<i64>) -> TxnOp {
    TxnOp::get(queue, Some(newest_first(newest).with_limit(2)))
}

fn newest_first(newest: Option<i64>) -> GetOptions {
    let options = GetOptions::new()
        .with_prefix()
        .with_keys_only()
        .with_sort(SortTarget::Create, SortOrder::Descend);
    match newest {
        Some(newest) => options.with_max_create_revision(newest),
        None => options,
    }
}

fn first(queue: &str) -> TxnOp {
    let options = GetOptions::new()
        .with_prefix()
        .with_keys_only()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(1);
    TxnOp::get(queue, Some(options))
}

/// No two keys are created at one revision, so the value matters only if another client has
/// overwritten it.
fn mine(entry: &Entry) -> Vec<Compare> {
    vec![
        Compare::create_revision(&*entry.key, CompareOp::Equal, entry.rev),
        Compare::value(&*entry.key, CompareOp::Equal, &*entry.value),
    ]
}
