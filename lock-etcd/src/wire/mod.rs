//! The cluster: one connection at a time, replaced when it fails, and what the replies show of the
//! store's history.
//!
//! A channel of the driver can spread its calls over several members, but it does so blindly: with
//! one of two members dead 40 % of the calls failed (measured). So each channel here leads to one
//! member, and a failure of that member moves everything to the next one: requests, watch streams
//! and keep-alive streams.
//!
//! A snapshot that is restored, or data that is lost, takes the revision back. A client that has not
//! heard of the last revisions does not see that. But the members have elected a leader since, so
//! the term of the elections is another one. An ordinary election looks the same, and costs as
//! little: what was known of the store is read again.

#[cfg(feature = "etcd-client")]
pub(crate) mod client;
pub(crate) mod connection;
#[cfg_attr(distlock_mutants, path = "../mutants/exchange.rs")]
pub(crate) mod exchange;
pub(crate) mod messages;
pub(crate) mod protobuf;
pub(crate) mod streams;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backoff::Backoff;
use lock_core::{Clock, ClockInstant, OsRng, Result, Rng};
use lock_kit::outage::Outage;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::EtcdConfig;
use crate::error::{EtcdFailure, FailureClass};
use crate::rules;
use crate::wire::connection::{MemberConnection, PATIENCE, RequestKind};
use crate::wire::messages::{EtcdReply, EtcdRequest, Mark};

/// The pauses between requests while no member answers.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// A request with less time is not sent: it would be in doubt, and say nothing of the member.
pub(crate) const LEAST: Duration = Duration::from_millis(1);
/// A client of the user does not avoid a dead member. With one of two dead, so many tries all meet it once in 256.
const BLIND_TRIES: usize = 8;

