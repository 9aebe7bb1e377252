//! The scripts of one server. What a script answers without a function comes before it: a function costs
//! time where it is made, too.

use crate::node::scripts;

scripts! {
    ACQUIRE = "keys" "spoilt" "grant" "acquire_free" "../../shared_lua/value" "../../shared_lua/shared" "record" "shown" "place" "queue" "acquire";
    RELEASE = "keys" "../../shared_lua/value" "record" "release" "spoilt" "grant" "queue" "release_next";
    FORCE = "keys" "../../shared_lua/value" "../../shared_lua/shared" "record" "shown" "spoilt" "grant" "queue" "force";
    DECLINE = "keys" "../../shared_lua/value" "record" "spoilt" "grant" "queue" "decline";
    RENEW = "../../shared_lua/value" "../../shared_lua/shared" "record" "place" "renew";
    LOOK = "../../shared_lua/value" "../../shared_lua/values" "record" "spoilt" "look";
    INSPECT = "../../shared_lua/value" "../../shared_lua/shared" "record" "shown" "inspect";
    HELD = "../../shared_lua/value" "held";
    PROBE = "../../shared_lua/try" "probe";
}

/// The greatest fence of the node, of all names: so that nothing is kept of a free lock. In the
/// namespace of no lock, since it has a control character.
pub(crate) const MARK: &str = "distlock\u{1e}fence";
