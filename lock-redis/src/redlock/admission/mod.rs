//! Who may vote: new quorums, and nodes that were restarted or lost their data.

pub(crate) mod plan;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind, OsRng, OwnerId, Result};
use lock_kit::attendant::{Attendants, Requests};
use lock_kit::runtime;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, oneshot};

pub(crate) use self::plan::{
    AdmissionPlan, AdmissionStep, AdmissionTerms, Marker, NodeReport, NonVoter, NonVoters,
};
use super::config::{Bootstrap, Recover};
use super::quorum::fan_out::{FanOut, decisive, final_kind};
use super::quorum::scripts::{ADMIT, BEGIN, NODE_KEY, REPORT};
use super::quorum::{Quorum, millis};
use super::rules;
use crate::node::{Node, ReplyReader, is_one};

/// Brings nodes into the vote, on demand: when one has answered that it is not admitted.
#[derive(Debug)]
pub(crate) struct Admission {
    quorum: Arc<Quorum>,
    /// In the order of the nodes.
    clocks: Mutex<Vec<Option<QuarantineClock>>>,
    /// Who waits for a plan. It is drawn up in a task beside them, since a call that nobody polls must not hold up the others.
    waiting: Attendants<PlanSender>,
    /// Locked while a task brings nodes back.
    tended: Arc<tokio::sync::Mutex<()>>,
    /// Tells that task of a node that was heard to give no vote.
    heard: Arc<Notify>,
    /// Why nodes do not vote yet.
    non_voters: Mutex<NonVoters>,
}

type PlanSender = oneshot::Sender<Result<AdmissionPlan>>;

/// The longest pause between two rounds of the background task.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest rest on top of such a pause, see [`longer`].
const LONGEST_REST: Duration = Duration::from_secs(28);
/// The pause after a step that a node has refused, or that had no effect.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The limit for one reply: it does not count towards any lock's time.
const LIMIT: Duration = Duration::from_secs(1);

impl Admission {
    pub(crate) fn new(quorum: Arc<Quorum>) -> Self {
        let clocks = Mutex::new((0..quorum.len()).map(|_| None).collect());
        let (waiting, tended, heard, non_voters) = Default::default();
        Self { quorum, clocks, waiting, tended, heard, non_voters }
    }

    /// Why nodes do not vote yet, if that is known.
    pub(crate) fn why(&self) -> Option<String> {
        self.non_voters
            .lock()
            .text(|node| self.quorum.node(node).endpoint(), self.quorum.clock().now())
    }

    fn set_why(&self, why: &[NonVoter], is_under_way: bool) {
        let now = self.quorum.clock().now();
        let warn = self.non_voters.lock().note(why, is_under_way, now);
        if let Some(why) = self.why().filter(|_| warn) {
            tracing::warn!(target: "distlock", why, "not all nodes of the quorum vote");
        }
    }

