//! Who may vote: new quorums, and nodes that were restarted or lost their data.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, OsRng, OwnerId, Result};
use redis::Value;

use super::config::{Bootstrap, Recover};
use super::plan::{Marker, Plan, Report, Step, Terms};
use super::quorum::{Quorum, millis};
use super::round::Round;
use super::scripts::{ADMIT, BEGIN, NODE_KEY, REPORT};
use super::sightings::Sighting;
use super::why::{Why, Whys};
use crate::error::unexpected;
use crate::node::{Node, Reply};

/// Brings nodes into the vote, on demand: when one has answered that it is not admitted.
#[derive(Debug)]
pub(crate) struct Admission {
    quorum: Arc<Quorum>,
    /// One round at a time: the others wait for it and see its result. In the order of the nodes.
    turn: tokio::sync::Mutex<Vec<Option<Sighting>>>,
    running: AtomicBool,
    /// Why nodes do not vote yet.
    whys: Mutex<Whys>,
}

/// The longest pause between two rounds of the background task.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pause after a step that a node has refused, or that had no effect.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The limit for one reply: it does not count towards any lock's time.
const LIMIT: Duration = Duration::from_secs(1);

impl Admission {
    pub(crate) fn new(quorum: Arc<Quorum>) -> Self {
        let turn = tokio::sync::Mutex::new((0..quorum.len()).map(|_| None).collect());
        Self { quorum, turn, running: AtomicBool::new(false), whys: Mutex::default() }
    }

    /// Why nodes do not vote yet, if that is known.
    pub(crate) fn why(&self) -> Option<String> {
        self.whys().text(|node| self.quorum.node(node).endpoint(), self.quorum.clock().now())
    }

    fn whys(&self) -> MutexGuard<'_, Whys> {
        self.whys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_why(&self, plan: &Plan) {
        let warn = self.whys().note(&plan.why, !plan.steps.is_empty(), self.quorum.clock().now());
        if let Some(why) = self.why().filter(|_| warn) {
            tracing::warn!(target: "distlock", why, "not all nodes of the quorum vote");
        }
    }

    /// Does what can be done now, and repeats as long as there is progress.
    ///
    /// # Errors
    ///
    /// `Config` if a node belongs to a quorum with a different configuration, or evicts locks.
    pub(crate) async fn advance(&self) -> Result<Plan> {
        self.advance_with(self.recovers_with()).await
    }

    /// How many nodes must answer for them to vote again without an operator.
    fn recovers_with(&self) -> usize {
        match self.quorum.config.recover {
            Recover::Auto => self.quorum.len(),
            Recover::Manual => usize::MAX,
        }
    }

    /// What the nodes report, and what [`advance`](Self::advance) would do about it. Changes nothing.
    pub(crate) async fn look(&self) -> Result<(Vec<Option<Report>>, Plan)> {
        let mut sightings = self.turn.lock().await;
        let reports = self.reports(&mut sightings).await?;
        let plan = (self.quorum.config.rules.plan)(&reports, &self.terms(self.recovers_with())?)?;
        Ok((reports, plan))
    }

