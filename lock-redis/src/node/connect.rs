//! Making the connection, once for all who want it at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lock_core::kit::versions::REDIS;
use lock_core::{ClockInstant, Error, ErrorKind, Result};
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::watch;

use super::connection::{Inner, Link, NodeEvent};
use super::reply::info_field;
use crate::error::{Stage, from_redis, lacks_hello};

impl Inner {
    /// The connection, which is made if there is none. The attempt is a task of its own, so that a
    /// caller who gives up early does not end it for the others.
    pub(super) async fn link(self: &Arc<Self>, end: ClockInstant) -> Result<Arc<Link>> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let mut attempt = self.attempt()?;
        let left = end.since(self.options.clock.now());
        let waited = tokio::time::timeout(left, attempt.wait_for(Option::is_some)).await;
        match waited {
            Ok(Ok(outcome)) => match &*outcome {
                Some(Ok(link)) => Ok(Arc::clone(link)),
                Some(Err(error)) => Err(error.clone()),
                None => Err(self.unreachable("the attempt to connect was given up")),
            },
            Ok(Err(_)) => {
                self.state().attempt = None;
                Err(self.unreachable("the runtime in which it was connected has ended"))
            }
            Err(_) => Err(self.unreachable(&format!("no connection within {left:?}"))),
        }
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!("the Redis server at {} cannot be reached: {why}", self.endpoint),
        )
    }

    fn attempt(self: &Arc<Self>) -> Result<watch::Receiver<Option<Result<Arc<Link>>>>> {
        if self.closed.load(Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the connection to Redis was closed"));
        }
        let mut state = self.state();
        if let Some(attempt) = &state.attempt
            && attempt.has_changed().is_ok()
        {
            return Ok(attempt.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::config("Redis is connected outside of a Tokio runtime: call from within one")
        })?;
        let (sender, receiver) = watch::channel(None);
        state.attempt = Some(receiver.clone());
        drop(state);
        let inner = Arc::clone(self);
        runtime.spawn(async move {
            let outcome = inner.connect().await;
            {
                let mut state = inner.state();
                state.attempt = None;
                if let Ok(link) = &outcome {
                    state.link = Some(Arc::clone(link));
                }
            }
            if outcome.is_ok() {
                inner.emit(NodeEvent::Up);
            }
            let _ = sender.send(Some(outcome));
        });
        Ok(receiver)
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Link>> {
        let limit = self.options.connect_timeout;
        match tokio::time::timeout(limit, self.handshake()).await {
            Ok(Err(error)) if lacks_hello(&error) => Err(self.too_old(error, limit).await),
            Ok(outcome) => {
                outcome.map_err(|error| from_redis(error, Stage::Connecting, &self.endpoint))
            }
            Err(_) => Err(self.unreachable(&format!("no connection within {limit:?}"))),
        }
    }

    async fn handshake(self: &Arc<Self>) -> std::result::Result<Arc<Link>, RedisError> {
        let serial = self.serial.fetch_add(1, Relaxed);
        let mut config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        if self.listener.is_some() {
            let inner = Arc::downgrade(self);
            config = config.set_push_sender(move |info: PushInfo| {
                let Some(inner) = inner.upgrade() else { return Err(()) };
                inner.pushed(serial, &info);
                Ok(())
            });
        }
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        for channel in self.listener.iter().flat_map(|listener| &listener.channels) {
            connection.subscribe(channel).await?;
        }
        Ok(Arc::new(Link {
            connection,
            made: self.options.clock.now(),
            serial,
            stale: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
        }))
    }

    /// Describes `error` of a server without RESP3, with the version that it gives over RESP2.
    async fn too_old(&self, error: RedisError, limit: Duration) -> Error {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP2);
        let info = info.clone().set_redis_settings(settings);
        let version = async {
            let config = redis::AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            let client = redis::Client::open(info)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            redis::cmd("INFO").arg("server").query_async::<Value>(&mut connection).await
        };
        let said = tokio::time::timeout(limit, version).await;
        let version = said.ok().and_then(|said| info_field(&said.ok()?, "redis_version"));
        match version.map(|version| REDIS.check(&version)) {
            Some(Err(too_old)) => too_old,
            _ => from_redis(error, Stage::Connecting, &self.endpoint),
        }
    }

    fn pushed(&self, serial: u64, info: &PushInfo) {
        match (&info.kind, info.data.as_slice()) {
            (PushKind::Message, [_, Value::BulkString(payload)]) => {
                self.heard.store(self.options.clock.now().as_nanos(), Relaxed);
                self.emit(NodeEvent::Message { payload });
            }
            (PushKind::Disconnection, _) => {
                let link = self.state().link.as_ref().map(Arc::clone);
                if let Some(link) = link.filter(|link| link.serial == serial) {
                    self.give_up(&link);
                }
            }
            _ => {}
        }
    }
}
