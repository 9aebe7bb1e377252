//! Known mistakes of locks on etcd, and the test that catches each.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::{Clock, FencingToken};
use tokio::runtime::Id;

use crate::error::{Failed, Why};
use crate::proto::{Compare, KeyValue, Operation, RequestOp, SortOrder};
use crate::rules::{RULES, Rules};
use crate::statements::{Kind, Statement};
use crate::wire::{News, Renewed, Reply, Request};

/// The environment variable that names the mistake to make.
pub const VARIABLE: &str = "LOCK_ETCD_MUTANT";

/// One mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The case of the suite, or the scene of this crate, that fails for it.
    pub killed_by: &'static str,
}

macro_rules! mutants {
    ($($name:ident: $what:literal, $killed_by:ident;)+) => {
        /// All mistakes.
        pub const MUTANTS: &[Mutant] = &[$(
            Mutant { name: stringify!($name), what: $what, killed_by: stringify!($killed_by) },
        )+];
    };
}

mutants! {
    no_look_after_waiting: "a second read sees no entry before ours, so the lock must be ours",
        a_waiter_looks_before_it_believes;
    ignores_the_queue: "the own entry alone is the lock", s01_a_lock_is_not_reentrant;
    swallows_ttl_0: "any answer to a keep-alive counts as a renewal",
        a_lease_that_has_ended_is_enough_to_know;
    credits_an_answer_to_a_later_request: "a keep-alive counts from its answer, as with two in flight",
        an_answer_counts_from_its_own_request;
    release_by_name: "a release deletes its key by name, in whatever state it is by now",
        a_release_leaves_what_others_have_written;
    release_keeps_the_key: "a release deletes nothing", c07_a_released_lock_is_free_at_once;
    force_needs_no_owner: "a forced release ignores whom it should meet",
        s03_a_forced_release_of_another_hold_does_nothing;
    try_leaves_a_place: "a try that does not wait leaves its entry in the queue",
        c13_a_refused_try_leaves_no_place;
    counts_from_any_base: "an entry is made whatever the base of the fences is by now",
        fences_rise_over_clients;
    believes_in_the_lease: "a lease that lives shows that the lock is held, if the key cannot be read",
        a_renewal_needs_to_see_the_key;
    checks_what_it_has_heard_of: "a check knows nothing of a try that had no answer",
        a_check_after_an_unknown_try_asks_the_store;
    takes_a_place_for_a_hold: "a token may name an entry that waits", a_place_that_waits_is_no_hold;
    sees_nested_names: "the entries of `a/b` stand in the queue of `a`",
        a_foreign_queue_below_ours_blocks_nobody;
    shares_a_lease: "all claims of a client use one lease", every_claim_has_a_lease_of_its_own;
    believes_in_twice_the_ttl: "a lease is counted on for twice as long as it lasts",
        c04_a_repeat_is_kept_as_long_as_promised;
    keeps_unknown_leases: "a release after an unknown try keeps the lease",
        c07_a_release_after_a_failed_try_frees_the_lock;
    keeps_its_pool: "one lease was gone, and the other spare leases are still tried",
        leases_that_a_restore_has_taken_are_not_tried_one_by_one;
    revokes_what_it_was_told_of: "the lease that a token names is given up where it is to be looked at",
        an_altered_token_touches_no_lease;
    stays_with_a_learner: "a member that is a learner is taken for a good one", a_learner_is_left;
    own_place_unwatched: "its own entry is not watched", a_waiter_sees_that_its_own_place_has_gone;
    resumes_after_compaction: "a watch that was compacted away is taken for one that stands",
        a_waiter_looks_after_a_compaction;
    skips_what_was_not_told: "a watch that was created goes on from the revision of that answer",
        a_stream_that_breaks_twice_hides_nothing;
    ignores_a_refused_watch: "nothing happens when the server refuses a watch",
        a_watch_is_not_refused_unnoticed;
    trusts_its_watch: "a watch is trusted on another stream, too",
        a_holder_looks_although_its_watch_stands;
    dies_with_its_runtime: "waiters are not told when the watches are no longer served",
        a_waiter_outlives_the_runtime_that_served_it;
    serves_all_on_one_runtime: "the watches of all runtimes are served by one of them",
        a_waiter_outlives_the_runtime_that_served_it;
    shares_a_watch_that_has_passed: "a watch is shared although it has passed what is to be heard of",
        a_shared_watch_hides_nothing;
    hears_of_what_was_before: "a change of the key from before an entry is one of that entry",
        a_place_is_not_lost_with_the_one_before;
    hands_to_the_last: "a release hands the lock to the last in the queue",
        a_release_hands_the_lock_to_the_next;
    hands_to_a_key: "a release hands the lock to whom a key belonged, whatever is there by now",
        a_release_proves_no_place_that_others_have_written;
    believes_an_old_proof: "what a neighbour has proven is believed for ever",
        a_proof_that_nobody_took_is_not_believed_later;
    waits_for_any_answer: "a waiter waits for the answer to the release before it, however long",
        a_release_that_stands_still_keeps_nobody_waiting;
    believes_the_owner: "a token is good for whatever stands at its key",
        an_altered_token_touches_no_lease;
    believes_the_fence: "a token is good whatever its fence is", an_altered_token_touches_no_lease;
    takes_any_ttl: "a lease is taken over whatever its ttl is", c14_a_longer_ttl_is_the_requests;
    fence_is_the_lease: "the fencing token is the lease id", c09_fences_rise_over_releases;
    base_is_never_lifted: "fences count from the first base for ever",
        a_restored_snapshot_gives_no_lower_fence;
    raises_what_is_in_use: "a base is raised whenever it is seen to be behind the clock",
        a_base_in_use_is_not_raised_again;
    trusts_a_store_that_went_back: "a fence may be below one that was seen before",
        a_restored_snapshot_gives_no_lower_fence;
}

