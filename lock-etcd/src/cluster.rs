//! The cluster: one connection at a time, replaced when it fails.
//!
//! A channel of the driver can spread its calls over several members, but it does so blindly: with
//! one of two members dead 40 % of the calls failed (measured). So each channel here leads to one
//! member, and a failure of that member moves everything to the next one: requests, watch streams
//! and keep-alive streams.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::outage::Outage;
use lock_core::{Clock, ClockInstant, OsRng, Result, Rng};
use tokio::sync::{Mutex, watch};
use tonic::transport::Channel;

use crate::config::EtcdConfig;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::mutants;
use crate::wire::{Reply, Request};

/// The pauses between requests while no member answers.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// The cluster as this client sees it.
pub(crate) struct Cluster {
    config: Option<EtcdConfig>,
    clock: Arc<dyn Clock>,
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Held while the connection is being replaced.
    replacing: Mutex<()>,
    outage: Outage<Failed>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connection = &*self.connection.borrow();
        f.debug_struct("Cluster").field("connection", connection).finish_non_exhaustive()
    }
}

impl Cluster {
    fn new(config: Option<EtcdConfig>, first: Connection, clock: Arc<dyn Clock>) -> Self {
        let connection = watch::Sender::new(Some(Arc::new(first)));
        Self {
            config,
            clock,
            connection,
            replacing: Mutex::default(),
            outage: Outage::new(BACKOFF),
        }
    }

    /// A cluster reached by connections that we make. Nothing is sent yet. The first connection
    /// goes to a random member: if all clients started with the same one, it would carry the whole
    /// load.
    pub(crate) fn open(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut bytes = [0; 8];
        OsRng.fill(&mut bytes)?;
        let first = usize::try_from(u64::from_le_bytes(bytes) >> 32).unwrap_or(0);
        let first = Connection::to_member(&config, first % config.members.len(), 0)?;
        Ok(Self::new(Some(config), first, clock))
    }

    /// A cluster reached through a channel of the caller.
    pub(crate) fn foreign(
        channel: Channel,
        user: Option<(String, String)>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::new(None, Connection::foreign(channel, user, 0), clock)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The current connection; `None` after the client was closed.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone()
    }

    /// Follows the replacements of the connection.
    pub(crate) fn connections(&self) -> watch::Receiver<Option<Arc<Connection>>> {
        self.connection.subscribe()
    }

    /// Ends all streams; requests fail from now on.
    pub(crate) fn close(&self) {
        self.connection.send_replace(None);
    }

    /// Resolves when the client is closed.
    pub(crate) async fn closed(&self) {
        let _ = self.connection.subscribe().wait_for(Option::is_none).await;
    }

    /// The settings; `None` for a channel of the caller.
    pub(crate) fn config(&self) -> Option<&EtcdConfig> {
        self.config.as_ref()
    }

    pub(crate) fn members(&self) -> usize {
        self.config.as_ref().map_or(1, |config| config.members.len())
    }

    /// Moves on to the next member, unless another task has done so since `left` was the current
    /// connection. With one member this makes a new connection: the old one may be a black hole.
    pub(crate) async fn leave(&self, left: &Connection) {
        let _turn = self.replacing.lock().await;
        let number = left.number();
        if self.connection().is_none_or(|present| present.number() != number) {
            return;
        }
        let next = match &self.config {
            Some(config) => {
                let member = (left.member() + 1) % config.members.len();
                match Connection::to_member(config, member, number + 1) {
                    Ok(next) => next,
                    // The addresses were good before, so this does not happen.
                    Err(_) => return,
                }
            }
            None => left.again(),
        };
        tracing::debug!(target: "distlock", from = left.endpoint(), to = next.endpoint(), "another connection to etcd");
        self.connection.send_if_modified(|present| {
            // A closed client stays closed.
            let replaced = present.is_some();
            if replaced {
                *present = Some(Arc::new(next));
            }
            replaced
        });
    }

