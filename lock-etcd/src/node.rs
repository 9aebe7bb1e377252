//! The link to the cluster: one member at a time, another one when it fails.
//!
//! The driver can spread its calls over several members, but it does so blindly: with one of two
//! members dead 40 % of the calls failed (measured). So each of its clients here knows one member, and
//! whatever shows that the member is of no use moves everything to the next one: requests, the stream
//! of watches and those of keep-alives.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error as EtcdError};
use lock_core::{Clock, ClockInstant, Error, OsRng, Result, Rng};
use tokio::sync::{Mutex, OnceCell, watch};

use crate::config::EtcdConfig;
use crate::error::{Failed, Why, from_etcd};

/// A member that leaves requests unanswered is left after this, if nobody has had an answer meanwhile.
/// One call with a shorter limit than a busy member needs must not end the streams, and the requests
/// under way, of everybody else; and whoever has short limits must get away from a dead link in time.
const PATIENCE: Duration = Duration::from_millis(150);

/// The cluster as this client sees it.
pub(crate) struct Node {
    config: Option<EtcdConfig>,
    clock: Arc<dyn Clock>,
    link: watch::Sender<Option<Arc<Link>>>,
    /// Held while the link is being replaced.
    replacing: Mutex<()>,
}

/// The link to one member.
pub(crate) struct Link {
    /// Rises with every new link.
    number: u64,
    member: usize,
    endpoint: String,
    client: Client,
    user: Option<(String, String)>,
    signed_in: OnceCell<()>,
    /// How many tokens there were before the present one.
    tokens: AtomicU64,
    /// Held while a new token is asked for.
    renewing: Mutex<()>,
    silence: SyncMutex<Silence>,
}

/// What tells whether a member is silent, or only slow.
#[derive(Debug, Default)]
struct Silence {
    /// When the last answer came.
    answered: Option<ClockInstant>,
    /// Since when it has left the first of those requests unanswered that were given up since then.
    since: Option<ClockInstant>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("number", &self.number)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("link", &*self.link.borrow()).finish_non_exhaustive()
    }
}

impl Node {
    /// A cluster that is reached by links of our own making. Nothing is sent. The first link is to any
    /// member: where all clients begin with the same one, it alone has their load.
    pub(crate) async fn new(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut bytes = [0; 8];
        OsRng.fill(&mut bytes)?;
        let first = usize::try_from(u64::from_le_bytes(bytes) >> 32).unwrap_or(0);
        let link = open(&config, first % config.members.len(), 0).await?;
        Ok(Self {
            config: Some(config),
            clock,
            link: watch::Sender::new(Some(Arc::new(link))),
            replacing: Mutex::default(),
        })
    }

    /// A cluster that is reached by somebody else's client.
    pub(crate) fn foreign(client: Client, clock: Arc<dyn Clock>) -> Self {
        let link = Link {
            number: 0,
            member: 0,
            endpoint: "the given client".to_owned(),
            client,
            user: None,
            signed_in: OnceCell::new(),
            tokens: AtomicU64::new(0),
            renewing: Mutex::default(),
            silence: SyncMutex::default(),
        };
        Self {
            config: None,
            clock,
            link: watch::Sender::new(Some(Arc::new(link))),
            replacing: Mutex::default(),
        }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The present link; `None` after the client was closed.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.borrow().clone()
    }

    /// Follows the replacements of the link.
    pub(crate) fn links(&self) -> watch::Receiver<Option<Arc<Link>>> {
        self.link.subscribe()
    }

    /// Ends all streams; requests fail from now on.
    pub(crate) fn close(&self) {
        self.link.send_replace(None);
    }

    /// Ready when the client was closed.
    pub(crate) async fn closed(&self) {
        let _ = self.link.subscribe().wait_for(Option::is_none).await;
    }

    pub(crate) fn members(&self) -> usize {
        self.config.as_ref().map_or(1, |config| config.members.len())
    }

    /// Moves on to the next member, unless somebody else has done so since `link` was the present one.
    /// With one member this makes a new connection: the old one may be a black hole.
    pub(crate) async fn leave(&self, link: &Link) {
        let _turn = self.replacing.lock().await;
        let is_present = self.link().is_some_and(|present| present.number == link.number);
        if !is_present {
            return;
        }
        let number = link.number + 1;
        let next = match &self.config {
            Some(config) => {
                match open(config, (link.member + 1) % config.members.len(), number).await {
                    Ok(next) => next,
                    // The addresses were good before, so this does not happen.
                    Err(_) => return,
                }
            }
            None => Link {
                number,
                member: 0,
                endpoint: link.endpoint.clone(),
                client: link.client.clone(),
                user: None,
                signed_in: OnceCell::new(),
                tokens: AtomicU64::new(0),
                renewing: Mutex::default(),
                silence: SyncMutex::default(),
            },
        };
        tracing::debug!(target: "distlock", from = link.endpoint, to = next.endpoint, "another link to etcd");
        self.link.send_if_modified(|present| {
            // A closed client stays closed.
            let replaced = present.is_some();
            if replaced {
                *present = Some(Arc::new(next));
            }
            replaced
        });
    }

    /// Notes that a request that was sent at `sent` is given up, and leaves a member that is silent.
    pub(crate) async fn gave_up(&self, link: &Link, sent: ClockInstant) {
        let is_silent = {
            let mut silence = link.silence();
            let last = silence.answered.map_or(sent, |answered| answered.max(sent));
            let since = *silence.since.get_or_insert(last);
            self.clock.now().since(since) >= PATIENCE
        };
        if is_silent {
            self.leave(link).await;
        }
    }