static WANTED: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());

fn is(name: &str) -> bool {
    debug_assert!(MUTANTS.iter().any(|mutant| mutant.name == name), "no mutant {name}");
    *WANTED == name
}

/// What has passed through the seam so far.
#[derive(Default)]
struct Past {
    /// By requested ttl.
    granted: HashMap<i64, Vec<Reply>>,
    is_lease_gone: bool,
    /// The keys of entries that wait, or will.
    entered: Vec<Vec<u8>>,
}

fn past() -> MutexGuard<'static, Past> {
    static PAST: LazyLock<Mutex<Past>> = LazyLock::new(Mutex::default);
    PAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request, before it is sent.
pub(crate) fn sent(request: Request) -> Request {
    match request {
        Request::Txn(statement) => Request::Txn(stated(statement)),
        // It is not sent, and counts as answered.
        Request::Revoke { .. } if is("keeps_unknown_leases") => Request::Status,
        Request::TimeToLive { lease } if is("revokes_what_it_was_told_of") => {
            Request::Revoke { lease }
        }
        request => request,
    }
}

fn stated(mut statement: Statement) -> Statement {
    let Statement { kind, key, when, then, .. } = &mut statement;
    match kind {
        Kind::Enter => {
            past().entered.push(key.clone());
            if is("counts_from_any_base") {
                when.truncate(1);
            }
        }
        Kind::EnterIfEmpty if is("try_leaves_a_place") => {
            when[0] = Compare::create_revision(key.clone(), 0);
        }
        Kind::EnterIfEmpty if is("counts_from_any_base") => when.truncate(1),
        Kind::Release if is("release_by_name") => when.clear(),
        Kind::Release if is("release_keeps_the_key") => then.clear(),
        Kind::Release if is("hands_to_the_last") => then.iter_mut().for_each(reverse),
        Kind::Force if is("force_needs_no_owner") => when.clear(),
        _ => {}
    }
    statement
}

fn reverse(operation: &mut RequestOp) {
    if let Some(Operation::Range(range)) = &mut operation.operation {
        range.sort_order = SortOrder::Descend.into();
    }
}

/// A reply, before it is trusted.
pub(crate) fn replied(request: &Request, reply: Result<Reply, Failed>) -> Result<Reply, Failed> {
    match (request, reply) {
        (Request::Txn(statement), Ok(reply)) => Ok(shown(statement, reply)),
        (Request::Grant { seconds }, Ok(reply)) => Ok(granted(*seconds, reply)),
        (Request::Txn(statement), Err(_))
            if statement.kind == Kind::Confirm && is("believes_in_the_lease") =>
        {
            Ok(Reply { succeeded: true, ..Reply::default() })
        }
        (_, Err(failed)) if failed.why == Why::Learner && is("stays_with_a_learner") => {
            Err(Failed { why: Why::Refused, ..failed })
        }
        (_, Err(failed)) => {
            past().is_lease_gone |= failed.why == Why::LeaseGone;
            Err(failed)
        }
        (_, reply) => reply,
    }
}

