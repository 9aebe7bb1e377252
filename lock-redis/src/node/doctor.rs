//! Whether a server can keep locks: what its user may do, whether it evicts, and what it says about itself.

use std::time::{Duration, SystemTime};

use lock_core::{Error, ErrorKind, Finding, Result};
use lock_kit::server::{MinimumVersion, clock_finding};
use lock_kit::settings::{Parameter, Words};
use redis::Value;

use super::reply::{ReplyReader, info_field};
use super::script::ScriptCall;
use super::server::Node;
use crate::error::refusal;

/// What to do about a server that may evict locks when its memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// Refuse it: an evicted lock has two holders.
    #[default]
    Refuse,
    /// Use it anyway, and log a warning at every connect. Only for servers whose memory cannot
    /// fill up.
    Warn,
}

pub(crate) const EVICTION: Parameter<Words<Eviction>> = Parameter {
    name: "lock_eviction",
    text: "`refuse` or `warn`: what to do about a server that may evict locks",
    default: "`refuse`",
    values: &[("refuse", Eviction::Refuse), ("warn", Eviction::Warn)],
};

impl Eviction {
    /// Refuses or warns about a server with this `maxmemory-policy`.
    pub(crate) fn check(self, endpoint: &str, policy: &str) -> Result<()> {
        if policy == "noeviction" {
            return Ok(());
        }
        if self == Self::Warn {
            tracing::warn!(target: "distlock", endpoint, policy, "this server may evict locks while they are held: set maxmemory-policy to noeviction");
            return Ok(());
        }
        Err(Error::config(format!(
            "the Redis server at {endpoint} has maxmemory-policy {policy}: it may evict a held lock, which a second holder then gets. Set it to noeviction, or use another server; lock_eviction=warn accepts the risk"
        )))
    }
}

/// What `INFO` reports, by field.
pub(crate) struct Info<'a>(&'a Value);

impl Info<'_> {
    pub(crate) fn text(&self, field: &str) -> String {
        info_field(self.0, field).unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap_or(0)
    }
}

impl Node {
    /// Runs a script that tries every command that locks need, only on this client's keys, and
    /// reports what was refused. A missing right would otherwise show up half-way through another
    /// script, and scripts are not rolled back. `page` is where the rights are listed.
    pub(crate) async fn probe(
        &self,
        call: ScriptCall<'_>,
        page: &str,
        limit: Duration,
    ) -> Result<()> {
        let what = format!("at {} a check of the rights", self.endpoint());
        let read = |answer: Value| -> Result<Vec<_>> {
            let refused = ReplyReader::new(&what, &answer)?;
            (0..refused.len()).map(|at| refused.text(at)).collect()
        };
        let refused = self.ask(call, limit, read).await?;
        if refused.is_empty() {
            return Ok(());
        }
        Err(refusal(self.endpoint(), &refused, &format!("{page} lists the rights")))
    }

