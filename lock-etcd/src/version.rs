//! Known defects of server versions.

use lock_core::kit::versions::{ETCD, Oldest};
use lock_core::{Error, ErrorKind, Result};

use crate::config::EtcdConfig;
use crate::connection::Connection;
use crate::error::{Failed, Why};
use crate::wire::Request;

/// Defects of old servers, and the first patch of each line without them.
const DEFECTS: [(&str, &[[u32; 3]]); 2] = [
    (
        "an old leader that was stuck in a disk write keeps revoking and renewing leases (etcd-io/etcd#15247, narrowed in 3.4.31 and 3.5.13)",
        &[[3, 4, 31], [3, 5, 13]],
    ),
    (
        "a revoked lease is reported as renewed (fixed in 3.4.38, 3.5.23 and 3.6.5)",
        &[[3, 4, 38], [3, 5, 23], [3, 6, 5]],
    ),
];

/// The known defects of a server of version `text`.
///
/// # Errors
///
/// If it cannot be used for locks at all.
pub(crate) fn judge(text: &str, endpoint: &str) -> Result<Vec<&'static str>> {
    ETCD.check(text).map_err(|error| {
        Error::new(error.kind(), format!("the etcd member at {endpoint} cannot be used: {error}"))
    })?;
    let is_older = |version| Oldest::new("etcd", version, "").check(text).is_err();
    // Whether it is in the line of this patch, and older.
    let lacks = |patch: &[u32; 3]| !is_older([patch[0], patch[1], 0]) && is_older(*patch);
    let known = DEFECTS.iter().filter(|(_, fixed)| fixed.iter().any(lacks));
    Ok(known.map(|(what, _)| *what).collect())
}

/// Warns of the known defects of a server of version `text`.
///
/// # Errors
///
/// As [`judge`].
pub(crate) fn report(text: &str, endpoint: &str) -> Result<()> {
    for bug in judge(text, endpoint)? {
        tracing::warn!(target: "distlock", endpoint, version = text, bug, "this version of etcd has a known defect: upgrade it");
    }
    Ok(())
}

/// Warns of the versions of the members other than `known`. The leader decides on leases, and any
/// member may become leader. Runs in the background.
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

/// The version of one member, requested over a separate connection.
async fn version_of(config: &EtcdConfig, member: usize) -> Result<String, Failed> {
    let connection = Connection::to_member(config, member, 0);
    let connection = connection.map_err(|error| Failed { why: Why::Refused, error })?;
    let limit = config.connect_timeout + config.response_timeout;
    match tokio::time::timeout(limit, connection.send(&Request::Status)).await {
        Ok(status) => Ok(status?.version),
        Err(_) => Err(Failed::timeout(connection.endpoint(), limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
