//! The connection to one member.

use std::fmt;
use std::sync::{Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{ClockInstant, Result};
use tokio::sync::Mutex;
use tokio::sync::mpsc::Sender;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::config::EtcdConfig;
use crate::driver::{self, Call, Token};
use crate::error::{Failed, from_etcd, unexpected};
use crate::proto::{
    AuthenticateRequest, LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    StatusRequest,
};
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
    channel: Channel,
    user: Option<(String, String)>,
    signed_in: SyncMutex<SignedIn>,
    /// Held while a token is requested.
    signing_in: Mutex<()>,
    silence: SyncMutex<Silence>,
}

/// What the user was given.
#[derive(Default)]
struct SignedIn {
    token: Option<Token>,
    /// How many tokens there were before this one.
    before: u64,
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
    fn new(
        channel: Channel,
        user: Option<(String, String)>,
        endpoint: String,
        number: u64,
    ) -> Self {
        Self {
            number,
            member: 0,
            endpoint,
            channel,
            user,
            signed_in: SyncMutex::default(),
            signing_in: Mutex::default(),
            silence: SyncMutex::default(),
        }
    }

    /// Connection number `number`, to this member. It is established by its first request.
    pub(crate) fn to_member(config: &EtcdConfig, member: usize, number: u64) -> Result<Self> {
        let endpoint = config.members[member].clone();
        let channel = config.channel_to(&endpoint)?;
        Ok(Self { member, ..Self::new(channel, config.user.clone(), endpoint, number) })
    }

    /// A connection through a caller's channel.
    pub(crate) fn foreign(channel: Channel, user: Option<(String, String)>, number: u64) -> Self {
        Self::new(channel, user, "the given channel".to_owned(), number)
    }

    /// The next connection through the same channel.
    pub(crate) fn again(&self) -> Self {
        Self::foreign(self.channel.clone(), self.user.clone(), self.number + 1)
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
        let reply = match request {
            Request::Txn(statement) => self.call(statement.txn()).await.map(Reply::from),
            Request::Grant { seconds } => {
                self.call(LeaseGrantRequest { ttl: *seconds }).await.map(Reply::from)
            }
            Request::Revoke { lease } => {
                self.call(LeaseRevokeRequest { id: *lease }).await.map(|_| Reply::default())
            }
            Request::TimeToLive { lease } => {
                self.call(LeaseTimeToLiveRequest { id: *lease }).await.map(Reply::from)
            }
            Request::Status => self.call(StatusRequest {}).await.map(Reply::from),
        };
        match reply {
            Ok(reply) if reply.revision <= 0 && matches!(request, Request::Txn(_)) => {
                Err(unexpected("a transaction without a revision"))
            }
            reply => reply,
        }
    }

    /// The same, with the reply as it came.
    pub(crate) async fn call<C: Call>(&self, message: C) -> Result<C::Reply, Failed> {
        let token = self.signed_in().await?;
        let reply = driver::call(&self.channel, token, message).await;
        reply.map_err(|status| self.describe(status))
    }

    /// Opens a stream, and sends `first` on it.
    pub(crate) async fn open<C: Call>(
        &self,
        first: C,
    ) -> Result<(Sender<C>, Streaming<C::Reply>), Failed> {
        let token = self.signed_in().await?;
        let opened = driver::open(&self.channel, token, first).await;
        opened.map_err(|status| self.describe(status))
    }

    /// The token of the user, if there is one.
    async fn signed_in(&self) -> Result<Option<Token>, Failed> {
        if self.user.is_some() && locked(&self.signed_in).token.is_none() {
            self.sign_in(|present| present.token.is_none()).await?;
        }
        Ok(locked(&self.signed_in).token.clone())
    }

    /// Which token is in use, for [`renew_token`](Self::renew_token).
    pub(crate) fn token(&self) -> u64 {
        locked(&self.signed_in).before
    }

    /// Signs in again, unless another task has done so since `token` was in use.
    pub(crate) async fn renew_token(&self, token: u64) -> Result<(), Failed> {
        self.sign_in(|present| present.before == token).await
    }

    /// Signs in, if that is still `needed` when it is this task's turn: checking a password is the
    /// most expensive thing the server does.
    async fn sign_in(&self, needed: impl Fn(&SignedIn) -> bool) -> Result<(), Failed> {
        let _turn = self.signing_in.lock().await;
        let user = self.user.clone().filter(|_| needed(&locked(&self.signed_in)));
        let Some((name, password)) = user else { return Ok(()) };
        let message = AuthenticateRequest { name, password };
        let answer = driver::call(&self.channel, None, message).await;
        let answer = answer.map_err(|status| self.describe(status).without_effect())?;
        let given = answer.token.parse();
        let mut given: Token = given.map_err(|_| unexpected("an auth token that is no text"))?;
        given.set_sensitive(true);
        let mut present = locked(&self.signed_in);
        present.before += u64::from(present.token.is_some());
        present.token = Some(given);
        Ok(())
    }

    /// The member has answered a request at `now`. Watch messages do not count: a member that is
    /// cut off from the others sends them, too.
    pub(crate) fn answered(&self, now: ClockInstant) {
        *locked(&self.silence) = Silence { answered: Some(now), since: None };
    }

    /// A request sent at `sent` timed out at `now`. Returns whether the member has been silent for
    /// too long.
    pub(crate) fn gave_up(&self, sent: ClockInstant, now: ClockInstant) -> bool {
        let mut silence = locked(&self.silence);
        let last = silence.answered.map_or(sent, |answered| answered.max(sent));
        now.since(*silence.since.get_or_insert(last)) >= PATIENCE
    }

    pub(crate) fn describe(&self, status: Status) -> Failed {
        from_etcd(&status, &self.endpoint)
    }

    /// A stream has ended without a reason.
    pub(crate) fn hung_up(&self) -> Failed {
        self.describe(Status::unknown("the stream has ended"))
    }
}

fn locked<T>(mutex: &SyncMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
