//! Small numbers, and sets of them.

/// A set of clients or nodes, one bit each.
pub(crate) type Set = u8;

/// A set of fences, one bit each.
pub(crate) type Fences = u16;

/// So many fences in a row, of which this one is the first.
pub(crate) fn in_a_row(first: u8, number: u8) -> Fences {
    ((1 << number) - 1) << first
}

/// The greatest of the fences; 0 for none.
pub(crate) fn greatest(fences: Fences) -> u8 {
    u8::try_from(fences.checked_ilog2().unwrap_or(0)).unwrap_or(u8::MAX)
}

/// The number of a client, a node or a call, as the state keeps it.
pub(crate) fn id(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
