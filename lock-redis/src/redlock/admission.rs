//! Who may vote: new quorums, and nodes that were restarted or lost their data.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, OsRng, OwnerId, Result};
use redis::Value;

use super::answer::text;
use super::config::{Bootstrap, Recover};
use super::fanout::Fanout;
use super::plan::{Marker, Plan, Report, Step, Terms, plan};
use super::quorum::{NODE_KEY, Quorum, millis};
use super::scripts::SCRIPTS;
use super::sightings::Sightings;
use super::why::{Why, Whys};
use super::wrong::Wrong;
use crate::error::unexpected;
use crate::node::Eviction;

/// Brings nodes into the vote, on demand: when one has answered that it is not admitted.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(super) quorum: Arc<Quorum>,
    /// One round at a time: the others wait for it and see what it has led to.
    pub(super) turn: tokio::sync::Mutex<()>,
    running: AtomicBool,
    /// Why nodes do not vote yet.
    whys: Mutex<Whys>,
    sightings: Mutex<Sightings>,
}

/// The longest pause between two looks of the background task.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pause after a step that a node has refused, or that has led nowhere.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The limit for one answer: this is no part of any lock's time.
const LIMIT: Duration = Duration::from_secs(1);
impl Admission {
    pub(crate) fn new(quorum: Arc<Quorum>) -> Self {
        let sightings = Mutex::new(Sightings::new(quorum.len()));
        Self {
            quorum,
            sightings,
            turn: tokio::sync::Mutex::default(),
            running: AtomicBool::new(false),
            whys: Mutex::default(),
        }
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

    /// Does what can be done now. Repeated while that leads anywhere.
    ///
    /// # Errors
    ///
    /// `Config` if a node belongs to a quorum that is configured otherwise, or evicts locks.
    pub(crate) async fn advance(&self) -> Result<Plan> {
        let _turn = self.turn.lock().await;
        let mut rounds = 0;
        let mut ripe: Vec<String> = Vec::new();
        loop {
            let reports = self.reports().await?;
            let mut plan = plan(&reports, &self.terms()?)?;
            if self.quorum.is_wrong(Wrong::RejoinsAtOnce) {
                plan.admit_at_once(&reports);
            }
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
                // Asked again at once, the node would answer the same.
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

    /// Sees to it in the background that the nodes which do not vote will.
    pub(crate) fn tend(self: &Arc<Self>) {
        if self.running.swap(true, Relaxed) {
            return;
        }
        let weak = Arc::downgrade(self);
        // Made before the task, which may end with its runtime before it has begun.
        let running = Running(Weak::clone(&weak));
        self.quorum.spawn(async move {
            let _running = running;
            // Ends with the backend, or when every node votes.
            while let Some(admission) = weak.upgrade() {
                let pause = match admission.advance().await {
                    Ok(Plan { wait: None, .. }) => return,
                    Ok(Plan { wait: Some(wait), .. }) => wait.max(Duration::from_millis(100)),
                    Err(error) => {
                        tracing::warn!(target: "distlock", %error, "the nodes of the quorum cannot be admitted");
                        LONGEST_PAUSE
                    }
                };
                let pause = admission.quorum.clock().sleep(pause.min(LONGEST_PAUSE));
                drop(admission);
                pause.await;
            }
        });
    }

    pub(super) fn terms(&self) -> Result<Terms> {
        let config = &self.quorum.config;
        Ok(Terms {
            fingerprint: self.quorum.fingerprint.clone(),
            wait: config.max_ttl
                + config.max_ttl.mul_f64(config.drift.max(0.01))
                + Duration::from_millis(50),
            boot_now: config.bootstrap == Bootstrap::Now,
            recovers: config.recover == Recover::Auto,
            used: self.quorum.has_voted(),
            boot: OwnerId::generate(&OsRng)?.to_hex(),
        })
    }

    /// Asks all nodes, and checks how they treat what they store.
    pub(super) async fn reports(&self) -> Result<Vec<Option<Report>>> {
        let mut fanout = Fanout::default();
        for node in 0..self.quorum.len() {
            let quorum = Arc::clone(&self.quorum);
            fanout.push(node, async move {
                quorum.run(node, SCRIPTS.report.call().key(NODE_KEY), LIMIT).await.and_then(report)
            });
        }
        let mut reports: Vec<_> = (0..self.quorum.len()).map(|_| None).collect();
        let mut denied = None;
        while !fanout.is_empty() {
            match fanout.next().await {
                (node, Ok(mut report)) => {
                    self.check_policy(node, &report)?;
                    self.quorum.note_mark(report.mark);
                    if report.marker() == Marker::Admitted {
                        self.quorum.note_vote();
                    }
                    let now = self.quorum.clock().now();
                    let mut sightings =
                        self.sightings.lock().unwrap_or_else(PoisonError::into_inner);
                    sightings.note(node, &mut report, now);
                    drop(sightings);
                    reports[node] = Some(report);
                }
                (node, Err(error)) => {
                    tracing::debug!(target: "distlock", endpoint = self.quorum.node(node).endpoint(), %error, "no report");
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

    fn check_policy(&self, node: usize, report: &Report) -> Result<()> {
        if report.policy.is_empty() || report.policy == "noeviction" {
            return Ok(());
        }
        let endpoint = self.quorum.node(node).endpoint();
        if self.quorum.config.eviction == Eviction::Warn {
            tracing::warn!(target: "distlock", endpoint, policy = report.policy, "a node may evict locks");
            return Ok(());
        }
        Err(Error::config(format!(
            "the Redis server at {endpoint} has the maxmemory-policy {}, under which it may evict locks: set it to noeviction, or connect with lock_eviction=warn",
            report.policy
        )))
    }

    /// Takes the steps, and says which node has refused one, and why.
    pub(super) async fn carry_out(
        &self,
        steps: &[Step],
        reports: &[Option<Report>],
    ) -> Option<String> {
        let mut failed = None;
        let mut fanout = Fanout::default();
        for step in steps {
            let (Step::Begin { node, .. } | Step::Admit { node, .. }) = step;
            let Some(seen) = reports[*node].clone() else { continue };
            let (quorum, step) = (Arc::clone(&self.quorum), step.clone());
            fanout.push(*node, async move { take_step(&quorum, &step, &seen).await });
        }
        while !fanout.is_empty() {
            let (node, done) = fanout.next().await;
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

async fn take_step(quorum: &Quorum, step: &Step, seen: &Report) -> Result<bool> {
    let answer = match step {
        Step::Begin { node, state, boot } => {
            // The bootstrap's own id is its nonce: the clients that share in it must agree on it.
            let fresh = OwnerId::generate(&OsRng)?.to_hex();
            let nonce = if *state == "boot" { boot } else { &fresh };
            let current = match seen.marker() {
                Marker::None | Marker::Stale => "",
                Marker::Boot | Marker::Quarantine | Marker::Admitted => &seen.nonce,
            };
            let call = SCRIPTS
                .begin
                .call()
                .key(NODE_KEY)
                .arg(*state)
                .arg(nonce)
                .arg(&quorum.fingerprint)
                .arg(boot)
                .arg(&seen.run_id)
                .arg(&seen.flushes)
                .arg(current);
            quorum.run(*node, call, LIMIT).await?
        }
        Step::Admit { node, seed, min_age, boot } => {
            let call = SCRIPTS
                .admit
                .call()
                .key(NODE_KEY)
                .arg(&seen.nonce)
                .number(*seed)
                .number(millis(*min_age))
                .arg(boot);
            quorum.run(*node, call, LIMIT).await?
        }
    };
    match answer {
        Value::Int(done) => Ok(done == 1),
        other => Err(unexpected("an admission", &other)),
    }
}

fn report(answer: Value) -> Result<Report> {
    let Value::Array(parts) = &answer else { return Err(unexpected("a report", &answer)) };
    if parts.len() != 12 {
        return Err(unexpected("a report", &answer));
    }
    let number = |place| text(parts, place).parse().unwrap_or(0);
    Ok(Report {
        run_id: text(parts, 0),
        uptime: Duration::from_secs(number(1)),
        flushes: text(parts, 2),
        now: number(3),
        marker_run_id: text(parts, 4),
        state: text(parts, 5),
        quorum: text(parts, 6),
        nonce: text(parts, 7),
        since: number(8),
        boot: text(parts, 9),
        mark: number(10),
        policy: text(parts, 11),
        watched: None,
    })
}
