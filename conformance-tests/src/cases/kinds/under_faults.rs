//! All kinds, while requests and answers are lost or late, and clients are cut off or gone.

use std::sync::{Arc, Mutex, PoisonError};

use lock_core::kinds::{Leader, Observation, Observer};
use lock_core::{Error, FenceCheck, FencingToken};
use tokio::task::JoinSet;

use crate::cases::tools::contest::{Contest, Holds};
use crate::cases::tools::kinds::{Kind, PERMITS, READ, TERM, WRITE};
use crate::context::Cx;
use crate::context::history::{HoldRecord, check, check_marks, conflicts, crowd};
use crate::context::seed::Seeded;
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure_exactly, fail};

cases! {
    s01_permits_are_never_more_under_faults [Faults]
        "whatever is lost, late, cut off or gone, there are never more holders than permits, and the tokens of each slot rise";
    s01_nobody_reads_beside_a_writer_under_faults [Look, Faults]
        "whatever is lost, late, cut off or gone, nobody reads beside a writer, and a resource with two marks admits all tokens";
    s01_several_names_exclude_each_other_under_faults [Faults]
        "whatever is lost, late, cut off or gone, each name of a set of locks has one holder, and its tokens rise";
    s02_terms_rise_under_faults [Faults]
        "whatever is lost, late, cut off or gone, there is one leader at a time, its term is greater than all before, and an observer sees no smaller one after it";
}

/// The holds of one part.
fn of<'a>(holds: &'a Holds, part: &str) -> &'a [HoldRecord] {
    holds.get(part).map_or(&[], Vec::as_slice)
}

/// Each of these is an exclusive lock.
fn exclude<'a>(all: impl IntoIterator<Item = &'a Vec<HoldRecord>>) -> Check {
    for holds in all {
        check(holds).map_err(Stop::violated)?;
    }
    Ok(())
}

async fn s01_permits_are_never_more_under_faults(cx: Cx) -> Check {
    let chance = Seeded::announced("s01_permits_are_never_more_under_faults");
    let slots = Contest::start(&cx, Kind::Permits, chance).await?.judged().await?;
    let all: Vec<_> = slots.values().flatten().cloned().collect();
    let crowd = crowd(&all, PERMITS as usize);
    ensure_exactly!(crowd.is_none(), "of {PERMITS} permits at the same time: {crowd:#?}");
    ensure_exactly!(slots.len() <= PERMITS as usize, "slots of {PERMITS}: {:?}", slots.keys());
    exclude(slots.values())
}

async fn s01_nobody_reads_beside_a_writer_under_faults(cx: Cx) -> Check {
    let chance = Seeded::announced("s01_nobody_reads_beside_a_writer_under_faults");
    let holds = Contest::start(&cx, Kind::Readers, chance).await?.judged().await?;
    let (reads, writes) = (of(&holds, READ), of(&holds, WRITE));
    let beside = conflicts(reads, writes);
    ensure_exactly!(beside.is_empty(), "one of two wrote, and both believed: {beside:#?}");
    check(writes).map_err(Stop::violated)?;
    check_marks(reads, writes).map_err(Stop::violated)?;
    let mut marks = FenceCheck::default();
    for (hold, writes) in in_order(reads, writes) {
        let token = FencingToken::new(hold.fence)?;
        let admitted = if writes { marks.admit(token) } else { marks.admit_reader(token) };
        let refused = admitted.err();
        ensure_exactly!(refused.is_none(), "{hold} was refused, write: {writes}: {refused:?}");
    }
    Ok(())
}

/// The accesses of those who believed when they were granted, and whether each writes.
fn in_order<'a>(
    reads: &'a [HoldRecord],
    writes: &'a [HoldRecord],
) -> impl Iterator<Item = (&'a HoldRecord, bool)> {
    let all = reads.iter().map(|read| (read, false)).chain(writes.iter().map(|it| (it, true)));
    let mut believed: Vec<_> = all.filter(|(hold, _)| hold.end() > hold.granted).collect();
    believed.sort_by_key(|(hold, _)| hold.granted);
    believed.into_iter()
}

async fn s01_several_names_exclude_each_other_under_faults(cx: Cx) -> Check {
    let chance = Seeded::announced("s01_several_names_exclude_each_other_under_faults");
    let names = Contest::start(&cx, Kind::Names, chance).await?.judged().await?;
    exclude(names.values())
}

async fn s02_terms_rise_under_faults(cx: Cx) -> Check {
    let chance = Seeded::announced("s02_terms_rise_under_faults");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut watching = JoinSet::new();
    if cx.capabilities().look {
        let election = cx.locks().await?.election("leader")?.look_every(cx.ttl() / 40);
        watching.spawn(watch(election.observe()?, Arc::clone(&seen)));
    }
    let holds = Contest::start(&cx, Kind::Leaders, chance).await?.judged().await?;
    if let Some(ended) = watching.try_join_next() {
        fail!("an observer ended: {:?}", ended?);
    }
    watching.shutdown().await;
    let terms = of(&holds, TERM);
    check(terms).map_err(Stop::violated)?;
    let mut last = None;
    for leader in seen.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let Some(term) = leader.term else { continue };
        ensure_exactly!(last <= Some(term), "an observer saw {term} after {last:?}");
        last = Some(term);
        let of_term = terms.iter().find(|hold| hold.fence == term.get());
        if let (Some(hold), Some(value)) = (of_term, &leader.value) {
            let is_its = *value == hold.client.to_string();
            ensure_exactly!(is_its, "{value:?} was shown as the leader, and it was {hold}");
        }
    }
    Ok(())
}

/// Takes down who leads, until it is ended, or ends with an error.
async fn watch(mut observer: Observer, seen: Arc<Mutex<Vec<Leader>>>) -> Error {
    loop {
        match observer.next().await {
            Ok(Observation::Leader(leader)) => {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(leader);
            }
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}
