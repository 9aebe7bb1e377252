//! What a look at a name shows.

use crate::FencingToken;

/// What [`LockBackend::look`](crate::LockBackend::look) has seen of one name (clause C18).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// The lock is held: by a holder, or by a waiter that the store has handed it to, and that may not
    /// know yet.
    Held {
        /// The fencing token of the hold, the first one of a block. `None` for a client of another kind,
        /// which has none, and where the store cannot be certain of it. An attempt that is under way may get
        /// a greater one.
        fence: Option<FencingToken>,
        /// The label of the holder. It may be missing until the holder knows of its grant.
        label: Option<String>,
    },
    /// Nobody has it.
    Free {
        /// No earlier token of the name is greater, and every later one is. `None` if no token has been
        /// given so far, or if the store does not know at this moment.
        floor: Option<FencingToken>,
    },
}
