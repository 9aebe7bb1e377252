//! Metrics on the use of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{EndOfHold, LockEvent, LockObserver};
use crate::{Error, LockKey, LockLayer, LostReason, Operation};

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
/// Durations are by the clock of the `Locks`. The help texts and units go to the recorder that is installed when a
/// store gets the layer.
///
/// A lock's name is not a label unless you use [`named_by`](Self::named_by): there may be millions of names.
#[derive(Clone, Default)]
pub struct MetricsLayer {
    name: Option<NameOf>,
}

/// What the label `lock` says of a lock.
type NameOf = Arc<dyn Fn(&LockKey) -> Option<String> + Send + Sync>;

impl MetricsLayer {
    /// Adds the label `lock` to the metrics of each lock for which `name` returns one. It must always return the
    /// same label for a lock. Every label is a separate time series, so return a kind of lock ("order"), not each
    /// single one ("order:42"):
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::MetricsLayer;
    ///
    /// let kind = |key: &distlock::LockKey| Some(key.name().split(':').next()?.to_owned());
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
        f.debug_struct("MetricsLayer").finish_non_exhaustive()
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
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        describe();
        Some(Arc::new(self.clone()))
    }
}

impl LockObserver for MetricsLayer {
    fn observe(&self, store: &'static str, lock: Option<&LockKey>, event: LockEvent<'_>) {
        let mut labels = vec![Label::from_static_parts("backend", store)];
        let name = self.name.as_ref().zip(lock).and_then(|(name, lock)| name(lock));
        labels.extend(name.map(|name| Label::new("lock", name)));
        let with = |label: &'static str, value: &'static str| {
            let label = Label::from_static_parts(label, value);
            labels.iter().cloned().chain([label]).collect::<Vec<_>>()
        };
        let waits = |difference: f64| gauge!("lock_waiting", labels.clone()).increment(difference);
        let held = |difference: f64| gauge!("lock_held", labels.clone()).increment(difference);
        let acquired = |outcome, waited, after: Duration| {
            histogram!("lock_acquire_duration_seconds", with("outcome", outcome)).record(after);
            if waited {
                waits(-1.0);
            }
        };
        let renewed =
            |outcome| counter!("lock_renewals_total", with("outcome", outcome)).increment(1);
        match event {
            LockEvent::Wanted { waits: true } => waits(1.0),
            LockEvent::Wanted { waits: false } => {}
            LockEvent::Granted { waits, after } => {
                acquired("granted", waits, after);
                held(1.0);
            }
            LockEvent::GivenUp { waits, after } => acquired("given_up", waits, after),
            LockEvent::Attached => held(1.0),
            LockEvent::Renewed { is_alive, left } => {
                renewed(if is_alive { "alive" } else { "lost" });
                if let Some(left) = left {
                    histogram!("lock_renewal_slack_seconds", labels).record(left);
                }
            }
            LockEvent::Ended { end, after } => {
                held(-1.0);
                if let Some(after) = after {
                    let outcome = with("outcome", outcome(end));
                    histogram!("lock_hold_duration_seconds", outcome).record(after);
                }
                if let EndOfHold::Lost(reason) = end {
                    counter!("lock_lost_total", with("reason", cause(reason))).increment(1);
                }
            }
            LockEvent::CallFailed { operation, error } => {
                if operation == Operation::Renew {
                    renewed("error");
                }
                labels.push(Label::new("operation", operation.to_string()));
                labels.push(kind(error));
                counter!("lock_backend_errors_total", labels).increment(1);
            }
        }
    }
}

fn outcome(end: EndOfHold) -> &'static str {
    match end {
        EndOfHold::Released => "released",
        EndOfHold::PassedOn => "passed_on",
        EndOfHold::Lost(_) => "lost",
        EndOfHold::Dropped => "dropped",
    }
}

fn cause(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Taken => "taken",
        LostReason::MaxHold => "max_hold",
        _ => "expired",
    }
}

/// Without the reason of a loss, which would add a label for every reason.
fn kind(error: &Error) -> Label {
    let kind = format!("{:?}", error.kind());
    Label::new("kind", kind.split('(').next().unwrap_or_default().to_owned())
}
