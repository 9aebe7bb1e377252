//! Runs the model check: the real rules hold, and each wrong rule is found out.
//!
//! `cargo test -p redlock-model -- --nocapture --test-threads=1` prints how many states there are. All of it takes
//! some five minutes of processor time, of which the largest are the loss of whole quorums (4.4 million states, and
//! as many until its wrong variants are found), what is given back while a node loses its data (4.8 million), a hold of
//! a block with one more call (2.0 million), and a hold that is renewed while a node loses its data (1.4 million). What
//! is ignored takes one minute and a half more, and is run every night.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, SystemTime};

use redlock_model::{Fault, NodeRules, Recovery, RedlockModel, Rejoin, Variant};
use stateright::{Checker, HasDiscoveries, Model};

/// A check that takes longer fails, rather than pass without having explored everything. The longest takes less than
/// a minute, but beside other tests it only gets the time of the processors that nobody else wants.
const LIMIT: Duration = Duration::from_secs(3600);

/// How many steps of five nodes are explored: a bare quorum of the hold expires, and another client gets it.
const DEPTH_OF_FIVE: usize = 11;

/// What the checker asks of a model.
trait Checked:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
}

impl Checked for RedlockModel {}
impl Checked for Recovery {}

/// How many steps of two clients that give back are explored.
const DEPTH_OF_RELEASES: usize = 12;

/// How many steps are explored of a hold, a look and what happens to it.
const DEPTH_OF_LOOKS: usize = 12;

