//! A register that a lock guards: the far end of S7.

use std::collections::{BTreeMap, BTreeSet};

use lock_core::{FenceCheck, FencingToken};

/// When a register compares the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compares {
    /// On each access: no update is lost.
    Always,
    /// On writes only: a holder whose lock has passed on may still overwrite what the next one read.
    OnWrite,
    /// Not at all.
    Never,
}

/// A set of elements, which a client reads, adds to and writes back as a whole.
///
/// The set is kept as a chain: each write names the last write that its client has read, and what
/// was written since is lost with it. So a write costs the same however many elements there are.
#[derive(Debug)]
pub struct Register {
    compares: Compares,
    fences: FenceCheck,
    last: Option<u64>,
    /// Each acknowledged element, and the last one that its writer had read.
    written: BTreeMap<u64, Option<u64>>,
    fences_written: Vec<FencingToken>,
    reads: u64,
}

impl Register {
    /// An empty set.
    pub fn new(compares: Compares) -> Self {
        Self {
            compares,
            fences: FenceCheck::default(),
            last: None,
            written: BTreeMap::new(),
            fences_written: Vec::new(),
            reads: 0,
        }
    }

    /// What is to be given to [`write`](Self::write); `None` if the fence is refused.
    pub fn read(&mut self, fence: FencingToken) -> Option<Option<u64>> {
        if self.compares == Compares::Always && self.fences.admit(fence).is_err() {
            return None;
        }
        self.reads += 1;
        Some(self.last)
    }

    /// Writes back what was read, and `added`. Whether this was acknowledged.
    pub fn write(&mut self, fence: FencingToken, read: Option<u64>, added: u64) -> bool {
        if self.compares != Compares::Never && self.fences.admit(fence).is_err() {
            return false;
        }
        self.last = Some(added);
        self.written.insert(added, read);
        self.fences_written.push(fence);
        true
    }

    /// How many reads there have been.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// How many elements were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.written.len()
    }

    /// The elements that were acknowledged and are not in the set.
    pub fn lost(&self) -> Vec<u64> {
        let mut kept = BTreeSet::new();
        let mut at = self.last;
        while let Some(element) = at {
            // Two clients that wrote the same element could make the chain a ring.
            if !kept.insert(element) {
                break;
            }
            at = self.written.get(&element).copied().flatten();
        }
        self.written.keys().filter(|element| !kept.contains(element)).copied().collect()
    }

    /// The fences of the acknowledged writes, in their order.
    pub fn fences(&self) -> &[FencingToken] {
        &self.fences_written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    /// The interleaving that a check on write only lets pass.
    #[test]
    fn an_update_is_lost_unless_reads_are_checked() {
        for (compares, lost) in
            [(Compares::Always, 0), (Compares::OnWrite, 1), (Compares::Never, 1)]
        {
            let mut register = Register::new(compares);
            let first = register.read(fence(33)).unwrap();
            let second = register.read(fence(34)).unwrap();
            let acknowledged = register.write(fence(33), first, 1);
            assert_eq!(acknowledged, compares != Compares::Always);
            assert!(register.write(fence(34), second, 2));
            assert_eq!(
                (register.lost().len(), register.fences().is_sorted()),
                (lost, true),
                "{compares:?}"
            );
        }
    }
}
