//! The connection to one member, and calls over it by gRPC.

use std::fmt;
use std::pin::Pin;
#[cfg(feature = "etcd-client")]
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use lock_core::{ClockInstant, Result};
use parking_lot::Mutex as SyncMutex;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use crate::config::EtcdConfig;
use crate::error::{
    EtcdFailure, FailureClass, asks_for_a_user, asks_nobody, from_etcd, unexpected,
};
#[cfg(feature = "etcd-client")]
use crate::wire::client;
use crate::wire::protobuf::{AuthenticateRequest, AuthenticateResponse, Call};

/// The client leaves a member that has answered nothing for this long. One call with a timeout too
/// short for a busy member must not end the streams and the requests of all others; yet callers
/// with short timeouts must get away from a dead connection in time.
pub(crate) const PATIENCE: Duration = Duration::from_millis(150);

/// The connection to one member, shared by all requests and streams of a client.
pub(crate) struct MemberConnection {
    /// Rises with every new connection.
    number: u64,
    member: usize,
    endpoint: String,
    transport: Transport,
    user: Option<(String, String)>,
    signed_in: SyncMutex<Credential>,
    /// Held while a token is requested.
    signing_in: Mutex<()>,
    /// Of everything that was asked.
    silence: SyncMutex<MemberSilence>,
    /// Of requests other than keep-alives. A member may pass these on to the leader, and be stuck
    /// with everything else.
    silence_of_calls: SyncMutex<MemberSilence>,
}

/// What carries the requests.
#[derive(Clone)]
pub(crate) enum Transport {
    Channel(Channel),
    /// A client of the user, who has signed in by it.
    #[cfg(feature = "etcd-client")]
    Client(Arc<etcd_client::Client>),
}

impl Transport {
    pub(crate) fn is_client(&self) -> bool {
        !matches!(self, Self::Channel(_))
    }
}

/// The replies of a stream.
pub(crate) type Replies<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// What is asked of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Call,
    KeepAlive,
}

/// What the user was given.
struct Credential {
    pass: AuthPass,
    /// How many there were before this one.
    before: u64,
}

/// What shows that a user has signed in.
enum AuthPass {
    Missing,
    Token(Token),
    /// The cluster asks nobody: it has no users, or they are switched off for a while. Or a client of the user has
    /// signed in.
    NotNeeded,
}

impl Credential {
    fn is_missing(&self) -> bool {
        matches!(self.pass, AuthPass::Missing)
    }
}

/// Tells whether a member is silent, or only slow.
#[derive(Clone, Copy, Debug, Default)]
struct MemberSilence {
    /// When the last reply came.
    answered: Option<ClockInstant>,
    /// Since when the first request that timed out after that reply has been unanswered.
    since: Option<ClockInstant>,
}

impl fmt::Debug for MemberConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberConnection")
            .field("number", &self.number)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

impl MemberConnection {
    /// Connection number `number`, to this member. It is established by its first request.
    pub(crate) fn to_member(config: &EtcdConfig, member: usize, number: u64) -> Result<Self> {
        let endpoint = config.members[member].clone();
        let transport = config.transport_to(&endpoint)?;
        let pass = if transport.is_client() { AuthPass::NotNeeded } else { AuthPass::Missing };
        Ok(Self {
            number,
            member,
            transport,
            endpoint,
            user: config.user.clone(),
            signed_in: SyncMutex::new(Credential { pass, before: 0 }),
            signing_in: Mutex::default(),
            silence: SyncMutex::default(),
            silence_of_calls: SyncMutex::default(),
        })
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
    pub(crate) async fn call<C: Call>(&self, message: C) -> Result<C::Reply, EtcdFailure> {
        let reply = match &self.transport {
            Transport::Channel(channel) => {
                let codec = ProstCodec::<C, C::Reply>::default();
                let token = self.signed_in().await?;
                let mut grpc = self.grpc(channel).await?;
                let reply = grpc.unary(request(message, token), method::<C>(), codec).await;
                reply.map(Response::into_inner)
            }
            #[cfg(feature = "etcd-client")]
            Transport::Client(client) => client::call(client, &message).await,
        };
        reply.map_err(|status| self.describe(status))
    }

    /// Opens a stream, and sends `first` on it: a member answers nothing before it has read that.
    pub(crate) async fn open<C: Call>(
        &self,
        first: C,
    ) -> Result<(Sender<C>, Replies<C::Reply>), EtcdFailure> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let messages = tokio_stream::once(first).chain(ReceiverStream::new(receiver));
        let replies = match &self.transport {
            Transport::Channel(channel) => {
                let codec = ProstCodec::<C, C::Reply>::default();
                let token = self.signed_in().await?;
                let mut grpc = self.grpc(channel).await?;
                let replies = grpc.streaming(request(messages, token), method::<C>(), codec).await;
                replies.map(|replies| -> Replies<_> { Box::pin(replies.into_inner()) })
            }
            #[cfg(feature = "etcd-client")]
            Transport::Client(client) => client::open(client, messages).await,
        };
        Ok((sender, replies.map_err(|status| self.describe(status))?))
    }

