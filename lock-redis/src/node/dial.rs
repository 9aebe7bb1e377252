//! How a connection is made.

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::versions::REDIS;
use lock_core::{Error, ErrorKind, Result};
use redis::{PushInfo, PushKind, RedisError, Value};

use super::connection::{Connection, Life};
use super::pulse::Pulse;
use super::reply::info_field;
use crate::error::{Stage, from_redis, lacks_hello};

/// Data that the server's machine has not confirmed for so long are given up by the kernel.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes connections to one server.
#[derive(Debug)]
pub(super) struct Dial {
    client: redis::Client,
    /// The limit for making a connection, the handshake included.
    pub(super) limit: Duration,
    pub(super) pulse: Arc<Pulse>,
}

impl Dial {
    /// Nothing is sent. RESP3 is switched on: pushes share the connection with the answers.
    pub(super) fn new(client: &redis::Client, limit: Duration, pulse: Arc<Pulse>) -> Result<Self> {
        let info = client.get_connection_info().clone();
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(redis::ProtocolVersion::RESP3)
            .set_lib_name("distlock", env!("CARGO_PKG_VERSION"));
        let tcp = info
            .tcp_settings()
            .clone()
            .set_nodelay(true)
            // Bytes that nobody has confirmed are given up then, so that a request cannot arrive
            // long after everybody has forgotten it.
            .set_user_timeout(USER_TIMEOUT);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = redis::Client::open(info)
            .map_err(|error| from_redis(error, Stage::Connecting, &pulse.endpoint))?;
        Ok(Self { client, limit, pulse })
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        match tokio::time::timeout(self.limit, self.handshake()).await {
            Ok(Err(error)) if lacks_hello(&error) => Err(self.too_old(error).await),
            Ok(outcome) => {
                outcome.map_err(|error| from_redis(error, Stage::Connecting, &self.pulse.endpoint))
            }
            Err(_) => Err(self.unreachable(&format!("no connection within {:?}", self.limit))),
        }
    }

    pub(super) fn unreachable(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!("the Redis server at {} cannot be reached: {why}", self.pulse.endpoint),
        )
    }

    async fn handshake(&self) -> std::result::Result<Connection, RedisError> {
        let life = Arc::new(Life::new(Arc::clone(&self.pulse)));
        let pushed = Arc::clone(&life);
        let config = unlimited().set_push_sender(move |info: PushInfo| {
            match (&info.kind, info.data.as_slice()) {
                (PushKind::Message, [_, Value::BulkString(payload)]) => {
                    pushed.pulse.note_push(payload);
                }
                (PushKind::Disconnection, _) => pushed.give_up(),
                _ => {}
            }
            Ok::<_, redis::aio::SendError>(())
        });
        let mut driver = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        for channel in self.pulse.channels() {
            driver.subscribe(channel).await?;
        }
        Ok(Connection::new(driver, life))
    }

    /// Describes `error` of a server without RESP3, with the version that it gives over RESP2.
    async fn too_old(&self, error: RedisError) -> Error {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP2);
        let info = info.clone().set_redis_settings(settings);
        let version = async {
            let client = redis::Client::open(info)?;
            let mut driver =
                client.get_multiplexed_async_connection_with_config(&unlimited()).await?;
            redis::cmd("INFO").arg("server").query_async::<Value>(&mut driver).await
        };
        let said = tokio::time::timeout(self.limit, version).await;
        let version = said.ok().and_then(|said| info_field(&said.ok()?, "redis_version"));
        match version.map(|version| REDIS.check(&version)) {
            Some(Err(too_old)) => too_old,
            _ => from_redis(error, Stage::Connecting, &self.pulse.endpoint),
        }
    }
}

/// Our own limits hold, not those of the driver.
fn unlimited() -> redis::AsyncConnectionConfig {
    redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}
