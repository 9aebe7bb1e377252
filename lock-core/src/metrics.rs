//! Metrics on the use of a store, as a layer.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use metrics::{
    Gauge, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::{
    Attempt, Capabilities, Claim, ClaimRequest, Clock, ClockInstant, Error, FencingToken,
    LockAdmin, LockBackend, LockKey, LockLayer, LostReason, Released, Renewal, Result, SystemClock,
};

/// Reports the use of a store to the recorder of the [`metrics`] crate.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `lock_acquire_duration_seconds` | histogram: from the claim to its end of waiting | `backend`, `outcome`: `granted`, `given_up` |
/// | `lock_hold_duration_seconds` | histogram: from the grant to the release or the loss | `backend`, `outcome`: `released`, `passed_on`, `lost`, `dropped` |
/// | `lock_renewals_total` | counter | `backend`, `outcome`: `alive`, `lost`, `error` |
/// | `lock_renewal_slack_seconds` | histogram: what was left of a hold when its renewal was answered | `backend` |
/// | `lock_lost_total` | counter: holds that ended before their release | `backend`, `reason`: `taken` away, `expired`, at their `max_hold` |
/// | `lock_held`, `lock_waiting` | gauge | `backend` |
/// | `lock_backend_errors_total` | counter | `backend`, `operation`, `kind` |
///
/// Their help texts and units go to the recorder that is installed when a store gets the layer.
///
/// A lock's name is no label unless [`named_by`](Self::named_by) says so: there may be millions.
#[derive(Clone)]
pub struct MetricsLayer {
    clock: Arc<dyn Clock>,
    name: Option<NameOf>,
}

/// What the label `lock` says of a lock.
type NameOf = Arc<dyn Fn(&LockKey) -> Option<String> + Send + Sync>;

impl MetricsLayer {
    /// A layer that reads the time from `clock`.
    pub fn new(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), name: None }
    }

    /// Adds the label `lock` to the metrics of each lock for which `name` returns one. Every value is a
    /// time series of its own, so return a kind of lock ("order"), and not each single one ("order:42"):
    ///
    /// ```
    /// use lock_core::MetricsLayer;
    ///
    /// let kind = |key: &lock_core::LockKey| Some(key.name().split(':').next()?.to_owned());
    /// let layer = MetricsLayer::default().named_by(kind);
    /// ```
    #[must_use]
    pub fn named_by(
        mut self,
        name: impl Fn(&LockKey) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.name = Some(Arc::new(name));
        self
    }
}

impl fmt::Debug for MetricsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsLayer").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// On the system's clock.
impl Default for MetricsLayer {
    fn default() -> Self {
        Self::new(SystemClock::default())
    }
}

/// Tells the recorder what each metric means, and in which unit it is.
fn describe() {
    describe_histogram!(
        "lock_acquire_duration_seconds",
        Unit::Seconds,
        "From the claim of a lock to the end of its wait, by what came of it"
    );
    describe_histogram!(
        "lock_hold_duration_seconds",
        Unit::Seconds,
        "From the grant of a lock to its release or loss"
    );
    describe_histogram!(
        "lock_renewal_slack_seconds",
        Unit::Seconds,
        "What was left of a hold when its renewal was answered; near zero before locks are lost"
    );
    describe_counter!("lock_renewals_total", Unit::Count, "Renewals, by what came of them");
    describe_counter!(
        "lock_lost_total",
        Unit::Count,
        "Holds that ended before their release, by the reason"
    );
    describe_counter!(
        "lock_backend_errors_total",
        Unit::Count,
        "Calls to the store that failed, by operation and kind of error"
    );
    describe_gauge!("lock_held", Unit::Count, "Locks that are held now");
    describe_gauge!("lock_waiting", Unit::Count, "Claims that wait for a lock now");
}

impl LockLayer for MetricsLayer {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        describe();
        let backend = inner.name();
        let meter = Meter { backend, clock: Arc::clone(&self.clock), lock: None };
        Arc::new(Metered { inner, meter, name: self.name.clone() })
    }
}

#[derive(Clone, Debug)]
struct Meter {
    backend: &'static str,
    clock: Arc<dyn Clock>,
    /// The label of the lock, if it has one.
    lock: Option<String>,
}

impl Meter {
    fn labels(&self) -> Vec<Label> {
        let mut labels = vec![Label::from_static_parts("backend", self.backend)];
        labels.extend(self.lock.clone().map(|lock| Label::new("lock", lock)));
        labels
    }

    fn outcome(&self, outcome: &'static str) -> Vec<Label> {
        let mut labels = self.labels();
        labels.push(Label::from_static_parts("outcome", outcome));
        labels
    }

    fn since(&self, start: ClockInstant) -> f64 {
        self.clock.now().since(start).as_secs_f64()
    }

    fn failed(&self, operation: &'static str, error: &Error) {
        let mut labels = self.labels();
        labels.push(Label::from_static_parts("operation", operation));
        // Without the reason of a loss, which would add a label for every reason.
        let kind = format!("{:?}", error.kind());
        labels.push(Label::new("kind", kind.split('(').next().unwrap_or_default().to_owned()));
        counter!("lock_backend_errors_total", labels).increment(1);
    }
}

struct Metered {
    inner: Arc<dyn LockBackend>,
    meter: Meter,
    name: Option<NameOf>,
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Metered {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let attached = request.resume.is_some();
        let mut meter = self.meter.clone();
        meter.lock = self.name.as_ref().and_then(|name| name(&request.key));
        let inner = self.inner.claim(request)?;
        let stage = if attached {
            Stage::Unproven
        } else {
            Stage::Trying { started: self.meter.clock.now(), waiting: None }
        };
        Ok(Box::new(MeteredClaim { inner, meter, stage, end: None }))
    }

