//! A master and its replicas, which sentinels watch: who is the master now, and whether it can keep locks.
//!
//! A sentinel may be behind: what it names is believed only if that server says of itself that it is the master.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use lock_kit::server::MinimumVersion;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, RedisError, Value};

use super::address::{ServerLogin, Tls};
use super::connection::{unlimited, with_our_settings};
use super::doctor::Eviction;
use super::reply::{ReplyReader, info_field, setting};
use crate::error::{REDIS, RequestStage, from_redis};

/// Before 7.0 `min-replicas-to-write` does not apply to the writes of a script.
const BINDS_SCRIPTS: MinimumVersion = MinimumVersion::new(
    "Redis",
    [7, 0, 0],
    "in older ones min-replicas-to-write does not bind scripts, so a master that is cut off never stops granting locks; lock_failover=trust does not need it",
);

/// One master and its replicas, by the name that the sentinels know.
pub(crate) struct MasterGroup {
    pub(crate) name: String,
    sentinels: Vec<Client>,
    /// Which one is asked first.
    first: AtomicUsize,
    /// What a server of the group asks of its clients.
    pub(crate) login: ServerLogin,
    pub(crate) tls: Tls,
    /// The limit for what one sentinel leads to.
    pub(crate) limit: Duration,
    pub(crate) terms: GroupTerms,
}

/// What each new master must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupTerms {
    pub(crate) eviction: Eviction,
    /// For how long at most a master that is cut off from its replicas accepts writes; `None` if that does not matter.
    pub(crate) lag: Option<Duration>,
}

impl MasterGroup {
    pub(crate) fn new(
        name: String,
        sentinels: Vec<Client>,
        (login, tls): (ServerLogin, Tls),
        connect_timeout: Duration,
        terms: GroupTerms,
    ) -> Self {
        let limit = connect_timeout / u32::try_from(sentinels.len()).unwrap_or(u32::MAX).max(1);
        Self { name, sentinels, first: AtomicUsize::new(0), login, tls, limit, terms }
    }

    /// How this group is called in errors.
    pub(crate) fn endpoint(&self) -> String {
        let sentinels: Vec<_> = (0..self.sentinels.len()).map(|at| self.address(at)).collect();
        format!("the master of {} ({})", self.name, sentinels.join(","))
    }

    /// The sentinels in the order in which they are asked, by their numbers: first the one that was of use last.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, number) = (self.first.load(Relaxed), self.sentinels.len());
        (0..number).map(move |turn| (first + turn) % number)
    }

    /// This sentinel has led to the master.
    pub(crate) fn found_by(&self, sentinel: usize) {
        self.first.store(sentinel, Relaxed);
    }

    /// The error of a sentinel that led to no connection in time.
    pub(crate) fn slow(&self, sentinel: usize) -> Error {
        let (address, limit) = (self.address(sentinel), self.limit);
        unavailable(format!("the sentinel at {address} led to no connection within {limit:?}"))
    }

    fn address(&self, sentinel: usize) -> String {
        self.sentinels[sentinel].get_connection_info().addr().to_string()
    }

    /// No sentinel has led to a master: what each of them led to. If none of it may pass by itself, the first gives the
    /// kind.
    pub(crate) fn nobody(&self, failed: &[Error]) -> Error {
        // The first one may be slow: the next one is asked first.
        self.first.fetch_add(1, Relaxed);
        let causes: Vec<_> = failed.iter().map(Error::to_string).collect();
        let passes = failed.iter().any(Error::is_retryable);
        let kind = failed.first().filter(|_| !passes).map_or(ErrorKind::Unavailable, Error::kind);
        let text = format!("no sentinel led to a master of {}: {}", self.name, causes.join("; "));
        Error::new(kind, text)
    }

    /// A client of the server that this sentinel names as the master.
    pub(crate) async fn master_by(&self, sentinel: usize) -> Result<Client> {
        let address = &self.address(sentinel);
        let refused = |error| from_redis(error, RequestStage::Connecting, address);
        let mut driver = self.sentinels[sentinel]
            .get_multiplexed_async_connection_with_config(&unlimited())
            .await
            .map_err(refused)?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer: Value = ask.query_async(&mut driver).await.map_err(|error| {
            if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
                let what =
                    format!("the server at {address} is not a sentinel: redis:// is for a server");
                return Error::config(what).with_source_shown_as(error, "");
            }
            refused(error)
        })?;
        if answer == Value::Nil {
            return Err(Error::config(format!(
                "the sentinel at {address} knows no group {:?}: give the name in `sentinel monitor NAME …` of its configuration",
                self.name
            )));
        }
        let reply = ReplyReader::new("the address of the master", &answer)?;
        let port = reply.text(1)?.parse().map_err(|_| reply.wrong())?;
        let client = self.tls.apply(self.login.client(reply.text(0)?, port)?)?;
        with_our_settings(&client, address)
    }

    /// Whether the server at the other end is the master, and can keep locks: what it says of itself.
    pub(crate) async fn check(
        &self,
        driver: &mut MultiplexedConnection,
        endpoint: &str,
    ) -> Result<Value> {
        let described = |error: RedisError| from_redis(error, RequestStage::Connecting, endpoint);
        let info: Value = redis::cmd("INFO").query_async(driver).await.map_err(described)?;
        judge(&info, endpoint, &self.name, self.terms)?;
        // What a master that grants alone has set stops nothing.
        if binds_scripts(&info).is_err() {
            return Ok(info);
        }
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg("min-replicas-*");
        // Where it may not be asked, the URL is believed.
        if let Ok(settings) = ask.query_async::<Value>(driver).await {
            judge_settings(&settings, &info, endpoint, self.terms.lag)?;
        }
        Ok(info)
    }
}