fn shown(statement: &Statement, mut reply: Reply) -> Reply {
    let hides_others = match statement.kind {
        Kind::Enter => reply.succeeded && is("ignores_the_queue"),
        Kind::Look => is("ignores_the_queue") || is("no_look_after_waiting"),
        _ => false,
    };
    for read in &mut reply.reads {
        if hides_others {
            read.retain(|found| found.key == statement.key);
        }
        if is("sees_nested_names") {
            read.iter_mut().for_each(flatten);
        }
    }
    match statement.kind {
        Kind::Find if is("checks_what_it_has_heard_of") => reply.reads[0].clear(),
        Kind::Prove if is("takes_a_place_for_a_hold") => reply.reads[1] = reply.reads[0].clone(),
        _ => {}
    }
    reply
}

/// Turns an entry of `a/b` into one of `a`.
fn flatten(found: &mut KeyValue) {
    let slashes = found.key.iter_mut().filter(|byte| **byte == b'/').skip(1);
    slashes.for_each(|slash| *slash = b'-');
}

fn granted(seconds: i64, mut reply: Reply) -> Reply {
    let mut past = past();
    let is_lease_gone = past.is_lease_gone;
    let before = past.granted.entry(seconds).or_default();
    if is("shares_a_lease")
        && let Some(first) = before.first()
    {
        return first.clone();
    }
    if is("keeps_its_pool")
        && is_lease_gone
        && let Some(last) = before.pop()
    {
        return last;
    }
    if is("believes_in_twice_the_ttl") {
        reply.ttl = reply.ttl.map(|ttl| ttl * 2);
    }
    before.push(reply.clone());
    reply
}

/// The reply to a keep-alive, before it is trusted.
pub(crate) fn renewed(mut renewed: Renewed, clock: &dyn Clock) -> Renewed {
    if is("swallows_ttl_0") {
        renewed.ttl = renewed.ttl.or(Some(Duration::from_secs(60)));
    }
    if is("believes_in_twice_the_ttl") {
        renewed.ttl = renewed.ttl.map(|ttl| ttl * 2);
    }
    if is("credits_an_answer_to_a_later_request") {
        renewed.sent = clock.now();
    }
    renewed
}

/// Whether the request to watch `key` is sent.
pub(crate) fn watches(key: &[u8]) -> bool {
    !(is("own_place_unwatched") && past().entered.iter().any(|entered| entered == key))
}

/// The runtime that serves the watches of this one.
pub(crate) fn served_by(runtime: Id) -> Id {
    static FIRST: OnceLock<Id> = OnceLock::new();
    if is("serves_all_on_one_runtime") { *FIRST.get_or_init(|| runtime) } else { runtime }
}

/// A watch event, before it is trusted; `None` to drop it.
pub(crate) fn news(news: News) -> Option<News> {
    match news {
        News::Opened if is("trusts_its_watch") => None,
        News::Unserved if is("dies_with_its_runtime") => None,
        News::Ended { is_compacted: true, .. } if is("resumes_after_compaction") => None,
        News::Ended { id, .. } if id < 0 && is("ignores_a_refused_watch") => None,
        News::Stands { id, revision } if is("skips_what_was_not_told") => {
            Some(News::Told { id, up_to: revision, changed: false, deleted: None })
        }
        news => Some(news),
    }
}

/// The rules by which the store decides.
pub(crate) fn rules() -> Rules {
    let mut rules = RULES;
    match WANTED.as_str() {
        "believes_the_owner" => rules.is_ours = |_, _| true,
        "believes_the_fence" => rules.is_told = |_, _| true,
        "takes_any_ttl" => rules.is_asked = |_, _| true,
        "fence_is_the_lease" => {
            rules.fence = |fence, lease| FencingToken::answered(lease).unwrap_or(fence);
        }
        "base_is_never_lifted" => {
            rules.base = |base, revision, highest, now| {
                let is_above = base > 0 && base.saturating_add(revision) >= highest;
                if is_above { base } else { (RULES.base)(base, revision, highest, now) }
            };
        }
        "raises_what_is_in_use" => rules.is_in_use = |_, _| false,
        "trusts_a_store_that_went_back" => rules.rises = |_, _| true,
        "shares_a_watch_that_has_passed" => rules.is_in_time = |_, _| true,
        "hears_of_what_was_before" => rules.is_news = |_, _| true,
        "hands_to_a_key" => rules.is_waiting = |_, _| true,
        "believes_an_old_proof" => rules.is_fresh = |_, _| true,
        "waits_for_any_answer" => rules.answer_in = Duration::from_secs(3600),
        _ => {}
    }
    rules
}
