//! The connection to one member.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error as EtcdError};
use lock_core::{ClockInstant, Error, Result};
use tokio::sync::{Mutex, OnceCell};

use crate::config::EtcdConfig;
use crate::error::{Failed, from_etcd, unexpected};
use crate::wire::{Reply, Request};

/// The client leaves a member that has answered nothing for this long. One call with a timeout too
/// short for a busy member must not end the streams and the requests of all others; yet callers
/// with short timeouts must get away from a dead connection in time.
pub(crate) const PATIENCE: Duration = Duration::from_millis(150);

/// The connection to one member, shared by all requests and streams of a client.
pub(crate) struct Connection {
    /// Rises with every new connection.
    number: u64,
    member: usize,
    endpoint: String,
    client: Client,
    user: Option<(String, String)>,
    signed_in: OnceCell<()>,
    /// How many auth tokens there were before the current one.
    tokens: AtomicU64,
    /// Held while a new token is requested.
    renewing: Mutex<()>,
    silence: SyncMutex<Silence>,
}

/// Tells whether a member is silent, or only slow.
#[derive(Debug, Default)]
struct Silence {
    /// When the last reply came.
    answered: Option<ClockInstant>,
    /// Since when the first request that timed out after that reply has been unanswered.
    since: Option<ClockInstant>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("number", &self.number)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

impl Connection {
    fn new(client: Client, endpoint: String, number: u64) -> Self {
        Self {
            number,
            member: 0,
            endpoint,
            client,
            user: None,
            signed_in: OnceCell::new(),
            tokens: AtomicU64::new(0),
            renewing: Mutex::default(),
            silence: SyncMutex::default(),
        }
    }

    /// Connection number `number`, to this member. It is established by its first request.
    pub(crate) async fn to_member(config: &EtcdConfig, member: usize, number: u64) -> Result<Self> {
        let endpoint = config.members[member].clone();
        let client = Client::connect([config.url_of(&endpoint)], Some(config.options()))
            .await
            .map_err(|error| {
                Error::config(format!("the address {endpoint} of an etcd member cannot be used"))
                    .with_source(error)
            })?;
        Ok(Self { member, user: config.user.clone(), ..Self::new(client, endpoint, number) })
    }

    /// A connection through a caller's client, which has its own user.
    pub(crate) fn foreign(client: Client, number: u64) -> Self {
        Self::new(client, "the given client".to_owned(), number)
    }

    /// The next connection through the same client.
    pub(crate) fn again(&self) -> Self {
        Self::foreign(self.client.clone(), self.number + 1)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn member(&self) -> usize {
        self.member
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Makes one request, without a timeout or a retry.
    pub(crate) async fn send(&self, request: &Request) -> Result<Reply, Failed> {
        let mut client = self.client().await?;
        let reply = match request {
            Request::Txn(statement) => client.txn(statement.txn()).await.map(Reply::from),
            Request::Grant { seconds } => client.lease_grant(*seconds, None).await.map(Reply::from),
            Request::Revoke { lease } => {
                client.lease_revoke(*lease).await.map(|_| Reply::default())
            }
            Request::TimeToLive { lease } => {
                client.lease_time_to_live(*lease, None).await.map(Reply::from)
            }
            Request::Status => client.status().await.map(Reply::from),
        };
        match reply {
            Ok(reply) if reply.revision <= 0 && matches!(request, Request::Txn(_)) => {
                Err(unexpected("a transaction without a revision"))
            }
            reply => reply.map_err(|error| self.describe(error)),
        }
    }

    /// The driver's client, signed in if there is a user.
    pub(crate) async fn client(&self) -> Result<Client, Failed> {
        if let Some(user) = &self.user {
            self.signed_in
                .get_or_try_init(async || {
                    let mut client = self.client.clone();
                    client.update_user(Some(user.clone())).await
                })
                .await
                .map_err(|error| self.describe(error).without_effect())?;
        }
        Ok(self.client.clone())
    }

    /// Which token is in use, for [`renew_token`](Self::renew_token).
    pub(crate) fn token(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    /// Signs in again, unless another task has done so since `token` was in use: checking a
    /// password is the most expensive thing the server does. The driver itself signs in again only
    /// for one of the errors that the server may report.
    pub(crate) async fn renew_token(&self, token: u64) -> Result<(), Failed> {
        let _turn = self.renewing.lock().await;
        if self.token() != token {
            return Ok(());
        }
        let answer = self.client.refresh_token().await;
        answer.map_err(|error| self.describe(error).without_effect())?;
        self.tokens.fetch_add(1, Relaxed);
        Ok(())
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member has answered a request at `now`. Watch messages do not count: a member that is
    /// cut off from the others sends them, too.
    pub(crate) fn answered(&self, now: ClockInstant) {
        *self.silence() = Silence { answered: Some(now), since: None };
    }

    /// A request sent at `sent` timed out at `now`. Returns whether the member has been silent for
    /// too long.
    pub(crate) fn gave_up(&self, sent: ClockInstant, now: ClockInstant) -> bool {
        let mut silence = self.silence();
        let last = silence.answered.map_or(sent, |answered| answered.max(sent));
        now.since(*silence.since.get_or_insert(last)) >= PATIENCE
    }

    pub(crate) fn describe(&self, error: EtcdError) -> Failed {
        from_etcd(error, &self.endpoint)
    }
}
