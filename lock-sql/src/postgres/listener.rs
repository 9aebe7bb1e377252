//! The connection on which notifications arrive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{Clock, Result, SystemClock};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, ConnectOptions, Executor as _};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::free::Free;
use super::server::PostgresServer;
use super::statements::{CHANNEL, KEEP_ALIVE};
use crate::engine::driver::Driver as _;
use crate::engine::error::Means;
use crate::engine::executor::Executor;
use crate::engine::links::{Links as _, Turn, Want};
use crate::engine::pool::Pool;
use crate::engine::statement::{Places, Statement, Values};
use crate::engine::wake::Waiters;

/// How long to wait for our own notification when the store is opened.
const ECHO: Duration = Duration::from_secs(1);
/// How often an idle connection is tested, and how long it has to answer.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
/// The first and the longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The limit for passing a notification on.
const PASS: Duration = Duration::from_secs(2);

/// A listening connection.
pub(super) struct Listener {
    server: Arc<PostgresServer>,
    channels: [String; 2],
    /// For making a connection.
    limit: Duration,
    connection: Option<PgListener>,
}

impl Listener {
    /// Listens, and proves that notifications arrive. `None` if they do not: a pooler drops them.
    /// `clock`: that of `pool`.
    pub(super) async fn prove(
        server: &Arc<PostgresServer>,
        pool: &Arc<Pool<PostgresServer>>,
        clock: &SystemClock,
        client: &str,
        limit: Duration,
        connection: Option<PgListener>,
    ) -> Result<Option<Self>> {
        let channels = [format!("{CHANNEL}{client}"), server.channel.clone()];
        let mut listener = Self { server: Arc::clone(server), channels, limit, connection };
        let mut connection =
            listener.listen().await.map_err(|error| server.failure(error, false))?;
        let notify = "SELECT pg_notify(:channel::text, '') IS NULL";
        let notify = Statement::new(Places::Dollars, 0, notify);
        let values = Values::default().with("channel", &*listener.channels[0]);
        let want = Want::patient(Turn::Try, clock.now(), limit);
        match pool.execute(want, &|| notify.bind(&values)).await {
            Ok(_) => {}
            Err(failure) if failure.means == Means::Contended && server.is_pooled() => {
                return Ok(None);
            }
            Err(failure) if failure.means == Means::FullQueue => {
                let error = failure.error;
                tracing::warn!(target: "distlock", %error, "no notification can be sent");
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        }
        let echo = tokio::time::timeout(ECHO.min(limit), connection.try_recv()).await;
        let arrived = matches!(echo, Ok(Ok(Some(_))));
        listener.connection = arrived.then_some(connection);
        Ok(arrived.then_some(listener))
    }

    /// Delivers what arrives until it is aborted.
    pub(super) fn start(self, receiver: Receiver) -> AbortHandle {
        tokio::spawn(Delivery { listener: self, receiver }.run()).abort_handle()
    }

    /// Listens on the existing connection, or else on a new one.
    async fn listen(&mut self) -> Result<PgListener, sqlx::Error> {
        let there = self.connection.take();
        let listening = async {
            let mut connection = match there {
                Some(connection) => connection,
                None => connect(&self.server, self.limit).await?,
            };
            connection.execute(sqlx::raw_sql(KEEP_ALIVE)).await?;
            connection.listen_all(self.channels.iter().map(String::as_str)).await?;
            Ok(connection)
        };
        let listening = tokio::time::timeout(self.limit, listening).await;
        listening.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Closes a connection that does not answer. If simply dropped, it would ask the server to stop
    /// sending, and wait for the reply as long as TCP does, so it is first swapped for a working
    /// one.
    fn close(&self, mut silent: PgListener) {
        let (server, limit) = (Arc::clone(&self.server), self.limit);
        tokio::spawn(async move {
            let working = tokio::time::timeout(limit, server.options.connect()).await;
            if let (Ok(Ok(working)), Ok(connection)) = (working, silent.acquire().await) {
                *connection = working;
            }
        });
    }
}

/// A connection that can listen, but does not yet. It has its own pool: the driver keeps the slot
/// of an unresponsive connection until TCP gives it up, which takes a quarter of an hour.
pub(super) async fn connect(
    server: &PostgresServer,
    limit: Duration,
) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(limit)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(server.options.clone());
    let mut connection = PgListener::connect_with(&pool).await?;
    // A gap must be noticed: notifications sent during it are lost.
    connection.eager_reconnect(false);
    Ok(connection)
}

/// What to do with notifications.
pub(super) struct Receiver {
    pub(super) waiters: Arc<Waiters>,
    /// Names whose notification found no waiter: this client no longer wants the lock.
    pub(super) unwanted: mpsc::UnboundedReceiver<Arc<str>>,
    pub(super) free: Arc<Free>,
    /// The name of this client.
    pub(super) client: String,
    /// Does not keep the store alive.
    pub(super) executor: Weak<Executor<PostgresServer>>,
}

impl Receiver {
    /// The other connections were probably lost, too.
    fn lost(&self) {
        if let Some(executor) = self.executor.upgrade() {
            executor.links.forget();
        }
    }

    /// The next client is notified.
    fn pass_on(&self, name: &str) {
        let Some(executor) = self.executor.upgrade() else { return };
        let values = Values::default().with("name", name).with("client", &*self.client);
        tokio::spawn(async move {
            let want = executor.want(Turn::Release, PASS);
            if let Err(failure) = executor.execute(want, &executor.own().pass, &values).await {
                let error = failure.error;
                tracing::debug!(target: "distlock", %error, "a notification was not passed on");
            }
        });
    }
}

struct Delivery {
    listener: Listener,
    receiver: Receiver,
}

/// Its runtime may end before the store.
impl Drop for Delivery {
    fn drop(&mut self) {
        self.receiver.waiters.set_up(false);
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
                    self.receiver.waiters.set_up(true);
                    pause = RETRY.0;
                    if let Some(silent) = silent.take() {
                        self.listener.close(silent);
                    }
                    silent = self.deliver(connection).await;
                    self.receiver.waiters.set_up(false);
                    self.receiver.lost();
                }
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "cannot connect for notifications");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Returns when the connection is lost; returns the connection if it merely does not answer.
    async fn deliver(&mut self, mut connection: PgListener) -> Option<PgListener> {
        loop {
            tokio::select! {
                notification = connection.try_recv() => match notification {
                    Ok(Some(notification)) if notification.channel() == self.listener.channels[0] => {
                        // An empty one is our own, from the proof.
                        if !notification.payload().is_empty() {
                            self.receiver.free.note(notification.payload());
                            self.receiver.waiters.wake_one(notification.payload());
                        }
                    }
                    Ok(Some(notification)) => self.receiver.waiters.wake_all(notification.payload()),
                    Ok(None) | Err(_) => return None,
                },
                name = self.receiver.unwanted.recv() => match name {
                    Some(name) => self.receiver.pass_on(&name),
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
}
