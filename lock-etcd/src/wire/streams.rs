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
        if failed.is_about_the_member() {
            cluster.leave_for(&connection, &failed);
        }
        let lasted = if heard { clock.now().since(opened) } else { Duration::ZERO };
        let pause = pauses.failed(lasted, cluster.tries());
        streamed.failed(&failed, pause.is_some());
        if failed.why == FailureClass::StaleToken {
            let (limit, renewed) = (cluster.config().call_limit(), connection.renew_token(token));
            tokio::select! {
                // If that fails too, the next stream reports it.
                _ = tokio::time::timeout(limit, renewed) => {}
                _ = connections.changed() => continue,
            }
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use lock_core::{Error, ErrorKind, SystemClock};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::config::EtcdConfig;

    /// Each stream is refused for its token.
    struct Refused(Arc<[AtomicUsize; 2]>);

    impl StreamService for Refused {
        async fn is_needed(&mut self) -> bool {
            true
        }

        async fn stream(&mut self, _: &MemberConnection, _: &mut bool) -> Result<(), EtcdFailure> {
            self.0[0].fetch_add(1, Relaxed);
            let error = Error::new(ErrorKind::Denied, "the token is stale");
            Err(EtcdFailure { why: FailureClass::StaleToken, error })
        }

        fn failed(&mut self, _: &EtcdFailure, _: bool) {
            self.0[1].fetch_add(1, Relaxed);
        }
    }

    #[tokio::test]
    async fn a_service_hears_of_the_end_before_the_user_has_signed_in_again() {
        const LIMIT: Duration = Duration::from_secs(1);
        // Accepts connections, and answers nothing.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let channel = tonic::transport::Channel::from_shared(endpoint).unwrap().connect_lazy();
        let config = EtcdConfig::from_channel(channel).user("app", "secret");
        let config = config.connect_timeout(LIMIT).response_timeout(LIMIT);
        let cluster = Cluster::open(config, Arc::new(SystemClock::default())).unwrap();
        let (cluster, counts) = (Arc::new(cluster), Arc::<[AtomicUsize; 2]>::default());
        let serving = tokio::spawn(serve(Arc::clone(&cluster), Refused(Arc::clone(&counts))));
        let (begun, seen) = (Instant::now(), || [0, 1].map(|at: usize| counts[at].load(Relaxed)));
        let until = async |expected| {
            let reached = async {
                while seen() != expected {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(LIMIT * 10, reached).await.expect("it goes on");
        };
        until([1, 1]).await;
        assert!(begun.elapsed() < LIMIT * 2, "it has signed in first");
        until([2, 2]).await;
        // It may have to connect first.
        assert!(begun.elapsed() >= LIMIT * 2, "it has not tried to sign in");
        cluster.close();
        timeout(LIMIT, serving).await.expect("nobody needs the sign-in any more").unwrap();
    }

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
