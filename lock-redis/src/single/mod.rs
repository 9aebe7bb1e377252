//! One Redis server as a store, with a fair queue inside it.
//!
//! A try goes from `claim`, which builds the script call, to the node, which runs it over the
//! connection. What the claims of one client share is in `client`, the checks on locks that it has
//! handed over in `hand_overs`; renewals of many claims travel as one call of `renewals`. Pushes arrive in `waiters`.
//! `admin` is for operators only.

mod admin;
mod claim;
mod client;
mod config;
mod hand_overs;
mod renewals;
mod scripts;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Binding, Capabilities, Claim, ClaimRequest, DataLoss, Error, ErrorKind, Fencing, FencingToken,
    HolderInfo, HolderMark, LockAdmin, LockBackend, LockKey, Result, Seen, Wake, async_trait,
};
use lock_kit::runtime;
use redis::Value;

use self::claim::RedisClaim;
use self::client::ServerClient;
use self::scripts::{LOOK, MARK, PROBE};
use crate::error::REDIS;
use crate::node::{Eviction, ReplyReader, ServerAddress, info_field};

pub(crate) use self::config::{GRACE, PAUSE, RESPONSE_TIMEOUT};
pub use self::config::{PARAMETERS, Pause, RedisConfig, SCHEMES};

/// Connects to the server that `url` names: see [`RedisConfig::from_url`] for its form and its
/// parameters.
///
/// # Errors
///
/// As [`RedisConfig::from_url`] and [`RedisBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<RedisBackend> {
    RedisBackend::connect(RedisConfig::from_url(url)?).await
}

/// The locks of one Redis server, as one client of it.
///
/// Clones share one connection for all commands and pushes. For the guarantees, and what breaks
/// them, see the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct RedisBackend {
    client: Arc<ServerClient>,
    evicts: bool,
}

impl RedisBackend {
    /// Connects, and checks that the server can keep locks: its version, the rights of the user, and
    /// that it does not evict.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) if the server cannot be reached or cannot write now (a
    /// replica, a full disk), [`Denied`](ErrorKind::Denied) if it refuses the credentials or a
    /// command that locks need (the message lists them), [`Unsupported`](ErrorKind::Unsupported) if
    /// it is older than Redis 6.0, [`Config`](ErrorKind::Config) if it evicts keys when its memory
    /// is full. If `INFO` is denied, a warning reports that version and eviction are not known.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        runtime::require("Redis")?;
        let backend =
            Self { client: ServerClient::new(&config)?, evicts: config.eviction == Eviction::Warn };
        backend.check_rights().await?;
        backend.check_server(config.eviction).await?;
        // Sentinels lead to none that is not checked.
        if matches!(config.address, ServerAddress::Fixed(_)) {
            let _ = backend.client.checked.set(config.eviction);
        }
        Ok(backend)
    }

    async fn check_rights(&self) -> Result<()> {
        let client = &self.client;
        let keys = ["string", "set", "hash"].map(|kind| client.probe_key(kind));
        let channel = client.channel();
        let call = PROBE.call().keys(&keys).key(MARK).arg(&channel);
        client.node.probe(call, "The page of lock-redis", client.limit).await
    }

    /// Checks the version, and that locks are not evicted.
    async fn check_server(&self, eviction: Eviction) -> Result<()> {
        let node = &self.client.node;
        let info = match node.command(&redis::cmd("INFO"), self.client.limit).await {
            Ok(info) => info,
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(target: "distlock", endpoint = node.endpoint(), "INFO is denied, so it is not known whether this server is {REDIS} or newer, or whether it evicts locks: maxmemory-policy must be noeviction");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        judge(&info, node.endpoint(), eviction)
    }
}

