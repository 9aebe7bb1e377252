//! The connection on which notifications arrive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{OsRng, Result, jitter};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Acquire, ConnectOptions, Executor as _};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::engine::store::SqlStore;
use crate::engine::table::lock_table::StatementName;
use crate::engine::waiters::NotifiedClaims;
use crate::engine::wire::connections::StatementClass;
use crate::engine::wire::driver::SqlDriver as _;
use crate::engine::wire::errors::FailureRemedy;
use crate::engine::wire::statement::{PlaceStyle, SqlStatement, Values};
use crate::postgres::server::PostgresServer;
use crate::postgres::statements::{CHANNEL, KEEP_ALIVE};

/// How long to wait for our own notification when the store is opened: a server that is busy takes its time,
/// and without it waiters poll for as long as the store is open. Nor longer than half of what is allowed
/// for opening.
const ECHO: Duration = Duration::from_secs(4);
/// How often an idle connection is tested, and how long it has to answer.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
/// The first and the longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The limit for passing a notification on.
const PASS: Duration = Duration::from_secs(2);

/// A listening connection.
pub(super) struct NotificationListener {
    options: PgConnectOptions,
    channels: [String; 2],
    /// For making a connection.
    limit: Duration,
    connection: Option<PgListener>,
}

impl NotificationListener {
    /// Listens, and proves that notifications arrive. `None` if they do not: a pooler drops them.
    pub(super) async fn prove(
        store: &SqlStore<PostgresServer>,
        limit: Duration,
        connection: Option<PgListener>,
    ) -> Result<Option<Self>> {
        let server = &store.dialect;
        let channels = [format!("{CHANNEL}{}", server.client), server.channel.clone()];
        let mut listener = Self { options: server.options.clone(), channels, limit, connection };
        let mut connection =
            listener.listen().await.map_err(|error| server.failure(error, false))?;
        let notify = "SELECT pg_notify(:channel::text, '') IS NULL";
        let notify = SqlStatement::new(PlaceStyle::Dollars, 0, notify);
        let values = Values::default().with("channel", &*listener.channels[0]);
        let limits = store.limits(StatementClass::Try, limit);
        match store.connections.execute(limits, &notify, &values).await {
            Ok(_) => {}
            Err(failure) if failure.remedy == FailureRemedy::Contended && server.is_pooled() => {
                return Ok(None);
            }
            Err(failure) if failure.remedy == FailureRemedy::FullQueue => {
                let error = failure.error;
                tracing::warn!(target: "distlock", %error, "no notification can be sent");
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        }
        let echo = tokio::time::timeout(ECHO.min(limit / 2), connection.try_recv()).await;
        let arrived = matches!(echo, Ok(Ok(Some(_))));
        listener.connection = arrived.then_some(connection);
        Ok(arrived.then_some(listener))
    }

    /// Delivers what arrives until it is aborted.
    pub(super) fn start(
        self,
        store: &Arc<SqlStore<PostgresServer>>,
    ) -> (Arc<NotifiedClaims>, AbortHandle) {
        let (waiters, unwanted) = NotifiedClaims::new();
        let (to, store) = (Arc::clone(&waiters), Arc::downgrade(store));
        let delivery = NotificationDelivery { listener: self, waiters: to, unwanted, store };
        (waiters, tokio::spawn(delivery.run()).abort_handle())
    }

    /// Listens on the existing connection, or else on a new one.
    async fn listen(&mut self) -> Result<PgListener, sqlx::Error> {
        let there = self.connection.take();
        let listening = async {
            let mut connection = match there {
                Some(connection) => connection,
                None => connect(&self.options, self.limit).await?,
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
        let (options, limit) = (self.options.clone(), self.limit);
        tokio::spawn(async move {
            let working = tokio::time::timeout(limit, options.connect()).await;
            if let (Ok(Ok(working)), Ok(connection)) = (working, silent.acquire().await) {
                *connection = working;
            }
        });
    }
}

/// A connection that can listen, but does not yet. It has its own pool: the driver keeps the slot
/// of an unresponsive connection until TCP gives it up, which takes a quarter of an hour.
pub(super) async fn connect(
    options: &PgConnectOptions,
    limit: Duration,
) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(limit)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options.clone());
    let mut connection = PgListener::connect_with(&pool).await?;
    // A gap must be noticed: notifications sent during it are lost.
    connection.eager_reconnect(false);
    Ok(connection)
}

/// What is done with notifications.
struct NotificationDelivery {
    listener: NotificationListener,
    waiters: Arc<NotifiedClaims>,
    /// Names whose notification found no waiter: this client no longer wants the lock.
    unwanted: mpsc::UnboundedReceiver<Arc<str>>,
    /// Not kept alive.
    store: Weak<SqlStore<PostgresServer>>,
}

/// Its runtime may end before the store.
impl Drop for NotificationDelivery {
    fn drop(&mut self) {
        self.waiters.set_up(false);
    }
}

impl NotificationDelivery {
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
                    if let Some(store) = self.store.upgrade() {
                        // The other connections were probably lost, too.
                        store.connections.forget();
                    }
                }
                Err(error) => {
                    tracing::debug!(target: "distlock", %error, "cannot connect for notifications");
                }
            }
            // At different times for the clients of one server.
            tokio::time::sleep(pause / 2 + jitter(&OsRng, pause / 2)).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Returns when the connection is lost; returns the connection if it merely does not answer.
    async fn deliver(&mut self, mut connection: PgListener) -> Option<PgListener> {
        loop {
            tokio::select! {
                notification = connection.try_recv() => match notification {
                    Ok(Some(notification)) if notification.channel() == self.listener.channels[0] => {
                        self.released(notification.payload());
                    }
                    Ok(Some(notification)) => self.waiters.wake_all(notification.payload()),
                    Ok(None) | Err(_) => return None,
                },
                name = self.unwanted.recv() => match name {
                    Some(name) => self.pass_on(&name),
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

    /// A lock is free, and this client is told.
    fn released(&self, name: &str) {
        // An empty one is our own, from the proof.
        if let Some(store) = self.store.upgrade()
            && !name.is_empty()
        {
            store.dialect.free.note(name);
            self.waiters.wake_one(name);
        }
    }

    /// The next client is notified.
    fn pass_on(&self, name: &str) {
        let Some(store) = self.store.upgrade() else { return };
        let name = name.to_owned();
        tokio::spawn(async move {
            let values = Values::default().with("name", name);
            let limits = store.limits(StatementClass::Release, PASS);
            let pass = store.statement(StatementName::Pass);
            if let Err(failure) = store.execute(limits, pass, &values).await {
                let error = failure.error;
                tracing::debug!(target: "distlock", %error, "a notification was not passed on");
            }
        });
    }
}
