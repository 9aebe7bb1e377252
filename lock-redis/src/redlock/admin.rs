//! Inspects the locks of a quorum and releases them by force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Error, FencingToken, Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released,
    Result, Victim, async_trait,
};

use super::admission::{AdmissionPlan, Marker, NodeReport, NonVoter};
use super::quorum::Quorum;
use super::quorum::scripts::{FORCE_VOTE, INSPECT};
use super::{LIMIT, RedlockBackend};
use crate::names::Keys;
use crate::node::{ReplyReader, is_one};

/// How many keys one request reads, of which few may be locks.
const BATCH: usize = 250;

/// What one node knows about a lock.
#[derive(Clone, Debug)]
pub(super) struct KnownVote {
    /// Names the hold, and is the owner of one of ours.
    mark: Vec<u8>,
    left: Option<Duration>,
    counter: Option<u64>,
    since: Option<u64>,
    label: String,
    now: u64,
}

/// Any key that may be a lock.
fn no_part(found: &str) -> Option<&str> {
    (!Keys::is_part(found)).then_some(found)
}

#[async_trait]
impl LockAdmin for RedlockBackend {
    /// The lock is held if a quorum of nodes show the same holder.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let mut found = self.inspect_all(std::slice::from_ref(key), false).await?;
        Ok(found.pop())
    }

    /// Walks through the keys of every node with `SCAN`, which does not block the node, and finds the locks that this
    /// library holds. A lock that only a plain client holds looks like any other string: inspect it by name.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let wanted: Arc<(String, String)> = Arc::new((prefix.to_owned(), name_start.to_owned()));
        let mut round = self.quorum.all(|node| {
            let wanted = Arc::clone(&wanted);
            let keys = ("", no_part as fn(&str) -> Option<&str>);
            async move { node.find((&wanted.0, &wanted.1), keys, LIMIT).await }
        });
        // What is held, is held on a quorum, so any quorum knows of it.
        let answers = round.gather(self.quorum.needed(), self.quorum.clock(), |_| true).await?;
        let keys: BTreeSet<_> = answers.into_iter().flatten().map(|(key, _)| key).collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let mut locks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            locks.extend(self.inspect_all(keys, true).await?);
        }
        Ok(locks)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let keys = Arc::new(Keys::new(key));
        let mut round = self.quorum.all(|node| {
            let (keys, victim) = (Arc::clone(&keys), victim.clone());
            async move {
                let waiters = keys.part("channels");
                let call = FORCE_VOTE.call().key(&keys.lock).key(&waiters);
                node.ask(call.victim(&victim), LIMIT, |answer| is_one("a forced release", &answer))
                    .await
            }
        });
        let (needed, all) = (self.quorum.needed(), self.quorum.len());
        let answers = round.collect(needed, all).await.map_err(Error::with_unknown_effect)?;
        let freed = answers.contains(&true);
        Ok(if freed { Released::Freed } else { Released::AlreadyGone })
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let quorum = &self.quorum;
        let (reports, plan) = self.admission.look().await?;
        let standing = QuorumState { reports, plan };
        let mut findings = vec![vote(quorum, &standing)];
        findings.extend(standing.plan.why.iter().filter_map(|why| quorum_waits(quorum, why)));
        let mut round = quorum
            .all(|node| async move { node.diagnose(|_, _| Vec::new(), DIAGNOSIS_LIMIT).await });
        while let Some((number, found)) = round.next().await {
            let endpoint = quorum.node(number).endpoint();
            match found {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(silent(endpoint, &error)),
            }
            findings.extend(node_state(endpoint, number, &standing));
        }
        Ok(findings)
    }

    async fn recover(&self) -> Result<()> {
        Self::recover(self).await
    }
}

impl RedlockBackend {
    /// Those of `keys` that are held, or only those of them that this library holds.
    async fn inspect_all(&self, keys: &[LockKey], only_ours: bool) -> Result<Vec<LockInfo>> {
        let names: Arc<Vec<_>> = Arc::new(keys.iter().map(LockKey::encode).collect());
        let mut round = self.quorum.all(|node| {
            let names = Arc::clone(&names);
            async move {
                let call = INSPECT.call().keys(&*names).flag(only_ours);
                let read = |answer| ReplyReader::lists("an inspection", &answer, names.len(), seen);
                node.ask(call, LIMIT, read).await
            }
        });
        let suffice = |answers: &[Vec<_>]| (0..keys.len()).all(|at| self.is_decided(answers, at));
        let answers = round.gather(self.quorum.needed(), self.quorum.clock(), suffice).await?;
        let holder = |at: usize| {
            self.holder(answers.iter().filter_map(|answer| answer[at].clone()).collect())
        };
        let locks = keys
            .iter()
            .enumerate()
            .filter_map(|(at, key)| Some(LockInfo::new(key.clone(), Some(holder(at)?), None)));
        Ok(locks.collect())
    }