fn unavailable(text: String) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

/// Whether a server that says this of itself grants nothing without the replicas that it needs.
fn binds_scripts(info: &Value) -> Result<()> {
    BINDS_SCRIPTS.check(&info_field(info, "redis_version").unwrap_or_default())
}

/// Whether a server that says this of itself is the master, and can keep locks.
fn judge(info: &Value, endpoint: &str, group: &str, terms: GroupTerms) -> Result<()> {
    let role = info_field(info, "role").unwrap_or_default();
    if role != "master" {
        return Err(unavailable(format!(
            "the Redis server at {endpoint} is not the master of {group}, it is a {role}"
        )));
    }
    REDIS.check(&info_field(info, "redis_version").unwrap_or_default())?;
    if let Some(policy) = info_field(info, "maxmemory_policy") {
        terms.eviction.check(endpoint, &policy)?;
    }
    let binds_scripts = binds_scripts(info);
    let grants_alone = binds_scripts.is_err();
    if terms.lag.is_some() {
        binds_scripts?;
    }
    // It is shown only where both settings are above 0.
    match info_field(info, "min_slaves_good_slaves").as_deref() {
        // How many it needs is not known here.
        Some("0") if !grants_alone => Err(cut_off(endpoint, 0, 1)),
        None if terms.lag.is_some() => Err(Error::config(format!(
            "the Redis server at {endpoint} has min-replicas-to-write 0: cut off from the others, it would go on granting locks while a new master grants them too. Set it, on every server of {group}, to half the number of replicas, rounded up; or choose lock_failover=trust"
        ))),
        _ => Ok(()),
    }
}

/// The error of a master that does not write: another sentinel may know its successor.
fn cut_off(endpoint: &str, replicas: u64, needed: u64) -> Error {
    unavailable(format!(
        "the Redis server at {endpoint} grants nothing (NOREPLICAS): it hears of {replicas} replicas and needs {needed}"
    ))
}

/// Whether the server has the replicas that it needs, and stops within this `lag` once it is cut off, if that matters.
fn judge_settings(
    settings: &Value,
    info: &Value,
    endpoint: &str,
    lag: Option<Duration>,
) -> Result<()> {
    let number = |name: &str| setting(settings, name).and_then(|value| value.parse::<u64>().ok());
    if let (Some(lag), Some(seconds)) = (lag, number("min-replicas-max-lag"))
        && Duration::from_secs(seconds) > lag
    {
        return Err(Error::config(format!(
            "the Redis server at {endpoint} has min-replicas-max-lag {seconds}, and lock_max_lag is {lag:?}: cut off from the others, it would grant locks for longer than a new master waits. Set lock_max_lag={seconds}s for all clients"
        )));
    }
    let Some(needed) = number("min-replicas-to-write") else { return Ok(()) };
    let count = |field: &str| info_field(info, field).and_then(|number| number.parse::<u64>().ok());
    let replicas = count("connected_slaves").unwrap_or(0);
    if lag.is_some() && replicas > 2 * needed {
        let least = replicas.div_ceil(2);
        return Err(Error::config(format!(
            "the Redis server at {endpoint} has {replicas} replicas, and min-replicas-to-write {needed}: cut off together with {needed} of them, it would go on granting locks while a new master grants them too. Set it to at least {least}, on every server, so that a master needs a majority of the servers"
        )));
    }
    match count("min_slaves_good_slaves").filter(|good| *good < needed) {
        Some(good) => Err(cut_off(endpoint, good, needed)),
        None => Ok(()),
    }
}

/// Where a node is.
#[derive(Clone)]
pub(crate) enum ServerAddress {
    /// At an address that stays.
    Fixed(Box<Client>),
    /// Where the sentinels lead.
    Group(Arc<MasterGroup>),
}

impl From<Client> for ServerAddress {
    fn from(client: Client) -> Self {
        Self::Fixed(Box::new(client))
    }
}

