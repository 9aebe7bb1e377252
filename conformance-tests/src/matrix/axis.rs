//! The three axes of a matrix.

use std::fmt::Debug;

/// The values of one axis, and what the page calls them.
pub(super) trait Axis: Copy + Debug + Eq + Ord + 'static {
    const ALL: &'static [Self];

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
            const ALL: &'static [Self] = &[$(Self::$variant),+];

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
    /// What happens since the call before, or during the call.
    Event {
        Plain "nothing else happens",
        RequestLost "the request is lost",
        ReplyLost "the reply is lost",
        // The reply, or the request itself.
        ReplyLate "the reply is late",
        Dropped "dropped at an await",
        OtherHolder "another holds the lock",
        OtherReleases "another has released it",
        // Of the claim itself, or of the holder that it waits for.
        Expiry "the lease has ended",
        QueueBehind "others wait",
        Forced "taken away by force",
        Restart "the store was restarted",
        // Cut off, frozen, or refusing connections.
        Unreachable "the store is out of reach",
        Suspended "the process was stopped",
        StandStill "the runtime stands still",
    }
}