    /// See [`RedlockBackend::recover`](crate::RedlockBackend::recover).
    pub(crate) async fn recover(&self) -> Result<()> {
        let plan = self.advance_with(self.quorum.needed()).await?;
        if plan.all_vote {
            return Ok(());
        }
        let why = self.why().unwrap_or_default();
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "recovery has begun: repeat it in {:.1?}. {why}",
                plan.wait.unwrap_or_default()
            ),
        ))
    }

    /// Where too few nodes are left to seed the others, so many must answer for them to begin.
    async fn advance_with(&self, recovers_with: usize) -> Result<Plan> {
        let mut sightings = self.turn.lock().await;
        let mut rounds = 0;
        let mut ripe: Vec<String> = Vec::new();
        loop {
            let reports = self.reports(&mut sightings).await?;
            let terms = self.terms(recovers_with)?;
            let mut plan = (self.quorum.config.rules.plan)(&reports, &terms)?;
            // A seed counts only if it was read after the wait: the round that shows the wait to be
            // over may have asked the others before.
            let nonce = |step: &Step| match step {
                Step::Admit { node, min_age, .. } if !min_age.is_zero() => {
                    reports[*node].as_ref().map(|report| report.nonce.clone())
                }
                _ => None,
            };
            let ripe_now: Vec<_> = plan.steps.iter().filter_map(nonce).collect();
            let waits_for_seed = ripe_now.iter().any(|nonce| !ripe.contains(nonce));
            plan.steps.retain(|step| nonce(step).is_none_or(|nonce| ripe.contains(&nonce)));
            ripe = ripe_now;
            self.set_why(&plan);
            rounds += 1;
            if plan.steps.is_empty() && !waits_for_seed {
                return Ok(plan);
            }
            let failed = self.carry_out(&plan.steps, &reports).await;
            if failed.is_some() || rounds > 8 {
                // If asked again at once, the node would answer the same.
                plan.steps.clear();
                plan.wait = Some(plan.wait.unwrap_or_default().max(AFTER_FAILURE));
                if let Some(failed) = failed {
                    plan.why = vec![Why::all(failed)];
                }
                self.set_why(&plan);
                return Ok(plan);
            }
        }
    }

    /// Brings the nodes that do not vote back in the background.
    pub(crate) fn tend(self: &Arc<Self>) {
        if self.running.swap(true, Relaxed) {
            return;
        }
        let weak = Arc::downgrade(self);
        // Made before the task, which may end with its runtime before it has begun.
        let running = Running(Weak::clone(&weak));
        self.quorum.tasks.spawn(async move {
            let _running = running;
            // Ends with the backend, or when every node votes.
            while let Some(admission) = weak.upgrade() {
                let pause = match admission.advance().await {
                    Ok(Plan { wait: None, .. }) => return,
                    Ok(Plan { wait: Some(wait), .. }) => wait.max(Duration::from_millis(100)),
                    Err(error) => {
                        tracing::warn!(target: "distlock", %error, "cannot admit the nodes of the quorum");
                        LONGEST_PAUSE
                    }
                };
                let pause = admission.quorum.clock().sleep(pause.min(LONGEST_PAUSE));
                drop(admission);
                pause.await;
            }
        });
    }

    fn terms(&self, recovers_with: usize) -> Result<Terms> {
        let config = &self.quorum.config;
        Ok(Terms {
            fingerprint: self.quorum.fingerprint.clone(),
            wait: config.max_ttl
                + config.max_ttl.mul_f64(config.drift.max(0.01))
                + Duration::from_millis(50),
            boot_now: config.bootstrap == Bootstrap::Now,
            recovers_with,
            used: self.quorum.has_voted(),
            boot: OwnerId::generate(&OsRng)?.to_hex(),
        })
    }

    /// Asks all nodes, and checks how they treat what they store.
    async fn reports(&self, sightings: &mut [Option<Sighting>]) -> Result<Vec<Option<Report>>> {
        let mut round = self.quorum.all(|node| async move {
            let answer = node.run(REPORT.call().key(NODE_KEY), LIMIT).await;
            answer.and_then(|answer| report(&answer))
        });
        let mut reports: Vec<_> = (0..self.quorum.len()).map(|_| None).collect();
        let mut denied = None;
        while let Some((number, answer)) = round.next().await {
            let endpoint = self.quorum.node(number).endpoint();
            match answer {
                Ok(mut report) => {
                    // Not every server reports it.
                    if !report.policy.is_empty() {
                        self.quorum.config.eviction.check(endpoint, &report.policy)?;
                    }
                    self.quorum.note_mark(report.mark);
                    if report.marker() == Marker::Admitted {
                        self.quorum.note_vote();
                    }
                    let now = self.quorum.clock().now();
                    Sighting::correct(&mut sightings[number], &mut report, now);
                    reports[number] = Some(report);
                }
                Err(error) => {
                    tracing::debug!(target: "distlock", endpoint, %error, "no report");
                    if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Config) {
                        denied = Some(error);
                    }
                }
            }
        }
        match denied {
            Some(error) if reports.iter().all(Option::is_none) => Err(error),
            _ => Ok(reports),
        }
    }

    /// Takes the steps, and says which node has refused one, and why.
    async fn carry_out(&self, steps: &[Step], reports: &[Option<Report>]) -> Option<String> {
        let mut failed = None;
        let taking = steps.iter().filter_map(|step| {
            let (Step::Begin { node, .. } | Step::Admit { node, .. }) = step;
            let seen = reports[*node].clone()?;
            let (server, step) = (self.quorum.node(*node).clone(), step.clone());
            let fingerprint = self.quorum.fingerprint.clone();
            Some((*node, async move { take_step(&server, &fingerprint, &step, &seen).await }))
        });
        let mut round = Round::new(self.quorum.len(), taking);
        while let Some((node, done)) = round.next().await {
            let endpoint = self.quorum.node(node).endpoint();
            match done {
                Ok(done) => tracing::debug!(target: "distlock", endpoint, done, "admission step"),
                Err(error) => {
                    tracing::debug!(target: "distlock", endpoint, %error, "admission step failed");
                    failed = Some(format!("a node cannot be brought into the vote: {error}"));
                }
            }
        }
        failed
    }
}

