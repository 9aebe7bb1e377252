//! Small numbers, and sets of them.

/// A set of counter values, clients or nodes, one bit each.
pub(crate) type Set = u8;

/// The number of a client, a node or a call, as the state keeps it.
pub(crate) fn id(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