/// Whether a server that says this of itself can keep locks.
fn judge(info: &Value, endpoint: &str, eviction: Eviction) -> Result<()> {
    let version = info_field(info, "redis_version").ok_or_else(|| {
        let text = format!("the Redis server at {endpoint} has no redis_version in INFO");
        Error::new(ErrorKind::Store, text)
    })?;
    REDIS.check(&version)?;
    match info_field(info, "maxmemory_policy") {
        Some(policy) => eviction.check(endpoint, &policy),
        // A server that is Redis by its protocol only.
        None => {
            tracing::warn!(target: "distlock", endpoint, "this server does not say whether it evicts keys when its memory is full: it must not evict locks");
            Ok(())
        }
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::BestEffort;
        can.fence_block = true;
        can.detachable = true;
        can.inspect = true;
        can.look = true;
        can.loses_data_on = if self.evicts {
            &[DataLoss::Restart, DataLoss::Failover, DataLoss::Eviction]
        } else {
            &[DataLoss::Restart, DataLoss::Failover]
        };
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(RedisClaim::new(Arc::clone(&self.client), request)?))
    }

    async fn ping(&self) -> Result<()> {
        self.client.node.ping(self.client.limit).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let client = &self.client;
        let locks: Vec<_> = keys.iter().map(LockKey::encode).collect();
        let never_there = client.probe_key("string");
        let call = LOOK.call().key(MARK).key(&never_there).keys(&locks);
        let read = |answer: Value| ReplyReader::lists("a look", &answer, locks.len(), seen);
        client.node.ask(call, client.limit, read).await
    }

    async fn close(&self) -> Result<()> {
        self.client.node.shut_down().await;
        Ok(())
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

/// Fences as a record has them: the first, and how many there are if it is more than one.
fn in_record(first: FencingToken, fences: u32) -> String {
    if fences > 1 { format!("{first}+{fences}") } else { first.to_string() }
}

/// The first of the fences in a record.
fn first_of(fences: &str) -> Option<u64> {
    fences.split('+').next()?.parse().ok()
}

/// What a look shows of one lock.
fn seen(shown: ReplyReader<'_>) -> Result<Seen> {
    match shown.number(0)? {
        0 => Ok(Seen::Free { floor: FencingToken::new(shown.count(1)?).ok() }),
        1 => {
            let first = first_of(&shown.text(1)?);
            let fence = first.and_then(|first| FencingToken::answered(first).ok());
            let label = Some(shown.text(2)?).filter(|label| !label.is_empty());
            Ok(Seen::Held { fence, label })
        }
        _ => Err(shown.wrong()),
    }
}

/// `mark` names the hold, and is the owner of one of ours; `left` is how long it has, and `now` the server's clock in µs. The
/// record is owner, fences, since when, client and label, or `unknown` for another version of this library; that of a plain
/// client is empty.
fn holder(mark: &[u8], record: &[u8], left: Option<Duration>, now: u64) -> HolderInfo {
    let mut info = HolderInfo::new(HolderMark::new(mark.to_vec()));
    info.expires_in = left;
    let (mark, record) = (String::from_utf8_lossy(mark), String::from_utf8_lossy(record));
    let fields: Vec<_> = record.splitn(5, '|').collect();
    if let [owner, fences, since, _client, label] = fields[..]
        && owner == mark
    {
        info.owner = owner.parse().ok();
        info.fence = first_of(fences).and_then(|first| FencingToken::answered(first).ok());
        info.label = (!label.is_empty()).then(|| label.to_owned());
        let held = since.parse().ok().and_then(|since: u64| now.checked_sub(since));
        info.held_for = held.map(Duration::from_micros);
    } else {
        // A client that is not this library. Its value may be a secret, so it is not shown.
        let whose = if record == "unknown" {
            "another version of distlock"
        } else {
            "a client that is not distlock"
        };
        info.label = Some(whose.to_owned());
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_who_holds_and_since_when() {
        let owner = "00112233445566778899aabbccddeeff";
        let token = |n| FencingToken::new(n).unwrap();
        assert_eq!(in_record(token(7), 1), "7");
        assert_eq!(in_record(token(7), 2), "7+2");
        for (fences, label, shown) in [("7", "", None), ("7+2", "web|3", Some("web|3"))] {
            assert_eq!(first_of(fences), Some(7));
            let record = format!("{owner}|{fences}|1000|client|{label}");
            let info = holder(owner.as_bytes(), record.as_bytes(), None, 3000);
            assert_eq!(info.owner.unwrap().to_hex(), owner);
            assert_eq!((info.fence, info.label.as_deref()), (Some(token(7)), shown));
            assert_eq!(info.held_for, Some(Duration::from_millis(2)));
            let other = holder(b"someone", record.as_bytes(), None, 3000);
            assert_eq!((other.owner, other.fence, other.held_for), (None, None, None));
            assert_eq!(other.label.as_deref(), Some("a client that is not distlock"));
        }
        assert_eq!(first_of("x"), None);
    }

    #[test]
    fn a_server_that_does_not_name_its_policy_is_used() {
        let judged = |info: &str| {
            let info = Value::BulkString(info.replace(' ', "\r\n").into());
            judge(&info, "h:1", Eviction::Refuse).map_err(|error| error.kind())
        };
        assert_eq!(judged("redis_version:7.0.0 maxmemory_policy:noeviction"), Ok(()));
        assert_eq!(judged("redis_version:7.0.0"), Ok(()));
        let evicts = judged("redis_version:7.0.0 maxmemory_policy:allkeys-lru");
        assert_eq!(evicts, Err(ErrorKind::Config));
        assert_eq!(judged("redis_version:5.0.0"), Err(ErrorKind::Unsupported));
        assert_eq!(judged("maxmemory_policy:noeviction"), Err(ErrorKind::Store));
    }
}
