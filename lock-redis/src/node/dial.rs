//! Opens connections.

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::versions::REDIS;
use lock_core::{Error, Result};
use redis::{PushInfo, PushKind, RedisError, Value};

use super::connection::{Connection, Life};
use super::pulse::{NodeEvent, Pulse};
use super::reply::info_field;
use crate::error::{Stage, from_redis, lacks_hello};

/// The kernel gives up data that the server's machine has not confirmed for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens connections to one server.
pub(super) struct Dial {
    client: redis::Client,
    pub(super) pulse: Arc<Pulse>,
}

impl Dial {
    /// Nothing is sent. RESP3 is switched on: pushes share the connection with the answers.
    pub(super) fn new(client: &redis::Client, pulse: Arc<Pulse>) -> Result<Self> {
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
            // Unconfirmed bytes are given up then: a request cannot arrive long after its caller
            // has forgotten it.
            .set_user_timeout(USER_TIMEOUT);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = redis::Client::open(info)
            .map_err(|error| from_redis(error, Stage::Connecting, &pulse.endpoint))?;
        Ok(Self { client, pulse })
    }

    /// Opens a connection and notifies the listener.
    pub(super) async fn connect(&self) -> Result<Connection> {
        match self.handshake().await {
            Ok(connection) => {
                self.pulse.emit(NodeEvent::Up);
                Ok(connection)
            }
            Err(error) if lacks_hello(&error) => Err(self.too_old(error).await),
            Err(error) => Err(from_redis(error, Stage::Connecting, &self.pulse.endpoint)),
        }
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

    /// Describes `error` of a server without RESP3, with the version that it reports over RESP2.
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
        let version = version.await.ok().and_then(|info| info_field(&info, "redis_version"));
        match version.map(|version| REDIS.check(&version)) {
            Some(Err(too_old)) => too_old,
            _ => from_redis(error, Stage::Connecting, &self.pulse.endpoint),
        }
    }
}

/// Our own limits apply, not those of the driver.
fn unlimited() -> redis::AsyncConnectionConfig {
    redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}
