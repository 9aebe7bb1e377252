//! The scripts of the single-node backend.

use crate::node::scripts;

scripts! {
    ACQUIRE = "scripts/keys" "scripts/grant" "scripts/acquire_free" "../scripts/value" "../scripts/mark" "scripts/queue"
        "../scripts/lasting" "scripts/acquire";
    RELEASE = "scripts/keys" "../scripts/value" "scripts/held" "scripts/release" "scripts/grant" "scripts/queue"
        "scripts/release_next";
    FORCE = "scripts/keys" "../scripts/value" "../scripts/mark" "scripts/grant" "scripts/queue" "scripts/force";
    RENEW = "../scripts/value" "../scripts/lasting" "scripts/held" "scripts/renew";
    INSPECT = "../scripts/value" "../scripts/mark" "scripts/inspect";
    PROBE = "../scripts/try" "scripts/probe";
}

/// The greatest fence of the node, of all names: so that nothing is kept of a free lock. In the
/// namespace of no lock, since it has a control character.
pub(crate) const MARK: &str = "distlock\u{1e}fence";
/// Channels are this and the id of a client.
pub(crate) const CHANNEL: &str = "distlock:";
/// Added to what a renewal answers for a place in a queue.
pub(crate) const PLACE: i64 = 1 << 40;
/// Added to what a renewal answers for a lock that was handed over and not yet taken up.
pub(crate) const HANDED: i64 = 1 << 41;
/// What a renewal answers for a place in a queue whose keys are of another type.
pub(crate) const BROKEN: i64 = -2;
