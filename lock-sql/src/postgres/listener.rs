//! The connection on which notifications arrive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::Result;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, ConnectOptions, Executor};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::error::Failure;
use super::inner::{Inner, Want};
use super::open::Site;
use super::pool::{Pool, Repeat, Turn};
use super::value::Value;
use crate::engine::wake::Waiters;
use crate::statements::postgres::{CHANNEL, KEEP_ALIVE, Sql};

/// For how long our own notification is waited for when the store is opened.
const ECHO: Duration = Duration::from_secs(1);
/// How often a silent connection is asked whether it still works, and how long it has to answer.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
/// The first and the longest pause between two tries to get a connection.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The limit for passing a notification on.
const PASS: Duration = Duration::from_secs(2);

/// A connection that listens.
pub(super) struct Listener {
    site: Arc<Site>,
    channels: [String; 2],
    /// For making a connection.
    limit: Duration,
    connection: Option<PgListener>,
}

impl Listener {
    /// Listens, and proves that notifications arrive. `None` if they do not: a pooler swallows them.
    pub(super) async fn prove(
        site: &Arc<Site>,
        pool: &Pool,
        client: &str,
        limit: Duration,
        connection: Option<PgListener>,
    ) -> Result<Option<Self>> {
        let channels = [format!("{CHANNEL}{client}"), site.place.table.as_str().to_owned()];
        let mut listener = Self { site: Arc::clone(site), channels, limit, connection };
        let fail = |error| site.place.failure(error, true).into_error(&site.place.endpoint);
        let mut connection = listener.listen().await.map_err(fail)?;
        let notify = Sql("SELECT pg_notify($1::text, '') IS NULL".into());
        let values = [Value::from(&*listener.channels[0])];
        let rows = pool.rows(Turn::Try, Repeat::Once, &notify, &values).await;
        match rows {
            Ok(_) => {}
            Err(Failure::Pooled) => return Ok(None),
            Err(Failure::FullQueue(error)) => {
                tracing::warn!(target: "distlock", %error, "no notification can be sent");
                return Ok(None);
            }
            Err(failure) => return Err(failure.into_error(&site.place.endpoint)),
        }
        let echo = tokio::time::timeout(ECHO.min(limit), connection.try_recv()).await;
        let heard = matches!(echo, Ok(Ok(Some(_))));
        listener.connection = heard.then_some(connection);
        Ok(heard.then_some(listener))
    }

    /// Delivers what arrives until the store is gone.
    pub(super) fn start(
        self,
        waiters: Arc<Waiters>,
        unwanted: mpsc::UnboundedReceiver<Arc<str>>,
        inner: Weak<Inner>,
    ) -> AbortHandle {
        tokio::spawn(Delivery { listener: self, waiters, unwanted, inner }.run()).abort_handle()
    }

    /// On the connection that is there, else on a new one.
    async fn listen(&mut self) -> Result<PgListener, sqlx::Error> {
        let there = self.connection.take();
        let listening = async {
            let mut connection = match there {
                Some(connection) => connection,
                None => connect(&self.site, self.limit).await?,
            };
            connection.execute(sqlx::raw_sql(KEEP_ALIVE)).await?;
            connection.listen_all(self.channels.iter().map(String::as_str)).await?;
            Ok(connection)
        };
        let listening = tokio::time::timeout(self.limit, listening).await;
        listening.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Closes a connection that does not answer. Dropped as it is, it would ask the server to send no
    /// more, and wait for the answer for as long as TCP does: so it gets a working one in exchange.
    fn close(&self, mut silent: PgListener) {
        let (site, limit) = (Arc::clone(&self.site), self.limit);
        tokio::spawn(async move {
            let working = tokio::time::timeout(limit, site.options.connect()).await;
            if let (Ok(Ok(working)), Ok(connection)) = (working, silent.acquire().await) {
                *connection = working;
            }
        });
    }
}

/// A connection that can listen, and does not yet. By a pool of its own: the driver keeps the place of a
/// connection that does not answer until TCP gives it up, which takes a quarter of an hour.
pub(super) async fn connect(site: &Site, limit: Duration) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(limit)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(site.options.clone());
    let mut connection = PgListener::connect_with(&pool).await?;
    // A gap must be seen: what was sent in the meantime is lost.
    connection.eager_reconnect(false);
    Ok(connection)
}

struct Delivery {
    listener: Listener,
    waiters: Arc<Waiters>,
    unwanted: mpsc::UnboundedReceiver<Arc<str>>,
    inner: Weak<Inner>,
}

/// Its runtime may end before the store.
impl Drop for Delivery {
    fn drop(&mut self) {
        self.waiters.set_up(false);
    }
}

impl Delivery {
    async fn run(mut self) {
        let mut pause = RETRY.0;
        let mut silent = None;
        loop {
            let connection = match self.listener.connection.take() {
                Some(connection) => Ok(connection),
                None => self.listener.listen().await,
            };
            match connection {
                Ok(connection) => {
                    self.waiters.set_up(true);
                    pause = RETRY.0;
                    if let Some(silent) = silent.take() {
                        self.listener.close(silent);
                    }
                    silent = self.deliver(connection).await;
                    self.waiters.set_up(false);
                    // The others were probably cut, too.
                    if let Some(inner) = self.inner.upgrade() {
                        inner.pool.forget();
                    }
                }
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "no connection for notifications");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Returns when the connection is lost; with it, if it does not answer.
    async fn deliver(&mut self, mut connection: PgListener) -> Option<PgListener> {
        loop {
            tokio::select! {
                notification = connection.try_recv() => match notification {
                    Ok(Some(notification)) if notification.channel() == self.listener.channels[0] => {
                        // An empty one is our own, from the proof.
                        if !notification.payload().is_empty() {
                            self.waiters.wake_one(notification.payload());
                        }
                    }
                    Ok(Some(notification)) => self.waiters.wake_all(notification.payload()),
                    Ok(None) | Err(_) => return None,
                },
                name = self.unwanted.recv() => match name {
                    Some(name) => self.pass_on(name),
                    None => std::future::pending().await,
                },
                () = tokio::time::sleep(PING.0) => {
                    let ping = sqlx::query("SELECT 1").execute(&mut connection);
                    match tokio::time::timeout(PING.1, ping).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(_)) => return None,
                        Err(_) => return Some(connection),
                    }
                }
            }
        }
    }

    /// The client that was told of a free lock does not want it any more: the next one is told.
    fn pass_on(&self, name: Arc<str>) {
        let Some(inner) = self.inner.upgrade() else { return };
        tokio::spawn(async move {
            let values = [Value::from(&*name), Value::from(&*inner.client)];
            let pass = &inner.statements.pass;
            if let Err(error) = inner.execute(Want::new(Turn::Release, PASS), pass, &values).await {
                tracing::debug!(target: "distlock", %error, "a notification was not passed on");
            }
        });
    }
}