    /// Makes one request within `limit`. It is repeated, at another member or with a new token, only
    /// where nothing was done.
    pub(crate) async fn call<T, F, R>(&self, limit: Duration, request: F) -> Result<T, Failed>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, EtcdError>>,
    {
        let (mut used, sent) = (None, self.clock.now());
        match tokio::time::timeout(limit, self.try_members(&mut used, request)).await {
            Ok(answer) => answer,
            Err(_) => {
                let Some(link) = used else { return Err(Failed::closed()) };
                self.gave_up(&link, sent).await;
                Err(Failed::timeout(&link.endpoint, limit))
            }
        }
    }

    async fn try_members<T, F, R>(
        &self,
        used: &mut Option<Arc<Link>>,
        request: F,
    ) -> Result<T, Failed>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, EtcdError>>,
    {
        let (mut moves, mut tokens) = (0, 0);
        loop {
            let Some(link) = self.link() else { return Err(Failed::closed()) };
            *used = Some(Arc::clone(&link));
            let token = link.token();
            let failed = match link.run(&*self.clock, &request).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if failed.is_about_the_member() {
                self.leave(&link).await;
            }
            match failed.why {
                _ if failed.is_for_another() && moves + 1 < self.members() => moves += 1,
                // A client that was made elsewhere has its own user.
                Why::StaleToken if tokens == 0 => {
                    tokens += 1;
                    link.renew_token(token).await?;
                }
                _ => return Err(failed),
            }
        }
    }
}

impl Link {
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member has answered a request at `now`. What a watch tells does not count: a member that is
    /// cut off from the others tells it, too.
    pub(crate) fn answered(&self, now: ClockInstant) {
        *self.silence() = Silence { answered: Some(now), since: None };
    }

    pub(crate) fn member(&self) -> usize {
        self.member
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

    /// Signs in again, unless somebody has done so since `token` was in use: to check a password is the
    /// most expensive thing that the server does. The driver signs in by itself only after one of the
    /// server's complaints.
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

    async fn run<T, F, R>(&self, clock: &dyn Clock, request: &F) -> Result<T, Failed>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, EtcdError>>,
    {
        let client = self.client().await?;
        let answer = request(client).await.map_err(|error| self.describe(error));
        if answer.as_ref().err().is_none_or(|failed| !failed.is_about_the_member()) {
            self.answered(clock.now());
        }
        answer
    }

    pub(crate) fn describe(&self, error: EtcdError) -> Failed {
        from_etcd(error, &self.endpoint)
    }
}

/// The version of one member, asked over a connection of its own.
pub(crate) async fn version_of(config: &EtcdConfig, member: usize) -> Result<String, Failed> {
    let opened = open(config, member, 0).await;
    let link = opened.map_err(|error| Failed { why: Why::Refused, error })?;
    let limit = config.connect_timeout + config.response_timeout;
    let mut client = link.client.clone();
    match tokio::time::timeout(limit, client.status()).await {
        Ok(status) => Ok(status.map_err(|error| link.describe(error))?.version().to_owned()),
        Err(_) => Err(Failed::timeout(&link.endpoint, limit)),
    }
}

/// A client of one member. The connection is made by its first request.
async fn open(config: &EtcdConfig, member: usize, number: u64) -> Result<Link> {
    let endpoint = config.members[member].clone();
    let client = Client::connect([config.url_of(&endpoint)], Some(config.options()))
        .await
        .map_err(|error| {
            Error::config(format!("the address {endpoint} of an etcd member cannot be used"))
                .with_source(error)
        })?;
    Ok(Link {
        number,
        member,
        endpoint,
        client,
        user: config.user.clone(),
        signed_in: OnceCell::new(),
        tokens: AtomicU64::new(0),
        renewing: Mutex::default(),
        silence: SyncMutex::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::SystemClock;

    /// A member that takes connections, and answers nothing.
    async fn silent() -> (tokio::net::TcpListener, Node) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = EtcdConfig::new([listener.local_addr().unwrap().to_string()]).unwrap();
        let node = Node::new(config, Arc::new(SystemClock::default())).await.unwrap();
        (listener, node)
    }

    async fn ask(node: &Node, limit: u64) {
        let limit = Duration::from_millis(limit);
        let answer = node.call(limit, |mut client| async move { client.get("k", None).await });
        assert_eq!(answer.await.unwrap_err().error.kind(), lock_core::ErrorKind::Timeout);
    }

    #[tokio::test]
    async fn one_short_call_does_not_replace_the_link_of_all() {
        let (_listener, node) = silent().await;
        let first = node.link().unwrap();
        ask(&node, 40).await;
        assert_eq!(node.link().unwrap().number, first.number, "left after one short call");
        tokio::time::sleep(PATIENCE).await;
        // Answers in between, to whomever, show that the member is only slow.
        let answers = async {
            loop {
                first.answered(node.clock().now());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = ask(&node, 400) => {}
            () = answers => {}
        }
        ask(&node, 40).await;
        assert_eq!(node.link().unwrap().number, first.number, "left although it answers");
        tokio::time::sleep(PATIENCE).await;
        ask(&node, 40).await;
        assert_eq!(node.link().unwrap().number, first.number + 1, "never left");
        ask(&node, 160).await;
        assert_eq!(node.link().unwrap().number, first.number + 2, "not left at once");
    }
}