/// The cluster as this client sees it.
pub(crate) struct Cluster {
    config: EtcdConfig,
    clock: Arc<dyn Clock>,
    connection: watch::Sender<Option<Arc<MemberConnection>>>,
    /// Held while the connection is being replaced.
    replacing: Mutex<()>,
    outage: Outage<EtcdFailure>,
    history: History,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connection = &*self.connection.borrow();
        f.debug_struct("Cluster").field("connection", connection).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster reached by connections that we make. Nothing is sent yet. The first connection
    /// goes to a random member: if all clients started with the same one, it would carry the whole
    /// load.
    pub(crate) fn open(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check_members()?;
        let mut bytes = [0; 8];
        OsRng.fill(&mut bytes)?;
        let first = usize::try_from(u64::from_le_bytes(bytes) >> 32).unwrap_or(0);
        let first = MemberConnection::to_member(&config, first % config.members.len(), 0)?;
        Ok(Self {
            config,
            clock,
            connection: watch::Sender::new(Some(Arc::new(first))),
            replacing: Mutex::default(),
            outage: Outage::new(BACKOFF),
            history: History::default(),
        })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Differs from an earlier one if the store may have gone back since.
    pub(crate) fn era(&self) -> Era {
        self.history.era()
    }

    /// The current connection; `None` after the client was closed.
    pub(crate) fn connection(&self) -> Option<Arc<MemberConnection>> {
        self.connection.borrow().clone()
    }

    /// Follows the replacements of the connection.
    pub(crate) fn connections(&self) -> watch::Receiver<Option<Arc<MemberConnection>>> {
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

    pub(crate) fn config(&self) -> &EtcdConfig {
        &self.config
    }

    /// How often a request or a stream is tried before no member seems to answer.
    pub(crate) fn tries(&self) -> usize {
        if self.config.is_over_a_client() { BLIND_TRIES } else { self.config.members.len() }
    }

    /// Moves on to the next member after a failure. A client of the user chooses the members itself, and all streams
    /// are not on the one that refused this request.
    pub(crate) fn leave_for(&self, left: &MemberConnection, failed: &EtcdFailure) {
        if !(self.config.is_over_a_client() && failed.is_for_another()) {
            self.leave(left);
        }
    }

    /// Moves on to the next member, unless another task has done so since `left` was the current
    /// connection. With one member this makes a new connection: the old one may be a black hole.
    fn leave(&self, left: &MemberConnection) {
        let _turn = self.replacing.lock();
        let number = left.number();
        if self.connection().is_none_or(|present| present.number() != number) {
            return;
        }
        let member = (left.member() + 1) % self.config.members.len();
        // There was a way to each member at the beginning, so this does not fail.
        let Ok(next) = MemberConnection::to_member(&self.config, member, number + 1) else {
            return;
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
    pub(crate) fn gave_up(
        &self,
        connection: &MemberConnection,
        asked: RequestKind,
        sent: ClockInstant,
    ) {
        if connection.gave_up(asked, sent, self.clock.now()) {
            self.outage.down();
            self.leave(connection);
        }
    }

    /// Who drops a request sooner than that says nothing of the member: many look only until they are pushed.
    fn patience_of_the_dropped(&self) -> Duration {
        (self.config().response_timeout / 5).max(PATIENCE)
    }

    /// The answer to a question to the member of `connection`, in a call that ends at `end`. If there is none, that counts
    /// against the connection.
    async fn answer_to<T>(
        &self,
        asked: impl Future<Output = T>,
        connection: &MemberConnection,
        end: ClockInstant,
    ) -> T {
        let unanswered = Unanswered { cluster: self, connection, sent: self.clock.now(), end };
        let answer = asked.await;
        std::mem::forget(unanswered);
        answer
    }

    /// Makes one request within `limit`. It is repeated, at another member or with a new auth
    /// token, only if nothing was done, or if doing it twice does no harm. While no member answers,
    /// the requests of a client are made one at a time, with pauses: the others fail as that one
    /// does.
    pub(crate) async fn ask(
        &self,
        limit: Duration,
        request: impl Into<EtcdRequest>,
    ) -> Result<EtcdReply, EtcdFailure> {
        let request = request.into();
        if limit < LEAST {
            let Some(connection) = self.connection() else { return Err(EtcdFailure::closed()) };
            return Err(EtcdFailure::timeout(connection.endpoint(), limit).without_effect());
        }
        let (mut used, end) = (None, self.clock.now() + limit);
        let asked = async {
            let turn = self.outage.turn().await.map_err(EtcdFailure::without_effect)?;
            let (mut moves, mut has_new_token) = (0, false);
            let answer = loop {
                let Some(connection) = self.connection() else { break Err(EtcdFailure::closed()) };
                used = Some(Arc::clone(&connection));
                let (token, seen) = (connection.token(), self.history.seen());
                let sent = exchange::send(&connection, &request);
                let reply = self.answer_to(sent, &connection, end).await;
                let failed = match reply {
                    Err(failed) if failed.is_about_the_member() => {
                        self.leave_for(&connection, &failed);
                        failed
                    }
                    reply => {
                        connection.answered(RequestKind::Call, self.clock.now());
                        match reply {
                            Ok(reply) => {
                                if matches!(request, EtcdRequest::Txn(_)) {
                                    self.history.note(seen, &reply);
                                }
                                break Ok(reply);
                            }
                            Err(failed) => failed,
                        }
                    }
                };
                let moves_on = failed.is_for_another()
                    || (failed.is_about_the_member() && request.may_be_repeated());
                match failed.why {
                    _ if moves_on && moves + 1 < self.tries() => moves += 1,
                    FailureClass::StaleToken if !has_new_token => {
                        has_new_token = true;
                        let renewed = connection.renew_token(token);
                        if let Err(failed) = self.answer_to(renewed, &connection, end).await {
                            break Err(failed);
                        }
                    }
                    _ => break Err(failed),
                }
            };
            turn.ends(answer.as_ref().err().filter(|failed| failed.is_about_the_member()));
            answer
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer,
            Err(_) => match (used, self.connection()) {
                (Some(connection), _) => Err(EtcdFailure::timeout(connection.endpoint(), limit)),
                // It has waited for another request.
                (None, Some(connection)) => {
                    Err(EtcdFailure::timeout(connection.endpoint(), limit).without_effect())
                }
                (None, None) => Err(EtcdFailure::closed()),
            },
        }
    }
}

/// A question without an answer yet. It ends with its time, or with whoever waits for the answer.
struct Unanswered<'a> {
    cluster: &'a Cluster,
    connection: &'a MemberConnection,
    sent: ClockInstant,
    end: ClockInstant,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let (now, patience) = (self.cluster.clock.now(), self.cluster.patience_of_the_dropped());
        let has_waited = now >= self.end || now.since(self.sent) >= patience;
        // Another connection needs a runtime.
        if has_waited && Handle::try_current().is_ok() {
            self.cluster.gave_up(self.connection, RequestKind::Call, self.sent);
        }
    }
}

/// Rises whenever the store may have gone back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Era(u64);

impl Era {
    pub(crate) const FIRST: Self = Self(0);
}

/// The history as far as this client has seen it.
#[derive(Debug, Default)]
pub(crate) struct History {
    seen: Mutex<(Era, Mark)>,
}

impl History {
    pub(crate) fn era(&self) -> Era {
        self.seen.lock().0
    }

    /// What was seen before a request is sent.
    pub(crate) fn seen(&self) -> (Era, Mark) {
        *self.seen.lock()
    }

    /// Notes the reply to a transaction that was sent when this had been `seen`. Other replies show
    /// what one member knows, which may be less.
    pub(crate) fn note(&self, (era, seen): (Era, Mark), reply: &EtcdReply) {
        let mut present = self.seen.lock();
        // Another reply has shown it already.
        if present.0 != era {
            return;
        }
        let shown = Mark { revision: reply.revision, term: reply.term };
        if rules::goes_on(seen, shown) {
            let revision = present.1.revision.max(shown.revision);
            present.1 = Mark { revision, ..shown };
        } else {
            *present = (Era(era.0 + 1), shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::statements;
    use crate::wire::connection::PATIENCE;
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
                first.answered(RequestKind::Call, cluster.clock().now());
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

    /// As a probe does, or a `select!`.
    #[tokio::test]
    async fn a_request_that_is_dropped_counts_if_the_member_had_time_to_answer() {
        let (_listener, cluster) = silent().await;
        let first = cluster.connection().unwrap();
        let patience = cluster.patience_of_the_dropped();
        let drop_after = async |patience| {
            let asked = cluster.ask(PATIENCE * 100, statements::read("k"));
            assert!(tokio::time::timeout(patience, asked).await.is_err());
            cluster.connection().unwrap().number() - first.number()
        };
        for _ in 0..4 {
            assert_eq!(drop_after(patience / 10).await, 0, "left by who has not waited for it");
        }
        assert_eq!(drop_after(patience * 2).await, 1, "never left");
    }

    #[test]
    fn a_request_may_be_dropped_outside_of_a_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_listener, cluster) = runtime.block_on(silent());
        let mut asked = Box::pin(cluster.ask(PATIENCE * 100, statements::read("k")));
        let patience = cluster.patience_of_the_dropped() * 2;
        let waited = async { tokio::time::timeout(patience, &mut asked).await };
        assert!(runtime.block_on(waited).is_err());
        drop(asked);
    }

    /// The first member takes the time of most of the call, and the second one has just been asked.
    #[tokio::test]
    async fn a_member_is_not_silent_before_it_is_asked() {
        const CONNECTING: Duration = Duration::from_millis(300);
        // Once its backlog is full, it answers no attempt to connect.
        let deaf = tokio::net::TcpSocket::new_v4().unwrap();
        deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let deaf = deaf.listen(0).unwrap();
        let address = deaf.local_addr().unwrap();
        let mut backlog = Vec::new();
        while let Ok(Ok(connected)) =
            tokio::time::timeout(CONNECTING, tokio::net::TcpStream::connect(address)).await
        {
            backlog.push(connected);
        }
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let members = [address, silent.local_addr().unwrap()].map(|member| member.to_string());
        let config = EtcdConfig::new(members).unwrap().connect_timeout(CONNECTING);
        let cluster = loop {
            let cluster = Cluster::open(config.clone(), Arc::new(SystemClock::default())).unwrap();
            if cluster.connection().unwrap().member() == 0 {
                break cluster;
            }
        };
        ask(&cluster, 300 + 50).await;
        let present = cluster.connection().unwrap();
        assert_eq!((present.member(), present.number()), (1, 1), "left after 50 ms");
    }

    #[tokio::test]
    async fn a_request_without_time_is_not_sent() {
        let (_listener, cluster) = silent().await;
        let first = cluster.connection().unwrap();
        for _ in 0..2 {
            let answer = cluster.ask(LEAST / 2, statements::read("k")).await;
            assert!(!answer.unwrap_err().is_unknown(), "it may have an effect");
            tokio::time::sleep(PATIENCE * 2).await;
        }
        let present = cluster.connection().unwrap().number();
        assert_eq!(present, first.number(), "left without having been asked");
    }

    #[tokio::test]
    async fn a_member_that_answers_only_keep_alives_is_left() {
        let (_listener, cluster) = silent().await;
        let first = cluster.connection().unwrap();
        let keep_alives = async {
            loop {
                first.answered(RequestKind::KeepAlive, cluster.clock().now());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = ask(&cluster, 400) => {}
            () = keep_alives => {}
        }
        assert_eq!(cluster.connection().unwrap().number(), first.number() + 1, "never left");
    }

    fn reply(revision: i64, term: u64) -> EtcdReply {
        EtcdReply { revision, term, ..EtcdReply::default() }
    }

    #[test]
    fn a_store_that_has_gone_back_is_another_one() {
        let history = History::default();
        let first = history.era();
        for shown in [reply(5, 2), reply(5, 2), reply(9, 2)] {
            history.note(history.seen(), &shown);
            assert_eq!(history.era(), first, "it goes on");
        }
        history.note(history.seen(), &reply(8, 2));
        let second = history.era();
        assert_ne!(second, first, "the revision has gone back");
        history.note(history.seen(), &reply(8, 2));
        assert_eq!(history.era(), second, "and goes on from there");
        history.note(history.seen(), &reply(20, 3));
        assert_ne!(history.era(), second, "there was an election");
    }

    #[test]
    fn replies_overtake_each_other() {
        let history = History::default();
        let early = history.seen();
        history.note(history.seen(), &reply(9, 2));
        let first = history.era();
        history.note(early, &reply(7, 2));
        assert_eq!(history.era(), first, "it was sent before the other was answered");
        assert_eq!(history.seen().1.revision, 9);
        let (late, later) = (history.seen(), history.seen());
        history.note(late, &reply(3, 2));
        let second = history.era();
        history.note(later, &reply(4, 2));
        assert_eq!(history.era(), second, "two replies show one change");
    }
}
