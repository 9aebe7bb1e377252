//! An exclusive lock, as the store has it.

/// Nothing else of a queue is modelled than that a free lock may go to any of its waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lock {
    #[default]
    Free,
    /// Somebody has it and believes in it: its lease does not end.
    Kept,
    /// It was let go, or is not believed in any more: a release that is under way, or the end of its lease, frees it
    /// at any moment.
    Ending,
}
