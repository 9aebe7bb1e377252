//! What is known of the versions of the server.

use lock_core::kit::versions::ETCD;
use lock_core::{Error, ErrorKind, Result};

use crate::config::EtcdConfig;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::wire::Request;

/// A version such as `3.5.23`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

fn parse(text: &str) -> Option<Version> {
    let plain = text.split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(|part| part.parse().ok());
    Some(Version(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// The first patch of each line in which a lease that was revoked is never reported as renewed.
const RENEW_FIXED: [Version; 3] = [Version(3, 4, 38), Version(3, 5, 23), Version(3, 6, 5)];
/// The first patch of each line in which an old leader that is stuck in a disk write no longer
/// revokes or renews leases.
const LEADER_FIXED: [Version; 2] = [Version(3, 4, 31), Version(3, 5, 13)];

fn is_older(version: Version, fixed: &[Version]) -> bool {
    fixed.iter().any(|fixed| (fixed.0, fixed.1) == (version.0, version.1) && version < *fixed)
}

/// What is wrong with a server of version `text`, if anything is.
///
/// # Errors
///
/// If locks cannot be kept on it at all.
pub(crate) fn judge(text: &str, endpoint: &str) -> Result<Vec<&'static str>> {
    ETCD.check(text).map_err(|error| {
        Error::new(error.kind(), format!("the etcd member at {endpoint} cannot be used: {error}"))
    })?;
    let Some(version) = parse(text) else { return Ok(Vec::new()) };
    let mut known = Vec::new();
    if is_older(version, &LEADER_FIXED) {
        known.push(
            "an old leader that was stuck in a disk write revokes and renews leases when it goes on (etcd-io/etcd#15247, narrowed in 3.4.31 and 3.5.13)",
        );
    }
    if is_older(version, &RENEW_FIXED) {
        known.push(
            "a lease that was revoked is reported as renewed (fixed in 3.4.38, 3.5.23 and 3.6.5)",
        );
    }
    Ok(known)
}

/// Warns of what is wrong with a server of version `text`.
///
/// # Errors
///
/// As [`judge`].
pub(crate) fn report(text: &str, endpoint: &str) -> Result<()> {
    for bug in judge(text, endpoint)? {
        tracing::warn!(target: "distlock", endpoint, version = text, bug, "this version of etcd has a known defect: update it");
    }
    Ok(())
}

/// Warns of the versions of the members other than `known`. It is the leader that decides on leases, and
/// any of them may become it. Nobody waits for this.
pub(crate) async fn report_others(config: EtcdConfig, known: usize) {
    for member in (0..config.members.len()).filter(|member| *member != known) {
        let endpoint = &config.members[member];
        let reported = match version_of(&config, member).await {
            Ok(version) => report(&version, endpoint),
            Err(failed) => Err(failed.error),
        };
        match reported {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(target: "distlock", endpoint, %error, "this member of etcd cannot be used");
            }
            Err(error) => {
                tracing::debug!(target: "distlock", endpoint, %error, "the version of this member of etcd is not known");
            }
        }
    }
}

/// The version of one member, asked over a connection of its own.
async fn version_of(config: &EtcdConfig, member: usize) -> Result<String, Failed> {
    let connection = Connection::to_member(config, member, 0).await;
    let connection = connection.map_err(|error| Failed { why: Why::Refused, error })?;
    let limit = config.connect_timeout + config.response_timeout;
    match tokio::time::timeout(limit, connection.send(&Request::Status)).await {
        Ok(status) => Ok(status?.version),
        Err(_) => Err(Failed::timeout(connection.endpoint(), limit)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use lock_core::ErrorKind;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// Keeps the warnings of this library, with all their fields.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Visit for Log {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "distlock" && *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
    }

    #[test]
    fn a_warning_names_the_server_its_version_and_the_defect() {
        let log = Log::default();
        let warned = |version: &str| {
            log.0.lock().unwrap().clear();
            tracing::subscriber::with_default(log.clone(), || report(version, "h:1").unwrap());
            log.0.lock().unwrap().join(" ")
        };
        let text = warned("3.4.23");
        for part in ["h:1", "3.4.23", "15247", "revoked is reported as renewed"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(warned("3.5.23"), "");
    }

    #[test]
    fn each_line_has_its_own_first_good_patch() {
        for (version, bugs) in [
            ("3.4.23", 2),
            ("3.4.31", 1),
            ("3.4.38", 0),
            ("3.5.12", 2),
            ("3.5.22", 1),
            ("3.5.23", 0),
            ("3.6.4", 1),
            ("3.6.5", 0),
            ("3.7.0-rc.1", 0),
            ("4.0.0", 0),
        ] {
            assert_eq!(judge(version, "h").unwrap().len(), bugs, "{version}");
        }
        let error = judge("3.3.27", "h:1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(["3.3.27", "h:1", "3.4"].iter().all(|part| text.contains(part)), "{text}");
        assert!(judge("not a version", "h:1").is_err());
    }
}