    async fn ping(&self) -> Result<()> {
        self.inner.ping().await.inspect_err(|error| self.meter.failed("ping", error))
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin()
    }
}

/// Counted by a gauge until it is dropped.
struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The stage of a claim's life.
enum Stage {
    /// It has not been granted yet; it waits after its first busy answer.
    Trying {
        started: ClockInstant,
        waiting: Option<Counted>,
    },
    /// Made from a lease token, which may be forged.
    Unproven,
    /// No start time for a hold that began elsewhere.
    Held {
        since: Option<ClockInstant>,
        _held: Counted,
    },
    Over,
}

struct MeteredClaim {
    inner: Box<dyn Claim>,
    meter: Meter,
    stage: Stage,
    /// Until when the store keeps the hold, as far as it has said so.
    end: Option<ClockInstant>,
}

impl MeteredClaim {
    fn hold(&mut self, since: Option<ClockInstant>) {
        let _held = Counted::new(gauge!("lock_held", self.meter.labels()));
        self.stage = Stage::Held { since, _held };
    }

    fn end(&mut self, of_hold: &'static str) {
        let meter = &self.meter;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Trying { started, .. } => {
                histogram!("lock_acquire_duration_seconds", meter.outcome("given_up"))
                    .record(meter.since(started));
            }
            Stage::Held { since: Some(since), .. } => {
                histogram!("lock_hold_duration_seconds", meter.outcome(of_hold))
                    .record(meter.since(since));
            }
            Stage::Held { since: None, .. } | Stage::Unproven | Stage::Over => {}
        }
    }

    /// What a renewal or a check says about the hold. The first one confirms what a lease token
    /// says.
    fn heard(&mut self, operation: &'static str, renewal: &Result<Renewal>) {
        match renewal {
            Ok(Renewal::Lost) => self.count_loss("taken"),
            Ok(Renewal::Alive { .. }) if matches!(self.stage, Stage::Unproven) => self.hold(None),
            Ok(Renewal::Alive { .. }) => {}
            Err(error) => self.meter.failed(operation, error),
        }
    }

    /// What was left of the hold when a renewal that was sent at `start` was answered.
    fn renewed(&mut self, start: ClockInstant, renewal: &Result<Renewal>) {
        let Ok(Renewal::Alive { valid_for: Some(valid_for) }) = renewal else { return };
        if let (Stage::Held { .. }, Some(end)) = (&self.stage, self.end) {
            let left = end.since(self.meter.clock.now());
            histogram!("lock_renewal_slack_seconds", self.meter.labels()).record(left);
        }
        self.end = Some(start + *valid_for);
    }

    fn count_loss(&mut self, reason: &'static str) {
        if matches!(self.stage, Stage::Held { .. }) {
            let mut labels = self.meter.labels();
            labels.push(Label::from_static_parts("reason", reason));
            counter!("lock_lost_total", labels).increment(1);
            self.end("lost");
        }
    }
}

impl fmt::Debug for MeteredClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Claim for MeteredClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let start = self.meter.clock.now();
        let attempt = self.inner.try_acquire().await;
        if let Ok(Attempt::Granted { valid_for, .. }) = &attempt {
            self.end = valid_for.map(|valid_for| start + valid_for).or(self.end);
        }
        match (&attempt, &mut self.stage) {
            (Ok(Attempt::Granted { .. }), Stage::Trying { started, .. }) => {
                histogram!("lock_acquire_duration_seconds", self.meter.outcome("granted"))
                    .record(self.meter.since(*started));
                self.hold(Some(self.meter.clock.now()));
            }
            (Ok(Attempt::Busy(_)), Stage::Trying { waiting, .. }) => {
                let gauge = || gauge!("lock_waiting", self.meter.labels());
                waiting.get_or_insert_with(|| Counted::new(gauge()));
            }
            (Ok(_), _) => {}
            (Err(error), _) => self.meter.failed("acquire", error),
        }
        attempt
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let start = self.meter.clock.now();
        let renewal = self.inner.renew().await;
        let outcome = match &renewal {
            Ok(Renewal::Alive { .. }) => "alive",
            Ok(Renewal::Lost) => "lost",
            Err(_) => "error",
        };
        counter!("lock_renewals_total", self.meter.outcome(outcome)).increment(1);
        self.renewed(start, &renewal);
        self.heard("renew", &renewal);
        renewal
    }

    async fn check(&mut self) -> Result<Renewal> {
        let renewal = self.inner.check().await;
        self.heard("check", &renewal);
        renewal
    }

    async fn release(&mut self) -> Result<Released> {
        let released = self.inner.release().await;
        match &released {
            Ok(_) => self.end("released"),
            Err(error) => self.meter.failed("release", error),
        }
        released
    }

    async fn changed(&mut self) -> Result<()> {
        self.inner.changed().await
    }

    fn lost(&mut self, reason: LostReason) {
        self.inner.lost(reason);
        self.count_loss(if reason == LostReason::MaxHold { "max_hold" } else { "expired" });
    }

    fn passed_on(&mut self, fence: FencingToken) {
        self.inner.passed_on(fence);
        match self.stage {
            Stage::Trying { started, .. } => {
                histogram!("lock_acquire_duration_seconds", self.meter.outcome("granted"))
                    .record(self.meter.since(started));
                self.stage = Stage::Over;
            }
            Stage::Held { .. } => {
                self.end("passed_on");
                self.hold(Some(self.meter.clock.now()));
            }
            Stage::Unproven | Stage::Over => {}
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.inner.detach().await.inspect_err(|error| self.meter.failed("detach", error))
    }
}

/// A claim that is dropped without a release: detached, or given up.
impl Drop for MeteredClaim {
    fn drop(&mut self) {
        self.end("dropped");
    }
}