    /// Whether the nodes that have not answered cannot change who has the lock at this place.
    fn is_decided(&self, answers: &[Vec<Option<KnownVote>>], at: usize) -> bool {
        let silent = self.quorum.len() - answers.len();
        let marks = || answers.iter().filter_map(|answer| Some(&answer[at].as_ref()?.mark));
        let most = marks().map(|mark| marks().filter(|other| *other == mark).count()).max();
        most.is_none_or(|most| most >= self.quorum.needed() || most + silent < self.quorum.needed())
    }

    fn holder(&self, seen: Vec<KnownVote>) -> Option<HolderInfo> {
        let all_with = |mark| seen.iter().filter(move |seen| &seen.mark == mark);
        let is_quorum = |mark| all_with(mark).count() >= self.quorum.needed();
        let mark = seen.iter().map(|seen| &seen.mark).find(|mark| is_quorum(*mark))?;
        let all = || all_with(mark);
        let owner = std::str::from_utf8(mark).ok().and_then(|owner| owner.parse().ok());
        let mut info = HolderInfo::new(HolderMark::new(mark.clone()));
        info.owner = owner;
        if info.owner.is_some() {
            // The value that a quorum shows is the fence; the others joined later.
            let counters: Vec<_> = all().filter_map(|seen| seen.counter).collect();
            let same = |value: &&u64| {
                counters.iter().filter(|other| other == value).count() >= self.quorum.needed()
            };
            info.fence = counters.iter().find(same).and_then(|f| FencingToken::answered(*f).ok());
            let since = all().filter_map(|seen| Some(seen.now.saturating_sub(seen.since?)));
            info.held_for = since.max().map(Duration::from_micros);
            info.label = all().map(|seen| seen.label.clone()).find(|label| !label.is_empty());
        }
        let mut left: Vec<_> = all().filter_map(|seen| seen.left).collect();
        left.sort_by(|a, b| b.cmp(a));
        info.expires_in = left.get(self.quorum.needed() - 1).copied();
        Some(info)
    }
}

pub(super) fn seen(reply: ReplyReader<'_>) -> Result<Option<KnownVote>> {
    if reply.len() == 1 {
        return Ok(None);
    }
    let number = |at| reply.text(at).map(|text| text.parse().ok());
    Ok(Some(KnownVote {
        mark: reply.bytes(0)?.to_vec(),
        left: reply.millis(1)?,
        counter: number(2)?,
        since: number(3)?,
        label: reply.text(4)?,
        now: number(5)?.unwrap_or(0),
    }))
}

/// The limit for one request to one node, when an operator has asked.
const DIAGNOSIS_LIMIT: Duration = Duration::from_secs(2);

/// What the nodes have reported, and what follows from it.
struct QuorumState {
    reports: Vec<Option<NodeReport>>,
    plan: AdmissionPlan,
}

impl QuorumState {
    fn voting(&self) -> usize {
        (0..self.reports.len()).filter(|node| self.votes(*node)).count()
    }

    /// Whether the node votes for clients like this one.
    fn votes(&self, node: usize) -> bool {
        let report = self.reports[node].as_ref();
        report.is_some_and(|report| report.marker() == Marker::Admitted)
            && !self.plan.why.iter().any(|why| why.node == Some(node))
    }
}

/// Whether a lock can be taken.
fn vote(quorum: &Quorum, standing: &QuorumState) -> Finding {
    let (voting, all, needed) = (standing.voting(), quorum.len(), quorum.needed());
    let what = format!("{voting} of {all} nodes vote, and {needed} must");
    if voting >= needed {
        return Finding::info(what);
    }
    let remedy = match standing.plan.why.iter().find_map(|why| why.left) {
        Some(left) => format!("wait for {left:.0?}"),
        None => "start the nodes that do not answer; if the data of all of them are lost and it is certain that those that answer are the right ones, `distlock recover` lets them vote again".to_owned(),
    };
    Finding::critical(format!("{what}: no lock can be taken"), remedy)
}

/// What the quorum as a whole waits for.
fn quorum_waits(quorum: &Quorum, why: &NonVoter) -> Option<Finding> {
    if why.node.is_some() {
        return None;
    }
    let what = why.text(|node| quorum.node(node).endpoint(), Duration::ZERO);
    Some(Finding::warning(
        what,
        "wait until then; if no time is given, start the nodes that do not answer",
    ))
}

fn silent(endpoint: &str, error: &Error) -> Finding {
    Finding::warning(
        format!("the node {endpoint} cannot be used: {error}"),
        "start it, or mend the way to it: while it is away, one more failure can stop all locks",
    )
}

/// What a node that answers does, or waits for.
fn node_state(endpoint: &str, number: usize, standing: &QuorumState) -> Option<Finding> {
    standing.reports[number].as_ref()?;
    if standing.votes(number) {
        return Some(Finding::info(format!("the node {endpoint} votes")));
    }
    let waits = standing.plan.why.iter().find(|why| why.node == Some(number));
    let state = match waits {
        Some(why) => why.text(|_| endpoint, Duration::ZERO),
        None => format!("{endpoint} is not admitted"),
    };
    Some(Finding::warning(
        format!("the node {endpoint} does not vote: {state}"),
        "nothing needs to be done if it gives the time after which it votes; otherwise start the other nodes, or, if you are certain that those that answer are the right ones, call `distlock recover`",
    ))
}