    /// Notes that a request sent at `sent` has timed out, and leaves a silent member.
    pub(crate) async fn gave_up(&self, connection: &Connection, sent: ClockInstant) {
        if connection.gave_up(sent, self.clock.now()) {
            self.outage.down();
            self.leave(connection).await;
        }
    }

    /// Makes one request within `limit`. It is repeated, at another member or with a new auth
    /// token, only if nothing was done, or if doing it twice does no harm. While no member answers,
    /// the requests of a client are made one at a time, with pauses: the others fail as that one
    /// does.
    pub(crate) async fn ask(
        &self,
        limit: Duration,
        request: impl Into<Request>,
    ) -> Result<Reply, Failed> {
        let request = mutants::sent(request.into());
        let mut used = None;
        let tries = async || {
            let sent = self.clock.now();
            let (mut moves, mut has_new_token) = (0, false);
            loop {
                let Some(connection) = self.connection() else { return Err(Failed::closed()) };
                used = Some((Arc::clone(&connection), sent));
                let token = connection.token();
                let reply = mutants::replied(&request, connection.send(&request).await);
                let failed = match reply {
                    Err(failed) if failed.is_about_the_member() => {
                        self.leave(&connection).await;
                        failed
                    }
                    reply => {
                        connection.answered(self.clock.now());
                        match reply {
                            Ok(reply) => return Ok(reply),
                            Err(failed) => failed,
                        }
                    }
                };
                let moves_on = failed.is_for_another()
                    || (failed.is_about_the_member() && request.may_be_repeated());
                match failed.why {
                    _ if moves_on && moves + 1 < self.members() => moves += 1,
                    Why::StaleToken if !has_new_token => {
                        has_new_token = true;
                        connection.renew_token(token).await?;
                    }
                    _ => return Err(failed),
                }
            }
        };
        let asked = self.outage.ask(tries, Failed::is_about_the_member);
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer.unwrap_or_else(|of_another| Err(of_another.without_effect())),
            Err(_) => match (used, self.connection()) {
                (Some((connection, sent)), _) => {
                    self.gave_up(&connection, sent).await;
                    Err(Failed::timeout(connection.endpoint(), limit))
                }
                // It has waited for another request.
                (None, Some(connection)) => {
                    Err(Failed::timeout(connection.endpoint(), limit).without_effect())
                }
                (None, None) => Err(Failed::closed()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::PATIENCE;
    use crate::statements;
    use lock_core::SystemClock;

    /// A member that accepts connections but never answers.
    async fn silent() -> (tokio::net::TcpListener, Cluster) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = EtcdConfig::new([listener.local_addr().unwrap().to_string()]).unwrap();
        let cluster = Cluster::open(config, Arc::new(SystemClock::default())).unwrap();
        (listener, cluster)
    }

    async fn ask(cluster: &Cluster, limit: u64) {
        let limit = Duration::from_millis(limit);
        let answer = cluster.ask(limit, statements::read("k")).await;
        assert_eq!(answer.unwrap_err().error.kind(), lock_core::ErrorKind::NoAnswer);
    }

    #[tokio::test]
    async fn one_short_call_does_not_replace_the_connection_of_all() {
        let (_listener, cluster) = silent().await;
        let first = cluster.connection().unwrap();
        ask(&cluster, 40).await;
        assert_eq!(
            cluster.connection().unwrap().number(),
            first.number(),
            "left after one short call"
        );
        tokio::time::sleep(PATIENCE).await;
        // Replies in between show that the member is only slow.
        let answers = async {
            loop {
                first.answered(cluster.clock().now());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = ask(&cluster, 400) => {}
            () = answers => {}
        }
        ask(&cluster, 40).await;
        assert_eq!(
            cluster.connection().unwrap().number(),
            first.number(),
            "left although it answers"
        );
        tokio::time::sleep(PATIENCE).await;
        ask(&cluster, 40).await;
        assert_eq!(cluster.connection().unwrap().number(), first.number() + 1, "never left");
        // Longer than the pause after a failure.
        ask(&cluster, 1_000).await;
        assert_eq!(cluster.connection().unwrap().number(), first.number() + 2, "not left at once");
    }
}