impl ServerAddress {
    /// Host and port, the path of the socket, or the name of the group: never a credential.
    pub(crate) fn endpoint(&self) -> String {
        match self {
            Self::Fixed(client) => client.get_connection_info().addr().to_string(),
            Self::Group(group) => group.endpoint(),
        }
    }

    pub(crate) fn is_secure(&self) -> bool {
        match self {
            Self::Fixed(client) => {
                matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
            }
            Self::Group(group) => group.login.secure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(fields: &str) -> Value {
        Value::BulkString(fields.replace(' ', "\r\n").into())
    }

    #[test]
    fn only_a_master_that_stops_when_it_is_cut_off_is_used() {
        let eviction = Eviction::Refuse;
        let lag = Some(Duration::from_secs(10));
        let judged = |fields: &str, lag| {
            let terms = GroupTerms { eviction, lag };
            judge(&info(fields), "h:1", "g", terms).map_err(|error| error.kind())
        };
        let bound = "role:master redis_version:7.0.0 min_slaves_good_slaves:2";
        assert_eq!(judged(bound, lag), Ok(()));
        let cut_off = "role:master redis_version:7.0.0 min_slaves_good_slaves:0";
        assert_eq!(judged(cut_off, lag), Err(ErrorKind::Unavailable));
        assert_eq!(judged(cut_off, None), Err(ErrorKind::Unavailable), "it grants nothing");
        let grants_alone = "role:master redis_version:6.2.0 min_slaves_good_slaves:0";
        assert_eq!(judged(grants_alone, None), Ok(()));
        let unbound = "role:master redis_version:7.0.0";
        assert_eq!(judged(unbound, lag), Err(ErrorKind::Config));
        assert_eq!(judged(unbound, None), Ok(()));
        let old = "role:master redis_version:6.2.0 min_slaves_good_slaves:2";
        assert_eq!(judged(old, lag), Err(ErrorKind::Unsupported));
        assert_eq!(judged(old, None), Ok(()));
        let replica = "role:slave redis_version:7.0.0 min_slaves_good_slaves:2";
        assert_eq!(judged(replica, lag), Err(ErrorKind::Unavailable));
        assert_eq!(judged(replica, None), Err(ErrorKind::Unavailable));
        let evicts = "role:master redis_version:7.0.0 maxmemory_policy:allkeys-lru";
        assert_eq!(judged(evicts, None), Err(ErrorKind::Config));
    }

    #[test]
    fn a_sentinel_that_is_wrong_ends_no_wait_beside_one_that_is_away() {
        let login = ServerLogin { user: None, password: None, db: 0, secure: false };
        let terms = GroupTerms { eviction: Eviction::Refuse, lag: None };
        let parts = (login, Tls::default());
        let group = MasterGroup::new("g".into(), Vec::new(), parts, Duration::from_secs(1), terms);
        let wrong = || Error::config("it knows no group");
        let away = || unavailable("it is away".into());
        assert_eq!(group.nobody(&[wrong(), wrong()]).kind(), ErrorKind::Config);
        for failed in [[wrong(), away()], [away(), wrong()]] {
            let error = group.nobody(&failed);
            assert!(error.is_retryable(), "{error}");
            assert!(error.to_string().contains("it knows no group"), "{error}");
        }
    }

    #[test]
    fn a_master_needs_a_majority_and_stops_in_time() {
        let text = |text: &str| Value::BulkString(text.into());
        let judged_by = |lag: Option<u64>, seconds: &str, needed: &str, replicas: u8, good: u8| {
            let of = |name: &str, value: &str| (text(name), text(value));
            let settings =
                [of("min-replicas-max-lag", seconds), of("min-replicas-to-write", needed)];
            let fields = format!("connected_slaves:{replicas} min_slaves_good_slaves:{good}");
            let info = info(&fields);
            let lag = lag.map(Duration::from_secs);
            let judged = judge_settings(&Value::Map(settings.into()), &info, "h:1", lag);
            judged.map_err(|error| error.to_string())
        };
        let judged = |seconds: &str, needed: &str, replicas: u8, good: u8| {
            judged_by(Some(10), seconds, needed, replicas, good)
        };
        for (needed, replicas) in [("1", 1), ("1", 2), ("2", 3), ("2", 4)] {
            assert_eq!(judged("10", needed, replicas, 2), Ok(()), "{needed} of {replicas}");
        }
        assert!(judged("11", "1", 1, 1).unwrap_err().contains("lock_max_lag=11s"));
        assert!(judged("10", "1", 3, 3).unwrap_err().contains("Set it to at least 2"));
        assert!(judged("10", "2", 5, 5).unwrap_err().contains("Set it to at least 3"));
        assert!(judged("10", "2", 3, 1).unwrap_err().contains("of 1 replicas and needs 2"));
        assert_eq!(judged_by(None, "11", "1", 3, 1), Ok(()), "no promise depends on it");
        assert!(judged_by(None, "11", "2", 3, 1).unwrap_err().contains("needs 2"));
    }
}
