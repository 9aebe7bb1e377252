//! The tasks that keep a stream to a member open while it is needed.

use std::sync::Arc;
use std::time::Duration;

use lock_core::OsRng;
use lock_core::backoff::Backoff;
use tokio::sync::mpsc::Sender;

use crate::error::{EtcdFailure, FailureClass};
use crate::wire::Cluster;
use crate::wire::connection::MemberConnection;

/// A stream unused for this long is closed.
pub(crate) const IDLE: Duration = Duration::from_secs(60);
/// A stream that worked for this long before it failed was healthy.
const WORKED: Duration = Duration::from_secs(1);

/// A service that uses one stream at a time.
pub(crate) trait StreamService: Send {
    /// Waits until there is something to send; false if nothing came for a long time, or the client
    /// was closed.
    fn is_needed(&mut self) -> impl Future<Output = bool> + Send;

    /// Serves over one stream of `connection`, until that fails or is no longer used. The first
    /// reply sets `heard`.
    fn stream(
        &mut self,
        connection: &MemberConnection,
        heard: &mut bool,
    ) -> impl Future<Output = Result<(), EtcdFailure>> + Send;

    /// The stream has failed. `is_down`: no member opens one at the moment.
    fn failed(&mut self, failed: &EtcdFailure, is_down: bool);
}

/// Serves while it is needed.
pub(crate) async fn serve(cluster: Arc<Cluster>, mut streamed: impl StreamService) {
    let mut pauses = Pauses::default();
    let mut connections = cluster.connections();
    while streamed.is_needed().await {
        let Some(connection) = connections.borrow_and_update().clone() else { return };
        let clock = cluster.clock();
        let (token, opened, mut heard) = (connection.token(), clock.now(), false);
        let ended = tokio::select! {
            ended = streamed.stream(&connection, &mut heard) => ended,
            _ = connections.changed() => {
                streamed.failed(&EtcdFailure::moved(), false);
                continue;
            }
        };
        let Err(failed) = ended else { continue };
        tracing::debug!(target: "distlock", error = %failed.error, "a stream has ended");
        match failed.why {
            // If that fails too, the next stream reports it.
            FailureClass::StaleToken => drop(connection.renew_token(token).await),
            _ if failed.is_about_the_member() => cluster.leave_for(&connection, &failed),
            _ => {}
        }
        let lasted = if heard { clock.now().since(opened) } else { Duration::ZERO };
        let pause = pauses.failed(lasted, cluster.tries());
        streamed.failed(&failed, pause.is_some());
        if let Some(pause) = pause {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cluster.closed() => return,
            }
        }
    }
}

/// Sends a request, if there is one; false if the stream accepts no more. Cancel-safe: if
/// cancelled, nothing was sent.
pub(crate) async fn send<T>(requests: &Sender<T>, next: Option<T>) -> bool {
    match next {
        Some(request) => requests.send(request).await.is_ok(),
        None => true,
    }
}

/// The pauses between attempts to open a stream.
#[derive(Debug)]
struct Pauses {
    /// How many streams in a row were useless.
    useless: usize,
    backoff: Backoff,
}

impl Default for Pauses {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(1));
        Self { useless: 0, backoff }
    }
}

impl Pauses {
    /// A stream failed after working for `lasted`. Returns the pause before the next one; `None` if
    /// not all of `members` have been tried since one worked.
    ///
    /// The first reply on a stream proves little: a member may answer once and then refuse.
    fn failed(&mut self, lasted: Duration, members: usize) -> Option<Duration> {
        if lasted >= WORKED {
            self.useless = 0;
            self.backoff.reset();
        }
        self.useless = self.useless.saturating_add(1);
        (self.useless > members).then(|| self.backoff.failed(&OsRng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_when_all_members_have_failed() {
        let mut pauses = Pauses::default();
        let failed: Vec<_> = (0..10).map(|_| pauses.failed(Duration::ZERO, 3)).collect();
        assert_eq!(failed[..3], [None; 3]);
        let least = [40, 80, 160, 320, 640, 1000, 1000].map(Duration::from_millis);
        for (pause, least) in failed[3..].iter().flatten().zip(least) {
            assert!((least..least * 3 / 2).contains(pause), "{pause:?} after {least:?}");
        }
        assert_eq!(failed[3..].iter().flatten().count(), least.len());
        // A stream that breaks right after its first reply does not count as working.
        assert!(pauses.failed(WORKED / 2, 3) >= Some(Duration::from_secs(1)));
        assert_eq!(pauses.failed(WORKED, 3), None);
    }
}
