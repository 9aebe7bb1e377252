//! The transactions used by claims and by inspection.
//!
//! Each read is one transaction, so its results were all true at one revision (clause C3).

use crate::queue::entry::{EntryInFront, QueueEntry, QueueKeys, after};
use crate::wire::Era;
use crate::wire::messages::{Transaction, TxnKind};
use crate::wire::protobuf::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget,
    TxnOperation,
};

/// How many keys or queues are read at a time. A server takes no more than 128 operations in one transaction.
pub(crate) const MOST_READS: usize = 100;

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
        self.statement(TxnKind::Enter, absent(&self.key), Some(latest(self.queue, None)))
    }

    /// The same, but returns nothing of the entry that it creates.
    pub(crate) fn enter_unread(&self) -> Transaction {
        self.statement(TxnKind::Enter, absent(&self.key), None)
    }

    /// Creates the entry only if the queue is empty. Otherwise returns the same.
    pub(crate) fn enter_if_empty(&self) -> Transaction {
        // On a range, this holds only if it contains no key at all.
        let mut empty = absent(self.queue);
        empty.range_end = after(self.queue.as_bytes());
        self.statement(TxnKind::EnterIfEmpty, empty, Some(first(self.queue)))
    }

    fn statement(&self, kind: TxnKind, free: Compare, show: Option<RequestOp>) -> Transaction {
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
        writes.extend(show);
        Transaction::new(kind).when(conditions).then(writes).otherwise(reads)
    }
}

/// Returns our entry, if it still exists, and the one in front of it.
pub(crate) fn look(queue: &str, entry: &QueueEntry) -> Transaction {
    Transaction::new(TxnKind::Look).when(mine(entry)).then([latest(queue, Some(entry.rev))])
}

/// Whether our entry still exists, written for the last time at `told`. Otherwise returns the same as a look.
pub(crate) fn look_if_not_told(queue: &str, entry: &QueueEntry, told: i64) -> Transaction {
    look_if_not(TxnKind::LookIfNotTold, queue, entry, Compare::mod_revision(&*entry.key, told))
}

/// Whether our entry and the one `in_front` still exist. Otherwise returns the same as a look.
pub(crate) fn look_if_not_behind(
    queue: &str,
    entry: &QueueEntry,
    in_front: &EntryInFront,
) -> Transaction {
    let is_there = Compare::create_revision(&*in_front.key, in_front.rev);
    look_if_not(TxnKind::LookIfNotBehind, queue, entry, is_there)
}

/// It reads something, as [`confirm`] does.
fn look_if_not(kind: TxnKind, queue: &str, entry: &QueueEntry, known: Compare) -> Transaction {
    let mut conditions = mine(entry);
    conditions.push(known);
    Transaction::new(kind)
        .when(conditions)
        .then([key_of(entry)])
        .otherwise([get(&entry.key), latest(queue, Some(entry.rev))])
}

/// Whether our entry still exists, bound to `lease`.
///
/// It reads something: a member answers a transaction that only compares from its own copy, which
/// may be that of a member that is cut off.
pub(crate) fn confirm(entry: &QueueEntry, lease: i64) -> Transaction {
    let mut conditions = mine(entry);
    conditions.push(Compare::lease(&*entry.key, lease));
    Transaction::new(TxnKind::Confirm).when(conditions).then([key_of(entry)])
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

/// The same, and returns what is at the key `next`.
pub(crate) fn release_and_show(entry: &QueueEntry, next: &str) -> Transaction {
    let mut release = release(entry);
    release.then.push(get(next));
    release
}

/// Deletes our entry, and writes that of `next` as it is. Does nothing if either does not exist.
pub(crate) fn release_and_tell(entry: &QueueEntry, next: &EntryInFront) -> Transaction {
    let key = next.key.clone();
    let mut release = release(entry);
    release.when.push(Compare::create_revision(&*key, next.rev));
    let (ignore_value, ignore_lease) = (true, true);
    let write = PutRequest { key, ignore_value, ignore_lease, ..PutRequest::default() };
    release.then.push(TxnOperation::Put(write).into());
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

/// Returns up to `limit` keys of each of these queues with their values, oldest first, all of them if that is 0; and
/// then what is at the key `base`.
pub(crate) fn read_entries(queues: &[&QueueKeys], limit: i64, base: Option<&str>) -> Transaction {
    let entries = |queue: &&QueueKeys| {
        read_of(RangeRequest { limit, ..all(queue.start(), SortOrder::Ascend) })
    };
    let reads: Vec<_> = queues.iter().map(entries).chain(base.map(get)).collect();
    Transaction::new(TxnKind::ReadEntries).then(reads)
}

/// Returns only the keys, in no particular order.
pub(crate) fn list_queue(queue: &str) -> Transaction {
    let range = RangeRequest {
        key: queue.into(),
        range_end: after(queue.as_bytes()),
        keys_only: true,
        ..RangeRequest::default()
    };
    Transaction::new(TxnKind::Read).then([read_of(range)])
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

fn key_of(entry: &QueueEntry) -> RequestOp {
    let key = entry.key.clone().into();
    read_of(RangeRequest { key, keys_only: true, ..RangeRequest::default() })
}

fn read_of(range: RangeRequest) -> RequestOp {
    TxnOperation::Range(range).into()
}

/// A lease of 0 is none.
fn put(key: &str, value: &str, lease: i64) -> RequestOp {
    let (key, value) = (key.into(), value.into());
    TxnOperation::Put(PutRequest { key, value, lease, ..PutRequest::default() }).into()
}

fn delete(key: &[u8]) -> RequestOp {
    TxnOperation::DeleteRange(DeleteRangeRequest { key: key.to_vec() }).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::FencingToken;

    /// A queue is a range of keys, which the server reads as a whole.
    #[test]
    fn a_hand_over_in_a_long_queue_reads_no_queue() {
        let fence = FencingToken::answered(7).unwrap();
        let own = QueueEntry { key: "a/1".to_owned(), rev: 7, value: b"x".to_vec(), fence };
        let next = EntryInFront { key: b"a/2".to_vec(), rev: 9 };
        let (key, value) = (own.key.clone(), "x".to_owned());
        let new = NewEntry { queue: "a/", key, value, lease: 1, base: None };
        let asked = [
            new.enter_unread(),
            release_and_show(&own, "a/2"),
            release_and_tell(&own, &next),
            look_if_not_told("a/", &own, 11),
            look_if_not_behind("a/", &own, &next),
        ];
        for asked in asked {
            assert!(asked.when.iter().all(|compare| compare.range_end.is_empty()));
            for operation in &asked.then {
                if let Some(TxnOperation::Range(range)) = &operation.operation {
                    assert!(range.range_end.is_empty(), "{asked:?}");
                }
            }
        }
    }
}