    /// Does what can be done now, and repeats as long as there is progress. Those who call while that is under way
    /// share what comes next.
    ///
    /// # Errors
    ///
    /// `Config` if two of the nodes are one server, or outside of a runtime; `Closed`.
    pub(crate) async fn advance(self: &Arc<Self>) -> Result<AdmissionPlan> {
        runtime::current("Redlock")?;
        let (sender, plan) = oneshot::channel();
        self.waiting.ask(sender, |waiting| Arc::clone(self).serve(waiting));
        plan.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Closed, "the client was closed, or its runtime"))
        })
    }

    async fn serve(self: Arc<Self>, mut waiting: Requests<PlanSender>) {
        let served = async {
            while let Some(waiting) = waiting.next(Duration::ZERO).await {
                // Nothing is begun for those who have left.
                if waiting.iter().all(oneshot::Sender::is_closed) {
                    continue;
                }
                let plan = self.go_on(self.recovers_with()).await;
                for sender in waiting {
                    let _ = sender.send(plan.clone());
                }
            }
        };
        tokio::select! {
            () = self.quorum.tasks.closing() => {}
            () = served => {}
        }
    }

    /// How many nodes must answer for them to vote again without an operator.
    fn recovers_with(&self) -> usize {
        match self.quorum.config.recover {
            Recover::Auto => self.quorum.len(),
            Recover::Manual => usize::MAX,
        }
    }

    /// What the nodes report, and what [`advance`](Self::advance) would do about it. Changes nothing.
    pub(crate) async fn look(&self) -> Result<(Vec<Option<NodeReport>>, AdmissionPlan)> {
        self.round(self.recovers_with()).await
    }

    /// See [`RedlockBackend::recover`](crate::RedlockBackend::recover).
    pub(crate) async fn recover(&self) -> Result<()> {
        let plan = self.go_on(self.quorum.needed()).await?;
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
    async fn go_on(&self, recovers_with: usize) -> Result<AdmissionPlan> {
        let mut rounds = 0;
        let mut ripe: Vec<String> = Vec::new();
        loop {
            let (reports, mut plan) = self.round(recovers_with).await?;
            // A seed counts only if it was read after the wait: the round that shows the wait to be
            // over may have asked the others before.
            let nonce = |step: &AdmissionStep| match step {
                AdmissionStep::Admit { node, min_age, .. } if !min_age.is_zero() => {
                    reports[*node].as_ref().map(|report| report.nonce.clone())
                }
                _ => None,
            };
            let ripe_now: Vec<_> = plan.steps.iter().filter_map(nonce).collect();
            let waits_for_seed = ripe_now.iter().any(|nonce| !ripe.contains(nonce));
            plan.steps.retain(|step| nonce(step).is_none_or(|nonce| ripe.contains(&nonce)));
            ripe = ripe_now;
            self.set_why(&plan.why, waits_for_seed || !plan.steps.is_empty());
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
                    plan.why.push(NonVoter::all(failed));
                }
                self.set_why(&plan.why, false);
                return Ok(plan);
            }
        }
    }

    /// Brings the nodes that do not vote back in the background.
    pub(crate) fn tend(self: &Arc<Self>) {
        let Ok(tended) = Arc::clone(&self.tended).try_lock_owned() else {
            return self.heard.notify_one();
        };
        let (weak, heard) = (Arc::downgrade(self), Arc::clone(&self.heard));
        self.quorum.tasks.spawn(async move {
            // Until the task ends, or its runtime.
            let _tended = tended;
            let mut rest = Duration::ZERO;
            // Ends with the backend, or when every node votes.
            while let Some(admission) = weak.upgrade() {
                let (pause, all_vote) = match admission.advance().await {
                    Ok(AdmissionPlan { wait: None, .. }) => return,
                    Ok(AdmissionPlan { wait: Some(wait), all_vote, .. }) => {
                        (wait.max(Duration::from_millis(100)), all_vote)
                    }
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(error) => {
                        admission.set_why(&[NonVoter::all(error.to_string())], false);
                        // That does not pass by itself. After this pause, the next one that hears of a node without a
                        // vote begins again.
                        let pause = admission.quorum.clock().sleep(LONGEST_PAUSE);
                        drop(admission);
                        return pause.await;
                    }
                };
                rest = if all_vote { longer(rest) } else { Duration::ZERO };
                let (clock, pause) = (admission.quorum.clock(), pause.min(LONGEST_PAUSE));
                let (pause, rested) = (clock.sleep(pause), clock.sleep(pause + rest));
                drop(admission);
                pause.await;
                tokio::select! {
                    () = rested => {}
                    () = heard.notified() => {}
                }
            }
        });
    }

    fn terms(&self, recovers_with: usize) -> Result<AdmissionTerms> {
        let config = &self.quorum.config;
        Ok(AdmissionTerms {
            fingerprints: self.quorum.fingerprints.clone(),
            wait: config.quarantine(),
            moves: config.lag().is_some(),
            boot_now: config.bootstrap == Bootstrap::Now,
            recovers_with,
            used: self.quorum.has_voted(),
            boot: OwnerId::generate(&OsRng)?.to_hex(),
        })
    }

    /// Asks all nodes, and draws up a plan for those that can be used.
    async fn round(
        &self,
        recovers_with: usize,
    ) -> Result<(Vec<Option<NodeReport>>, AdmissionPlan)> {
        let reports = self.reports().await?;
        self.tell_apart(&reports)?;
        let (mut usable, mut evicting) = (reports.clone(), Vec::new());
        for (node, report) in usable.iter_mut().enumerate() {
            let policy = report.as_ref().map_or("", |report| &report.policy);
            let endpoint = self.quorum.node(node).endpoint();
            // Not every server reports it.
            if policy.is_empty() {
                continue;
            }
            if let Err(error) = self.quorum.config.eviction.check(endpoint, policy) {
                *report = None;
                evicting.push((node, error));
            }
        }
        let mut plan = plan::plan(&usable, &self.terms(recovers_with)?);
        for (node, error) in evicting {
            plan.leave_out(node, format!("cannot be used: {error}"));
        }
        Ok((reports, plan))
    }

    /// Each vote must come from a server of its own.
    fn tell_apart(&self, reports: &[Option<NodeReport>]) -> Result<()> {
        let run_id = |node: usize| reports[node].as_ref().map(|report| &report.run_id);
        for node in 0..reports.len() {
            let twin =
                (0..node).find(|other| run_id(node).is_some() && run_id(*other) == run_id(node));
            if let Some(twin) = twin {
                let [one, other] = [twin, node].map(|node| self.quorum.node(node).endpoint());
                return Err(Error::config(format!(
                    "the Redlock nodes {one} and {other} are one server: each vote must come from a separate one"
                )));
            }
        }
        Ok(())
    }

    async fn reports(&self) -> Result<Vec<Option<NodeReport>>> {
        let asked = self.quorum.clock().now();
        let mut round = self.quorum.all(|node| async move {
            node.ask(REPORT.call().key(NODE_KEY), LIMIT, |answer| report(&answer)).await
        });
        let mut reports: Vec<_> = (0..self.quorum.len()).map(|_| None).collect();
        let mut failed = Vec::new();
        while let Some((number, answer)) = round.next().await {
            let endpoint = self.quorum.node(number).endpoint();
            match answer {
                Ok(mut report) => {
                    self.quorum.note_mark(report.mark);
                    if report.marker() == Marker::Admitted {
                        self.quorum.note_vote();
                    }
                    let now = self.quorum.clock().now();
                    let times = (asked, now);
                    QuarantineClock::correct(&mut self.clocks.lock()[number], &mut report, times);
                    reports[number] = Some(report);
                }
                Err(error) => {
                    tracing::debug!(target: "distlock", endpoint, %error, "no report");
                    failed.push((endpoint, error));
                }
            }
        }
        // Those that are only away may come back, and make a quorum.
        let spare = self.quorum.len() - self.quorum.needed();
        let lasting = failed.into_iter().filter(|(_, error)| final_kind(error).is_some());
        match decisive(lasting, spare) {
            Some((endpoint, error)) if reports.iter().all(Option::is_none) => {
                let text = format!("the node {endpoint} of the quorum cannot be used: {error}");
                Err(Error::new(error.kind(), text).with_retryable(false))
            }
            _ => Ok(reports),
        }
    }

    /// Takes the steps, and says which node has refused one, and why.
    async fn carry_out(
        &self,
        steps: &[AdmissionStep],
        reports: &[Option<NodeReport>],
    ) -> Option<String> {
        let mut failed = None;
        let taking = steps.iter().filter_map(|step| {
            let (node, step) = (step.node(), step.clone());
            let seen = reports[node].clone()?;
            let server = Arc::clone(self.quorum.node(node));
            let fingerprint = self.quorum.fingerprints[node].clone();
            Some((node, async move { take_step(&server, &fingerprint, &step, &seen).await }))
        });
        let mut round = FanOut::new(self.quorum.len(), taking);
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

/// How long the background task rests on top of its pause, after a rest of `before`: nodes that are away are all that is
/// missing, perhaps for weeks, and one that comes back without its vote is heard.
fn longer(before: Duration) -> Duration {
    (before * 2).clamp(AFTER_FAILURE, LONGEST_REST)
}

async fn take_step(
    node: &Node,
    fingerprint: &str,
    step: &AdmissionStep,
    seen: &NodeReport,
) -> Result<bool> {
    let fresh = OwnerId::generate(&OsRng)?.to_hex();
    let call = match step {
        AdmissionStep::Begin { state, boot, .. } => {
            // The bootstrap's own id is its nonce: the clients that share in it must agree on it.
            let nonce = if *state == "boot" { boot } else { &fresh };
            let current = match seen.marker() {
                Marker::None | Marker::Stale => "",
                Marker::Boot | Marker::Quarantine | Marker::Admitted => &seen.nonce,
            };
            let call = BEGIN.call().key(NODE_KEY).arg(*state).arg(nonce).arg(fingerprint);
            call.arg(boot).arg(&seen.run_id).arg(&seen.flushes).arg(current)
        }
        AdmissionStep::Admit { seed, min_age, boot, .. } => {
            let call = ADMIT.call().key(NODE_KEY).arg(&seen.nonce).number(*seed);
            call.number(millis(*min_age)).arg(boot)
        }
    };
    node.ask(call, LIMIT, |answer| is_one("an admission", &answer)).await
}

pub(super) fn report(answer: &Value) -> Result<NodeReport> {
    let reply = ReplyReader::new("a report", answer)?;
    let number = |at| reply.text(at).map(|text| text.parse::<u64>().unwrap_or(0));
    let (now, since) = (number(3)?, number(8)?);
    Ok(NodeReport {
        run_id: reply.text(0)?,
        uptime: Duration::from_secs(number(1)?),
        flushes: reply.text(2)?,
        now,
        marker_run_id: reply.text(4)?,
        state: reply.text(5)?,
        quorum: reply.text(6)?,
        nonce: reply.text(7)?,
        age: Duration::from_micros(now.saturating_sub(since)),
        is_ahead: since > now,
        boot: reply.text(9)?,
        mark: number(10)?,
        policy: reply.text(11)?,
    })
}

/// The wait that a node is in, as this client has first seen it.
///
/// A node's own clock, and the uptime that Redis computes from it, may be set forward in the middle
/// of a quarantine. A client that has watched the quarantine counts the lesser of what the node's
/// clock and its own monotonic clock say.
#[derive(Debug)]
pub(crate) struct QuarantineClock {
    nonce: String,
    run_id: String,
    at: ClockInstant,
    /// The node's own word, then.
    age: Duration,
}

impl QuarantineClock {
    /// Corrects the age in a report by what was seen before, and notes what is seen now, unless another round has
    /// seen something else since this one was `asked` for: that may be younger.
    pub(crate) fn correct(
        seen: &mut Option<Self>,
        report: &mut NodeReport,
        (asked, now): (ClockInstant, ClockInstant),
    ) {
        match seen {
            Some(seen) if seen.nonce == report.nonce && seen.run_id == report.run_id => {
                report.age = report.age.min(seen.age + now.since(seen.at));
            }
            Some(seen) if asked < seen.at => {}
            _ => {
                let (nonce, run_id) = (report.nonce.clone(), report.run_id.clone());
                *seen = Some(Self { nonce, run_id, at: now, age: report.age });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::ops::Range;
    use std::task::{Context, Poll, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::RedlockConfig;

    /// The address of a server that wants a password.
    async fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let refusal =
                    "-NOAUTH HELLO must be called with the client already authenticated\r\n";
                let mut asked = [0; 1024];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(refusal.repeat(4).as_bytes()).await;
                while matches!(stream.read(&mut asked).await, Ok(1..)) {}
            }
        });
        address.to_string()
    }

    async fn admission() -> Arc<Admission> {
        let nodes = [closed().await, closed().await, closed().await].join(",");
        let url = format!("redlock://{nodes}?lock_quorum_name=q");
        let quorum = Quorum::new(RedlockConfig::from_url(&url).unwrap()).unwrap();
        Arc::new(Admission::new(Arc::new(quorum)))
    }

    #[tokio::test]
    async fn a_call_that_is_not_polled_stops_no_other() {
        let admission = admission().await;
        let mut advance = Box::pin(admission.advance());
        let mut look = Box::pin(admission.look());
        let mut recover = Box::pin(admission.recover());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(advance.as_mut().poll(context).is_pending());
        assert!(look.as_mut().poll(context).is_pending());
        assert!(recover.as_mut().poll(context).is_pending());
        let others = async {
            admission.advance().await.unwrap_err();
            admission.look().await.unwrap_err();
            admission.recover().await.unwrap_err();
        };
        assert!(tokio::time::timeout(LONGEST_PAUSE, others).await.is_ok(), "they wait for it");
    }

    #[test]
    fn outside_of_a_runtime_is_an_error() {
        let nodes = RedlockConfig::from_url("redlock://a,b,c?lock_quorum_name=q").unwrap();
        let connecting = std::pin::pin!(crate::RedlockBackend::connect(nodes.clone()));
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(Err(error)) = connecting.poll(context) else { panic!("it waits") };
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let admission = Arc::new(Admission::new(Arc::new(Quorum::new(nodes).unwrap())));
        let advancing = std::pin::pin!(admission.advance());
        let Poll::Ready(Err(error)) = advancing.poll(context) else { panic!("it waits") };
        assert!(error.to_string().contains("call from within one"), "{error}");
    }

    #[tokio::test]
    async fn a_client_that_is_closed_blames_no_node() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nodes = [closed().await, closed().await, silent.local_addr().unwrap().to_string()];
        let url = format!("redlock://{}?lock_quorum_name=q", nodes.join(","));
        let quorum = Arc::new(Quorum::new(RedlockConfig::from_url(&url).unwrap()).unwrap());
        let admission = Arc::new(Admission::new(Arc::clone(&quorum)));
        admission.tend();
        tokio::time::sleep(Duration::from_millis(50)).await;
        quorum.close().await;
        let ended = tokio::time::timeout(LIMIT, admission.tended.lock()).await;
        assert!(ended.is_ok(), "it goes on");
        assert_eq!(admission.why(), None);
    }

    #[tokio::test]
    async fn what_does_not_pass_by_itself_ends_the_background_task() {
        let admission = admission().await;
        let begun = tokio::time::Instant::now();
        admission.tend();
        let ended = tokio::time::timeout(LONGEST_PAUSE * 3 / 2, admission.tended.lock()).await;
        assert!(ended.is_ok(), "it goes on");
        assert!(
            begun.elapsed() >= LONGEST_PAUSE,
            "the next answer would begin the next one at once"
        );
        let why = admission.why().unwrap_or_default();
        assert!(why.contains("refused the credentials"), "{why}");
    }

    #[test]
    fn the_name_of_a_quorum_is_read_whole() {
        let name = "a-node-with-a-long-name.example:6379,".repeat(15);
        let mut fields = vec![Value::BulkString(b"7".to_vec()); 12];
        fields[6] = Value::BulkString(name.clone().into_bytes());
        assert_eq!(report(&Value::Array(fields)).unwrap().quorum, name);
    }

    #[test]
    fn a_clock_that_is_set_forward_ends_no_wait() {
        let start = ClockInstant::from_nanos(5_000_000_000);
        let mut seen = None;
        let mut age_of = |nonce: &str, age: u64, round: Range<u64>| {
            let age = Duration::from_secs(age);
            let mut report = NodeReport { nonce: nonce.to_owned(), age, ..NodeReport::default() };
            let [asked, now] = [round.start, round.end].map(|at| start + Duration::from_secs(at));
            QuarantineClock::correct(&mut seen, &mut report, (asked, now));
            report.age.as_secs()
        };
        assert_eq!(age_of("a", 2, 0..0), 2, "the node's word counts at first");
        assert_eq!(age_of("a", 37, 1..1), 3, "35 s in one second are a jump");
        assert_eq!(age_of("a", 4, 5..5), 4, "the lesser counts");
        assert_eq!(age_of("b", 1, 6..6), 1, "another wait");
        assert_eq!(age_of("a", 5, 5..7), 5, "an answer that is late");
        assert_eq!(age_of("b", 9, 7..7), 2);
    }
}
