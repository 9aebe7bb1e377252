//! What becomes of the renewals, for those who run a command under a lock.

use std::sync::Arc;

use distlock::LockKey;
use distlock::backend::{LockEvent, LockLayer, LockObserver, Operation};
use tokio::sync::watch;

/// Why renewals fail at present; `None` while they get through.
#[derive(Clone, Debug)]
pub(crate) struct Renewals(watch::Sender<Option<String>>);

impl Renewals {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Why the last one failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Tells of the first failure from now on, and of the first renewal that gets through again. What was before, such as
    /// the renewal of a place in a queue, says nothing of a hold.
    pub(crate) fn news(&self) -> RenewalNews {
        self.0.send_replace(None);
        RenewalNews { failing: false, seen: self.0.subscribe() }
    }
}

impl LockLayer for Renewals {
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        Some(Arc::new(self.clone()))
    }
}

impl LockObserver for Renewals {
    fn observe(&self, _store: &'static str, _lock: Option<&LockKey>, event: LockEvent<'_>) {
        match event {
            LockEvent::CallFailed { operation: Operation::Renew, error } => {
                self.0.send_replace(Some(error.to_string()));
            }
            LockEvent::Renewed { is_alive: true, .. } => {
                self.0.send_if_modified(|failure| failure.take().is_some());
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(crate) struct RenewalNews {
    failing: bool,
    seen: watch::Receiver<Option<String>>,
}

impl RenewalNews {
    /// The next change: why they fail, or `None` when they get through again.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let was = self.failing;
        let Ok(now) = self.seen.wait_for(|failure| failure.is_some() != was).await else {
            return std::future::pending().await;
        };
        self.failing = !was;
        now.clone()
    }
}

#[cfg(test)]
mod tests {
    use distlock::{Error, ErrorKind};

    use super::*;

    #[tokio::test]
    async fn an_outage_is_told_once_and_its_end() {
        let renewals = Renewals::new();
        let mut news = renewals.news();
        let fails = |text: &'static str| {
            let error = Error::new(ErrorKind::Unavailable, text);
            let event = LockEvent::CallFailed { operation: Operation::Renew, error: &error };
            renewals.observe("x", None, event);
        };
        fails("first");
        assert!(news.next().await.unwrap().contains("first"));
        fails("second");
        assert!(renewals.failure().unwrap().contains("second"));
        renewals.observe("x", None, LockEvent::Renewed { is_alive: true, left: None });
        assert_eq!(news.next().await, None);
        assert_eq!(renewals.failure(), None);
    }
}
