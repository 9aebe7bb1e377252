//! The transactions by which claims and their administration work.
//!
//! Each look is one transaction, so what it shows was true at one revision (clause C3).

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};

use crate::entry::Entry;

/// What a transaction is for.
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
    #[cfg_attr(not(distlock_mutants), expect(dead_code, reason = "for the tests of the tests"))]
    pub(crate) kind: Kind,
    /// The key that it is about.
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

/// What the next entry counts its fence from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What the store must still have; 0 is none.
    pub(crate) found: i64,
    /// What it has afterwards.
    pub(crate) base: i64,
    /// What its fence must be above.
    pub(crate) highest: i64,
}

/// An entry that is to be made.
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
    /// Makes the entry if there is none yet, and shows it with the one before it. Else shows what is
    /// there: the own entry, the first one, and the base.
    pub(crate) fn enter(&self) -> Statement {
        self.statement(Kind::Enter, absent(&self.key), latest(self.queue, None))
    }

    /// Makes the entry only if the queue is empty. Else shows the same.
    pub(crate) fn enter_if_empty(&self) -> Statement {
        // On a range this holds only if there is no key in it at all.
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

/// Shows the own entry, if it still stands, and the one before it.
pub(crate) fn look(queue: &str, entry: &Entry) -> Statement {
    Statement::new(Kind::Look, &*entry.key).when(mine(entry)).then([latest(queue, Some(entry.rev))])
}

/// Whether the own entry still stands, bound to `lease`.
pub(crate) fn confirm(entry: &Entry, lease: i64) -> Statement {
    let mut conditions = mine(entry);
    conditions.push(Compare::lease(&*entry.key, CompareOp::Equal, lease));
    Statement::new(Kind::Confirm, &*entry.key).when(conditions)
}

/// Shows what stands at `key`, where an entry of ours may be.
pub(crate) fn find(key: &str) -> Statement {
    Statement::new(Kind::Find, key).then([TxnOp::get(key, None)])
}

/// Shows what stands at `key`, and the first entry of its queue.
pub(crate) fn prove(queue: &str, key: &str) -> Statement {
    Statement::new(Kind::Prove, key).then([TxnOp::get(key, None), first(queue)])
}

/// Gives up the own entry, and touches no other.
pub(crate) fn release(entry: &Entry) -> Statement {
    let delete = TxnOp::delete(&*entry.key, None);
    Statement::new(Kind::Release, &*entry.key).when(mine(entry)).then([delete])
}

/// Takes away whatever stands at `key` since `rev`.
pub(crate) fn force(key: &[u8], rev: i64) -> Statement {
    Statement::new(Kind::Force, key)
        .when([Compare::create_revision(key, CompareOp::Equal, rev)])
        .then([TxnOp::delete(key, None)])
}

/// Shows what stands at `key`, no lock's.
pub(crate) fn read(key: &str) -> Statement {
    Statement::new(Kind::Read, key).then([TxnOp::get(key, None)])
}

/// Shows all that begins with `queue`, the oldest first.
pub(crate) fn read_queue(queue: &str) -> Statement {
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
    Statement::new(Kind::Read, queue).then([TxnOp::get(queue, Some(options))])
}

/// Shows the keys up to `newest` alone, the newest first.
pub(crate) fn read_places(queue: &str, newest: i64) -> Statement {
    Statement::new(Kind::Read, queue).then([TxnOp::get(queue, Some(newest_first(Some(newest))))])
}

/// Shows `limit` keys from `start` on and before `end`, as they were at `revision`; now, if that is 0.
pub(crate) fn read_range(start: &[u8], end: &[u8], revision: i64, limit: usize) -> Statement {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let options = GetOptions::new().with_range(end).with_revision(revision).with_limit(limit);
    Statement::new(Kind::Read, start).then([TxnOp::get(start, Some(options))])
}

fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// The last two keys of a queue up to `newest`, the newest first.
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

/// No two keys are created at one revision, so the value matters only where somebody has written over
/// it.
fn mine(entry: &Entry) -> Vec<Compare> {
    vec![
        Compare::create_revision(&*entry.key, CompareOp::Equal, entry.rev),
        Compare::value(&*entry.key, CompareOp::Equal, &*entry.value),
    ]
}