    /// Findings about one server, and those that `more` makes of its `INFO`.
    pub(crate) async fn diagnose(
        &self,
        more: impl FnOnce(&Info<'_>, &str) -> Vec<Finding>,
        limit: Duration,
    ) -> Result<Vec<Finding>> {
        let at = format!("the Redis server at {}", self.endpoint());
        let mut findings = Vec::new();
        match self.command(&redis::cmd("INFO"), limit).await {
            Ok(info) => {
                let info = Info(&info);
                findings.extend(common(&info, &at));
                findings.extend(more(&info, &at));
            }
            Err(error) if error.kind() == ErrorKind::Denied => findings.push(Finding::warning(
                format!("this user may not call INFO, so the version of {at}, whether it evicts locks and whether it keeps its data are not known"),
                "grant it with ACL SETUSER <user> +info",
            )),
            Err(error) => return Err(error),
        }
        findings.extend(self.clock_apart(&at, limit).await?);
        Ok(findings)
    }

    async fn clock_apart(&self, at: &str, limit: Duration) -> Result<Option<Finding>> {
        let sent = SystemTime::now();
        let answer = match self.command(&redis::cmd("TIME"), limit).await {
            Err(error) if error.kind() == ErrorKind::Denied => return Ok(None),
            answer => answer?,
        };
        let answered = SystemTime::now();
        Ok(clock_finding(at, clock_in(&answer)?, (sent, answered)))
    }
}

/// What a server answers to `TIME`.
fn clock_in(answer: &Value) -> Result<SystemTime> {
    let reply = ReplyReader::new("TIME", answer)?;
    let since = Duration::from_secs(reply.count(0)?) + Duration::from_micros(reply.count(1)?);
    SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(|| reply.wrong())
}

fn common(info: &Info<'_>, at: &str) -> Vec<Finding> {
    let up = info.number("uptime_in_seconds");
    let mut findings =
        vec![Finding::info(format!("{at} is Redis {}, up for {up}s", info.text("redis_version")))];
    let version = info.text("redis_version");
    // Valkey shows the version of Redis with which it began.
    if info.text("valkey_version").is_empty() && is_open_to_scripts(&version) {
        findings.push(Finding::warning(
            format!("{at} is Redis {version}, in which a user with the right to run scripts may run any code (CVE-2025-49844)"),
            "upgrade to 8.2.2, 8.0.4, 7.4.6, 7.2.11, 6.2.20 or newer, unless your distribution has mended this version",
        ));
    }
    let policy = info.text("maxmemory_policy");
    if !matches!(policy.as_str(), "" | "noeviction") {
        findings.push(Finding::warning(
            format!("{at} has maxmemory-policy {policy}: when its memory is full it may evict a held lock, which a second holder then gets"),
            "CONFIG SET maxmemory-policy noeviction, and set it in redis.conf",
        ));
    }
    let (used, most) = (info.number("used_memory"), info.number("maxmemory"));
    if most > 0 && used.saturating_mul(10) > most.saturating_mul(9) {
        findings.push(Finding::warning(
            format!(
                "{at} uses {used} of {most} bytes of memory: when it is full, no lock can be taken"
            ),
            "raise maxmemory, or move other data away",
        ));
    }
    for (field, setting) in [
        ("aof_last_write_status", "the append-only file"),
        ("rdb_last_bgsave_status", "a snapshot"),
    ] {
        if info.text(field) == "err" {
            findings.push(Finding::critical(
                format!("{at} could not write {setting} to its disk, and may refuse all writes"),
                "see its log; usually the disk is full or its folder is not writable",
            ));
        }
    }
    findings
}

/// Whether this version has CVE-2025-49844: every line of versions has its own first one without it.
fn is_open_to_scripts(version: &str) -> bool {
    const MENDED: [[u32; 3]; 4] = [[6, 2, 20], [7, 2, 11], [7, 4, 6], [8, 0, 4]];
    let is_at_least = |least| MinimumVersion::new("Redis", least, "").check(version).is_ok();
    let is_mended = |[major, minor, patch]: [u32; 3]| {
        is_at_least([major, minor, patch]) && !is_at_least([major, minor + 1, 0])
    };
    !is_at_least([8, 2, 2]) && !MENDED.into_iter().any(is_mended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Severity;

    #[test]
    fn no_time_is_too_late_to_be_read() {
        let clock = |parts: [i64; 2]| clock_in(&Value::Array(parts.map(Value::Int).into()));
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(clock([0, 1_000_000]).unwrap(), second);
        assert_eq!(clock([i64::MAX, 1_000_000]).unwrap_err().kind(), ErrorKind::Store);
    }

    fn severities(info: &str) -> Vec<(Severity, String)> {
        let info = Value::BulkString(info.replace('\n', "\r\n").into_bytes());
        common(&Info(&info), "it").into_iter().map(|found| (found.severity, found.what)).collect()
    }

    #[test]
    fn each_line_of_versions_was_mended_by_itself() {
        for mended in ["6.2.20", "7.2.11", "7.4.6", "8.0.4", "8.2.2", "8.4.0", "9.0.0"] {
            assert!(!is_open_to_scripts(mended), "{mended}");
        }
        for open in ["6.0.16", "6.2.19", "7.0.15", "7.2.4", "7.4.5", "8.0.3", "8.2.1"] {
            assert!(is_open_to_scripts(open), "{open}");
        }
    }

    #[test]
    fn a_sound_server_is_only_named() {
        let found = severities(
            "redis_version:8.2.2\nuptime_in_seconds:90\nmaxmemory_policy:noeviction\nmaxmemory:0\nused_memory:99\naof_last_write_status:ok\nrdb_last_bgsave_status:ok",
        );
        assert_eq!(found, [(Severity::Info, "it is Redis 8.2.2, up for 90s".to_owned())]);
    }

    #[test]
    fn memory_and_disk_are_judged() {
        let found = severities(
            "redis_version:8.4.0\nmaxmemory:1000\nused_memory:901\nmaxmemory_policy:allkeys-lru\naof_last_write_status:err",
        );
        let [_, eviction, memory, disk] = &found[..] else { panic!("{found:?}") };
        assert!(eviction.1.contains("allkeys-lru") && eviction.0 == Severity::Warning);
        assert!(memory.1.contains("901 of 1000") && memory.0 == Severity::Warning);
        assert!(disk.1.contains("append-only") && disk.0 == Severity::Critical);
    }
}