    async fn grpc(&self, channel: &Channel) -> Result<Grpc<Channel>, EtcdFailure> {
        // A long queue is more than the driver's 4 MiB.
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        match grpc.ready().await {
            Ok(()) => Ok(grpc),
            Err(error) => Err(self.describe(Status::from_error(error.into()))),
        }
    }

    /// The token of the user, if there is one.
    async fn signed_in(&self) -> Result<Option<Token>, EtcdFailure> {
        if self.user.is_some() && self.signed_in.lock().is_missing() {
            self.sign_in(Credential::is_missing).await?;
        }
        Ok(match &self.signed_in.lock().pass {
            AuthPass::Token(token) => Some(token.clone()),
            AuthPass::Missing | AuthPass::NotNeeded => None,
        })
    }

    /// Which token is in use, for [`renew_token`](Self::renew_token).
    pub(crate) fn token(&self) -> u64 {
        self.signed_in.lock().before
    }

    /// Signs in again, unless another task has done so since `token` was in use.
    pub(crate) async fn renew_token(&self, token: u64) -> Result<(), EtcdFailure> {
        self.sign_in(|present| present.before == token).await
    }

    /// Signs in, if that is still `needed` when it is this task's turn: checking a password is the
    /// most expensive thing the server does.
    async fn sign_in(&self, needed: impl Fn(&Credential) -> bool) -> Result<(), EtcdFailure> {
        let _turn = self.signing_in.lock().await;
        if !needed(&self.signed_in.lock()) {
            return Ok(());
        }
        let pass = match &self.transport {
            Transport::Channel(channel) => {
                let Some((name, password)) = self.user.clone() else { return Ok(()) };
                self.authenticate(channel, AuthenticateRequest { name, password }).await?
            }
            #[cfg(feature = "etcd-client")]
            Transport::Client(client) => match client::sign_in(client).await {
                Err(status) if !asks_nobody(&status) => {
                    return Err(self.describe(status).without_effect());
                }
                _ => AuthPass::NotNeeded,
            },
        };
        let mut present = self.signed_in.lock();
        present.before += u64::from(!present.is_missing());
        present.pass = pass;
        Ok(())
    }

    async fn authenticate(
        &self,
        channel: &Channel,
        user: AuthenticateRequest,
    ) -> Result<AuthPass, EtcdFailure> {
        let mut grpc = self.grpc(channel).await.map_err(EtcdFailure::without_effect)?;
        let (method, codec) = (method::<AuthenticateRequest>(), ProstCodec::default());
        let answer = grpc.unary::<_, AuthenticateResponse, _>(request(user, None), method, codec);
        match answer.await.map(Response::into_inner) {
            Ok(answer) => {
                let given = answer.token.parse();
                let mut given: Token =
                    given.map_err(|_| unexpected("an auth token that is no text"))?;
                given.set_sensitive(true);
                Ok(AuthPass::Token(given))
            }
            Err(status) if asks_nobody(&status) => {
                tracing::warn!(target: "distlock", endpoint = self.endpoint, "etcd asks for no user and no password at present: anybody may take and release these locks");
                Ok(AuthPass::NotNeeded)
            }
            Err(status) => Err(self.describe(status).without_effect()),
        }
    }

    /// The member has answered a request at `now`. Watch messages do not count: a member that is
    /// cut off from the others sends them, too.
    pub(crate) fn answered(&self, asked: RequestKind, now: ClockInstant) {
        let answered = MemberSilence { answered: Some(now), since: None };
        *self.silence.lock() = answered;
        if asked == RequestKind::Call {
            *self.silence_of_calls.lock() = answered;
        }
    }

    /// A request sent at `sent` timed out at `now`. Returns whether the member has been silent for
    /// too long.
    pub(crate) fn gave_up(
        &self,
        asked: RequestKind,
        sent: ClockInstant,
        now: ClockInstant,
    ) -> bool {
        let silence = match asked {
            RequestKind::Call => &self.silence_of_calls,
            RequestKind::KeepAlive => &self.silence,
        };
        let mut silence = silence.lock();
        let last = silence.answered.map_or(sent, |answered| answered.max(sent));
        now.since(*silence.since.get_or_insert(last)) >= PATIENCE
    }

    pub(crate) fn describe(&self, status: Status) -> EtcdFailure {
        let failed = from_etcd(&status, &self.endpoint);
        // The cluster asked nobody when the user signed in.
        let is_stale = self.user.is_some() && asks_for_a_user(&status);
        if is_stale { EtcdFailure { why: FailureClass::StaleToken, ..failed } } else { failed }
    }

    /// A stream has ended without a reason.
    pub(crate) fn hung_up(&self) -> EtcdFailure {
        self.describe(Status::unknown("the stream has ended"))
    }
}

/// The sign of a user who has signed in.
pub(crate) type Token = AsciiMetadataValue;

/// How many messages of a stream may wait to be sent.
const AHEAD: usize = 100;

fn method<C: Call>() -> PathAndQuery {
    PathAndQuery::from_static(C::METHOD)
}

fn request<T>(message: T, token: Option<Token>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let metadata = request.metadata_mut();
    // A member that is cut off from the others refuses the request at once, and ends the stream.
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    request
}