/// Explores every reachable state.
fn holds<M: Checked>(what: &str, model: M) {
    let started = SystemTime::now();
    let checker = model.checker().threads(1).timeout(LIMIT).spawn_bfs().join();
    // The checker calls itself done when its time is over, too.
    let took = started.elapsed().unwrap_or(LIMIT);
    println!(
        "{what}: holds in {} states, up to {} steps deep, after {took:.0?}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(took < LIMIT, "{what}: not all states were explored within {LIMIT:?}");
    checker.assert_properties();
}

/// Explores what can happen within so many steps: where all that can happen would take hours.
fn holds_within(what: &str, depth: usize, model: RedlockModel) {
    let checker = model.checker().threads(1).target_max_depth(depth).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{what}: holds in {states} states, within {depth} steps");
    // What can happen may need more steps than these.
    let broken = checker.discoveries();
    let broken: Vec<_> = broken.keys().filter(|name| name.starts_with(['E', 'F', 'R'])).collect();
    assert!(broken.is_empty(), "{what}: violates {broken:?}");
}

/// Explores until a property does not hold.
fn is_violated<M: Checked>(what: &str, model: M) {
    let checker = model
        .checker()
        .threads(1)
        .timeout(LIMIT)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let discoveries = checker.discoveries();
    let broken = discoveries.iter().find(|(name, _)| name.starts_with(['E', 'F', 'R']));
    let states = checker.unique_state_count();
    let Some((name, path)) = broken else {
        panic!("{what}: no violation in {states} states");
    };
    let actions = path.clone().into_actions();
    println!(
        "{what}: violates {name:?} after {} steps, {states} states: {actions:?}",
        actions.len()
    );
}

/// Explores until two clients believe at once, whatever else does not hold.
fn excludes_nobody(what: &str, model: RedlockModel) {
    const E: &str = "E: one client believes";
    let builder = model.checker().threads(1).timeout(LIMIT);
    let checker = builder.finish_when(HasDiscoveries::AnyOf([E].into())).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(E) else {
        panic!("{what}: no two clients that believe in {states} states");
    };
    let actions = path.into_actions();
    println!("{what}: violates {E:?} after {} steps, {states} states: {actions:?}", actions.len());
}

fn wrong(variant: Variant) -> RedlockModel {
    RedlockModel { variant, ..RedlockModel::default() }
}

fn wrong_nodes(nodes: NodeRules) -> RedlockModel {
    RedlockModel { nodes, ..RedlockModel::default() }
}

fn one_loss_one_proposal() -> RedlockModel {
    RedlockModel { losses: 1, proposals: vec![1], ..RedlockModel::default() }
}

fn wrong_rejoin(rejoin: Rejoin) -> RedlockModel {
    RedlockModel { losses: 1, ..wrong_nodes(NodeRules { rejoin, ..NodeRules::REAL }) }
}

#[test]
fn the_real_rule_holds() {
    holds("two acquisitions", RedlockModel::default());
}

#[test]
fn the_real_rule_holds_from_unequal_counters() {
    let counters = vec![vec![0, 0, 1], vec![0, 1, 2]];
    holds(
        "two acquisitions, unequal counters",
        RedlockModel { counters, ..RedlockModel::default() },
    );
}

#[test]
fn the_real_rule_holds_when_requests_arrive_again() {
    let model = RedlockModel { repeats: 1, proposals: vec![1], ..RedlockModel::default() };
    holds("two acquisitions, one request that arrives twice", model);
}

#[test]
fn the_real_rule_holds_when_a_node_loses_its_data() {
    holds("two acquisitions, one loss", RedlockModel { losses: 1, ..RedlockModel::default() });
}

#[test]
fn the_real_rule_holds_when_an_admission_arrives_late() {
    let model = RedlockModel { stale_admission: true, ..one_loss_one_proposal() };
    holds("two acquisitions, one loss, one late admission", model);
}

#[test]
#[ignore = "takes half a minute: run every night"]
fn the_real_rule_holds_when_nodes_lose_their_data_twice() {
    holds("two acquisitions, two losses", RedlockModel { losses: 2, ..one_loss_one_proposal() });
}

fn with_blocks(blocks: [u8; 2]) -> RedlockModel {
    RedlockModel { blocks: blocks.to_vec(), ..RedlockModel::default() }
}

#[test]
fn the_real_rule_holds_with_blocks() {
    holds("two acquisitions of a block of two", with_blocks([2, 2]));
    holds("an acquisition of a block of two, one of one", with_blocks([2, 1]));
}

#[test]
fn the_real_rule_holds_with_blocks_when_a_node_loses_its_data() {
    let model = RedlockModel { losses: 1, proposals: vec![1], ..with_blocks([2, 1]) };
    holds("acquisitions of blocks of two and one, one loss", model);
}

#[test]
fn a_block_that_counts_as_one_is_found_wrong() {
    let nodes = NodeRules { counts_blocks: false, ..NodeRules::REAL };
    let counters = vec![vec![1; 3]];
    let model = RedlockModel { nodes, counters, ..with_blocks([2, 2]) };
    is_violated("a block that counts as one", model);
}

/// A hold of a block, and one second try or renewal of either client.
fn with_a_block_held(blocks: [u8; 2], variant: Variant) -> RedlockModel {
    RedlockModel { blocks: blocks.to_vec(), ..with_one_more_call(variant) }
}

#[test]
fn a_block_that_is_passed_on_holds() {
    for blocks in [vec![2, 2], vec![2, 1]] {
        let what = format!("two acquisitions of blocks of {blocks:?} that are believed");
        holds(&what, RedlockModel { blocks, ..with_holds(Variant::Real) });
    }
    let model = with_a_block_held([2, 2], Variant::Real);
    holds("a hold of a block, one second try or renewal", model);
}

/// The wrong rule breaks after ten steps.
#[test]
fn a_block_that_overlaps_an_earlier_one_is_found_wrong() {
    let model = |variant| RedlockModel { silences: 1, ..with_a_block_held([2, 1], variant) };
    is_violated("a block with a fence of the earlier one", model(Variant::OverlapsItsOwn));
    holds_within("another block of the same claim", 12, model(Variant::Real));
}

/// Five nodes, of which three show a hold of the first client, while its requests to the other two are
/// still under way.
fn with_five_nodes(nodes: NodeRules) -> RedlockModel {
    let counters = vec![vec![1; 5]];
    RedlockModel { nodes, counters, ..with_a_block_held([2, 2], Variant::Real) }
}

#[test]
fn a_quorum_of_five_holds() {
    holds_within("five nodes, a hold of a block", DEPTH_OF_FIVE, with_five_nodes(NodeRules::REAL));
}

#[test]
fn a_block_that_counts_as_one_is_found_wrong_with_five_nodes() {
    let nodes = NodeRules { counts_blocks: false, ..NodeRules::REAL };
    is_violated("five nodes, a block that counts as one", with_five_nodes(nodes));
}

#[test]
fn the_first_maximum_is_found_wrong() {
    is_violated("the maximum of the first quorum", wrong(Variant::FirstMaximum));
}

#[test]
fn the_maximum_without_the_equal_rule_is_found_wrong() {
    let nodes = NodeRules { raise_shows_counter: false, ..NodeRules::REAL };
    let counters = vec![vec![0, 0, 1]];
    let model = RedlockModel { repeats: 1, counters, proposals: vec![1], ..wrong_nodes(nodes) };
    is_violated("the maximum without the equal rule", model);
}

#[test]
fn raising_without_holding_is_found_wrong() {
    let nodes = NodeRules { raise_needs_holder: false, ..NodeRules::REAL };
    is_violated("raise without holding", wrong_nodes(nodes));
}

#[test]
fn a_quorum_of_the_reachable_is_found_wrong() {
    is_violated("a quorum of the reachable", wrong(Variant::QuorumOfOne));
}

#[test]
fn rejoining_at_once_is_found_wrong() {
    is_violated("rejoin at once", wrong_rejoin(Rejoin::AtOnce));
}

#[test]
fn rejoining_without_a_seed_is_found_wrong() {
    is_violated("rejoin after the wait, from zero", wrong_rejoin(Rejoin::WaitOnly));
}

#[test]
fn reading_the_seed_before_the_wait_is_found_wrong() {
    is_violated("read the marks, then wait", wrong_rejoin(Rejoin::SeedThenWait { others: 2 }));
}

#[test]
fn a_seed_from_too_few_is_found_wrong() {
    is_violated("a seed from N-Q others", wrong_rejoin(Rejoin::WaitThenSeed { others: 1 }));
}

#[test]
fn an_admission_that_names_no_quarantine_is_found_wrong() {
    let nodes = NodeRules { admission_names_quarantine: false, ..NodeRules::REAL };
    let model = RedlockModel { nodes, stale_admission: true, ..one_loss_one_proposal() };
    is_violated("an admission that names no quarantine", model);
}

fn with_holds(variant: Variant) -> RedlockModel {
    RedlockModel { variant, holds: true, proposals: vec![1], ..RedlockModel::default() }
}

/// A hold, and one second try or renewal of either client.
fn with_one_more_call(variant: Variant) -> RedlockModel {
    RedlockModel { calls: 1, held: true, ..with_holds(variant) }
}

#[test]
fn two_clients_never_believe_at_once() {
    holds("two acquisitions that are believed", with_holds(Variant::Real));
}

#[test]
#[ignore = "is checked with blocks of two: run every night"]
fn a_second_call_holds() {
    holds("a hold, one second try or renewal", with_one_more_call(Variant::Real));
}

#[test]
fn a_node_that_joins_later_is_adopted() {
    let renewals = RedlockModel { renewals_only: true, ..with_one_more_call(Variant::Real) };
    let twice = RedlockModel { calls: 2, ..renewals.clone() };
    holds("a hold that is renewed twice, one node that joins late", twice);
    let asked = RedlockModel { repeats: 1, ..renewals };
    holds("a hold that is renewed, one node that is asked to join", asked);
}

/// A hold, one renewal of it, and a node that loses its data.
fn with_a_loss(rejoin: Rejoin) -> RedlockModel {
    RedlockModel {
        losses: 1,
        renewals_only: true,
        nodes: NodeRules { rejoin, ..NodeRules::REAL },
        ..with_one_more_call(Variant::Real)
    }
}

#[test]
fn two_clients_never_believe_at_once_when_a_node_loses_its_data() {
    let real = NodeRules::REAL.rejoin;
    let begun = RedlockModel { calls: 0, held: false, ..with_a_loss(real) };
    holds("two acquisitions that are believed, one loss", begun);
    holds("a hold that is renewed, one loss", with_a_loss(real));
}

#[test]
fn a_node_that_waits_for_less_than_belief_is_found_wrong() {
    excludes_nobody("a hold, a node that votes at once", with_a_loss(Rejoin::AtOnce));
    let others = RedlockModel::default().counters[0].len() - 1;
    let waits = with_a_loss(Rejoin::WaitForCalls { others });
    excludes_nobody("a hold, a node that waits for calls alone", waits);
}

#[test]
fn a_grant_that_is_over_is_found_wrong() {
    is_violated("a grant that is over", with_holds(Variant::LateGrant));
}

#[test]
fn a_node_that_joins_at_once_is_found_wrong() {
    for variant in [Variant::RenewsAnyFence, Variant::OldFenceOfAnyQuorum] {
        is_violated("a node that joins at once", with_one_more_call(variant));
    }
}

/// One claim that tries twice and releases, with requests that it has no answer to. What is left at a node
/// does not depend on the others, so one is enough.
fn with_releases(variant: Variant) -> RedlockModel {
    RedlockModel {
        blocks: vec![1],
        calls: 1,
        silences: 1,
        gives_back: true,
        refusing: 2,
        ticks: 2,
        ..with_holds(variant)
    }
}

#[test]
fn what_is_given_back_leaves_nothing_behind() {
    holds("two tries and a release", with_releases(Variant::Real));
}

/// The same beside another client, at two nodes of three.
fn with_releases_of_two(nodes: NodeRules) -> RedlockModel {
    RedlockModel { blocks: vec![1, 1], refusing: 1, nodes, ..with_releases(Variant::Real) }
}

/// A hold, while releases of an earlier try of the same claim are still under way to all nodes.
fn with_late_releases(nodes: NodeRules) -> RedlockModel {
    RedlockModel { held: true, late_releases: true, nodes, ..with_holds(Variant::Real) }
}

/// The wrong rule breaks within as many steps.
#[test]
fn what_is_given_back_ends_no_newer_hold() {
    let nodes = NodeRules { release_names_try: false, ..NodeRules::REAL };
    is_violated("a release of any try", with_releases_of_two(nodes));
    excludes_nobody("a hold, late releases of any try", with_late_releases(nodes));
    holds("a hold, late releases of an earlier try", with_late_releases(NodeRules::REAL));
    let model = with_releases_of_two(NodeRules::REAL);
    holds_within("two tries and a release beside another client", DEPTH_OF_RELEASES, model);
}

#[test]
fn what_is_given_back_leaves_nothing_behind_when_a_node_loses_its_data() {
    let model = RedlockModel { losses: 1, ..with_releases(Variant::Real) };
    holds("two tries and a release, one loss", model);
}

#[test]
fn what_is_given_back_ends_no_newer_hold_when_a_node_loses_its_data() {
    let late = |rejoin| {
        let nodes = NodeRules { rejoin, ..NodeRules::REAL };
        RedlockModel { losses: 1, ..with_late_releases(nodes) }
    };
    excludes_nobody("a hold, late releases, a node that votes at once", late(Rejoin::AtOnce));
    holds("a hold, late releases of an earlier try, one loss", late(NodeRules::REAL.rejoin));
    let two = RedlockModel { losses: 1, ..with_releases_of_two(NodeRules::REAL) };
    let what = "two tries and a release beside another client, one loss";
    holds_within(what, DEPTH_OF_RELEASES, two);
}

#[test]
fn a_release_that_is_not_repeated_is_found_wrong() {
    for variant in [
        Variant::ForgetsTheUnanswered,
        Variant::BelievesEveryRelease,
        Variant::BelievesWhatWasFreed,
    ] {
        is_violated("a release that is not repeated", with_releases(variant));
    }
}

#[test]
fn fences_rise_over_the_loss_of_everything() {
    for happens in [&[Fault::Keep, Fault::Lose], &[Fault::Forget, Fault::Flush]] {
        let what = format!("a quorum that is hit twice, by each of {happens:?}");
        holds(&what, Recovery { happens, ..Recovery::default() });
    }
}

#[test]
fn what_is_ahead_of_the_clocks_is_found_wrong() {
    let real = Recovery::default();
    let of_wait = real.wait * Recovery::FENCES;
    is_violated("a seed that is ahead of the clocks", Recovery { ahead: 2 * of_wait, ..real });
    is_violated("a lead that is longer than the wait", Recovery { lead: 2 * of_wait, ..real });
    is_violated("a new quorum that begins at zero", Recovery { seeds_new: false, ..real });
}

#[test]
fn a_wait_that_is_shorter_than_a_lock_is_found_wrong() {
    let real = Recovery::default();
    is_violated("a wait that is shorter than a lock", Recovery { wait: real.ttl - 1, ..real });
}

/// A look beside two acquisitions.
fn with_a_look(variant: Variant) -> RedlockModel {
    RedlockModel { rounds: 1, ..with_holds(variant) }
}

/// A look beside a hold.
fn with_a_look_at_a_hold(variant: Variant) -> RedlockModel {
    RedlockModel { held: true, ..with_a_look(variant) }
}

#[test]
fn a_look_finds_who_believes_and_a_floor() {
    let counters = vec![vec![0, 0, 0], vec![0, 1, 3]];
    let begun = RedlockModel { counters, ..with_a_look(Variant::Real) };
    holds_within("two acquisitions, unequal counters, a look", DEPTH_OF_LOOKS, begun);
    let model = RedlockModel { rounds: 2, ..with_a_look_at_a_hold(Variant::Real) };
    holds("a hold, a look of two rounds", model);
    let blocks = RedlockModel { blocks: vec![2, 1], ..with_a_look_at_a_hold(Variant::Real) };
    holds("a hold of a block, a look", blocks);
}

#[test]
#[ignore = "takes half a minute: run every night"]
fn a_look_beside_two_acquisitions_holds() {
    holds("two acquisitions, a look", with_a_look(Variant::Real));
}

#[test]
fn a_look_beside_a_second_call_holds() {
    let model = RedlockModel { rounds: 1, ..with_one_more_call(Variant::Real) };
    holds_within("a hold, one second try or renewal, a look", DEPTH_OF_LOOKS, model);
}

#[test]
fn a_look_holds_when_a_node_loses_its_data() {
    let model = RedlockModel { rounds: 1, calls: 0, ..with_a_loss(NodeRules::REAL.rejoin) };
    holds_within("a hold, one loss, a look", DEPTH_OF_LOOKS, model);
}

#[test]
fn a_look_that_believes_too_few_is_found_wrong() {
    for variant in [Variant::LooksAtTheReachable, Variant::SilentIsFree] {
        is_violated("a look that believes too few", with_a_look_at_a_hold(variant));
    }
}

#[test]
fn a_floor_that_parts_no_fences_is_found_wrong() {
    for variant in [
        Variant::FloorOneTooFew,
        Variant::FloorOfOneNode,
        Variant::FloorOfTheGreatestMark,
        Variant::FloorBesideAnAttempt,
    ] {
        let what = format!("a floor by the rule {variant:?}");
        let counters = vec![vec![0, 0, 0], vec![0, 0, 3], vec![0, 1, 3]];
        is_violated(&what, RedlockModel { counters, ..with_a_look(variant) });
    }
}
