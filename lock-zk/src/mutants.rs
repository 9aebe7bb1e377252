//! Deliberate mistakes, for the tests of the tests.
//!
//! Only with the feature `mutants`, and only if the variable below names one: mistakes that locks on
//! ZooKeeper are known to be made with. `tests/mutants.rs` shows that each is found.

use std::sync::{LazyLock, OnceLock};

use crate::names;
use crate::session::Session;
use crate::transport::{Checked, Failure};

/// Names the mistake to make, in the environment.
pub const VARIABLE: &str = "LOCK_ZK_MUTANT";

/// All of them.
pub const MUTANTS: &[&str] = &[
    "fence_is_the_sequence",
    "trust_any_session",
    "create_again",
    "watch_the_parent",
    "read_based_renewal",
    "read_based_check",
    "beat_by_reads",
    "grant_by_read",
    "believe_a_shorter_session",
    "one_session_for_all",
    "keep_the_base",
    "check_what_is_known",
];

static WANTED: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());

pub(crate) fn is(mutant: &str) -> bool {
    debug_assert!(MUTANTS.contains(&mutant), "{mutant} is no mutant");
    *WANTED == mutant
}

/// The sequence number begins again when the node of the lock is removed.
pub(crate) fn fence(czxid: i64, name: &str) -> i64 {
    if !is("fence_is_the_sequence") {
        return czxid;
    }
    names::sequence(name).map_or(czxid, |number| i64::from(number) + 1)
}

/// A read is answered by any server, also by one that the leader has long forgotten.
pub(crate) async fn read_instead_of_checking(
    session: &Session,
    paths: &[&str],
) -> Result<Checked, Failure> {
    for (at, path) in paths.iter().enumerate() {
        if session.get(path).await?.is_none() {
            return Ok(Checked::Missing(at));
        }
    }
    session.believe();
    Ok(Checked::All)
}

/// Goes on counting from the base of an ensemble that is no more.
pub(crate) fn first_base(base: u64) -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    *FIRST.get_or_init(|| base)
}