/// Clears the flag when the task ends, however it does.
struct Running(Weak<Admission>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(admission) = self.0.upgrade() {
            admission.running.store(false, Relaxed);
        }
    }
}

async fn take_step(node: &Node, fingerprint: &str, step: &Step, seen: &Report) -> Result<bool> {
    let fresh = OwnerId::generate(&OsRng)?.to_hex();
    let call = match step {
        Step::Begin { state, boot, .. } => {
            // The bootstrap's own id is its nonce: the clients that share in it must agree on it.
            let nonce = if *state == "boot" { boot } else { &fresh };
            let current = match seen.marker() {
                Marker::None | Marker::Stale => "",
                Marker::Boot | Marker::Quarantine | Marker::Admitted => &seen.nonce,
            };
            let call = BEGIN.call().key(NODE_KEY).arg(*state).arg(nonce).arg(fingerprint);
            call.arg(boot).arg(&seen.run_id).arg(&seen.flushes).arg(current)
        }
        Step::Admit { seed, min_age, boot, .. } => {
            let call = ADMIT.call().key(NODE_KEY).arg(&seen.nonce).number(*seed);
            call.number(millis(*min_age)).arg(boot)
        }
    };
    match node.run(call, LIMIT).await? {
        Value::Int(done) => Ok(done == 1),
        other => Err(unexpected("an admission", &other)),
    }
}

pub(super) fn report(answer: &Value) -> Result<Report> {
    let reply = Reply::new("a report", answer)?;
    let number = |at| reply.text(at).map(|text| text.parse::<u64>().unwrap_or(0));
    let (now, since) = (number(3)?, number(8)?);
    Ok(Report {
        run_id: reply.text(0)?,
        uptime: Duration::from_secs(number(1)?),
        flushes: reply.text(2)?,
        now,
        marker_run_id: reply.text(4)?,
        state: reply.text(5)?,
        quorum: reply.text(6)?,
        nonce: reply.text(7)?,
        age: Duration::from_micros(now.saturating_sub(since)),
        boot: reply.text(9)?,
        mark: number(10)?,
        policy: reply.text(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_quorum_is_read_whole() {
        let name = "a-node-with-a-long-name.example:6379,".repeat(15);
        let mut fields = vec![Value::BulkString(b"7".to_vec()); 12];
        fields[6] = Value::BulkString(name.clone().into_bytes());
        assert_eq!(report(&Value::Array(fields)).unwrap().quorum, name);
    }
}
