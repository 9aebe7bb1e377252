//! The three axes of a matrix.

use std::fmt::Debug;

/// The values of one axis, and what the page calls them.
pub(super) trait Axis: Copy + Debug + Eq + Ord + 'static {
    fn label(self) -> &'static str;
}

/// An enum whose variants are the values of an axis, each with its label.
macro_rules! axis {
    ($(#[$about:meta])* $name:ident { $($variant:ident $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $name {
            $($variant,)+
        }

        impl $crate::matrix::axis::Axis for $name {
            fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    };
}

pub(super) use axis;

axis! {
    /// What happens before the call, since the one before it, or during the call.
    Event {
        Plain "nothing else happens",
        RequestLost "its request is lost",
        ReplyLost "its reply is lost",
        // Also where the request itself arrives late.
        ReplyLate "its reply is late",
        Dropped "it is dropped at an await",
        OtherHolder "another has taken the lock",
        OtherReleases "another has taken and released the lock",
        // Of the claim itself, or of the holder that it waits for.
        Expiry "a lease has ended",
        QueueBehind "others wait behind it",
        Forced "the lock is taken away by force",
        Restart "the store is restarted",
        // Cut off, frozen, or refusing connections.
        Unreachable "the store is out of reach",
        Suspended "the process was stopped, or its machine slept",
        StandStill "the runtime stands still",
    }
}
