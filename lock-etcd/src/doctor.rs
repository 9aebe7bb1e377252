//! What an operator should know about a cluster and each of its members: first of all, which version
//! it is, and the known defects of that.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Finding, Result};
use lock_kit::server::MinimumVersion;
use tokio::task::JoinSet;

use crate::config::EtcdConfig;
use crate::error::{EtcdFailure, FailureClass};
use crate::wire::Cluster;
use crate::wire::connection::MemberConnection;
use crate::wire::exchange;
use crate::wire::messages::EtcdRequest;
use crate::wire::protobuf::{
    Call, MemberListRequest, MemberListResponse, StatusRequest, StatusResponse,
};

/// The limit for asking one member.
const LIMIT: Duration = Duration::from_secs(3);

pub(crate) async fn diagnose(cluster: &Cluster) -> Result<Vec<Finding>> {
    let Some(connection) = cluster.connection() else { return Err(EtcdFailure::closed().error) };
    let mut findings = all_members(cluster.config()).await;
    // A user of a cluster with authentication may not be allowed to read it.
    if let Ok(list) = ask(&connection, MemberListRequest {}).await {
        findings.push(voters(&list));
    }
    Ok(findings)
}

/// Asks every member by itself: any of them may become the leader, which decides on leases.
async fn all_members(config: &EtcdConfig) -> Vec<Finding> {
    let config = Arc::new(config.clone());
    let mut asked = JoinSet::new();
    for at in 0..config.members.len() {
        let config = Arc::clone(&config);
        asked.spawn(async move {
            let status = match MemberConnection::to_member(&config, at, 0) {
                Ok(connection) => ask(&connection, StatusRequest {}).await,
                Err(error) => Err(error),
            };
            (at, status)
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_unstable_by_key(|(at, _)| *at);
    let name = |(at, answer): (usize, _)| member(&config.members[at], answer);
    answers.into_iter().flat_map(name).collect()
}

async fn ask<C: Call + Clone>(connection: &MemberConnection, message: C) -> Result<C::Reply> {
    let call = async {
        let token = connection.token();
        match connection.call(message.clone()).await {
            Err(failed) if failed.why == FailureClass::StaleToken => {
                connection.renew_token(token).await?;
                connection.call(message).await
            }
            answer => answer,
        }
    };
    let late = || Err(EtcdFailure::timeout(connection.endpoint(), LIMIT));
    let answer = tokio::time::timeout(LIMIT, call).await.unwrap_or_else(|_| late());
    Ok(answer?)
}

/// How many failures the cluster survives.
fn voters(list: &MemberListResponse) -> Finding {
    let voters = list.members.iter().filter(|member| !member.is_learner).count();
    let spare = voters.saturating_sub(1) / 2;
    let what = format!(
        "the number of voting members is {voters}, so locks survive the failure of {spare}"
    );
    match voters {
        0..=2 => Finding::warning(
            what,
            "add members until three or five vote; until then every lock ends with one machine",
        ),
        _ => Finding::info(what),
    }
}

fn member(endpoint: &str, answer: Result<StatusResponse>) -> Vec<Finding> {
    match answer {
        Ok(status) => findings(&status, endpoint),
        Err(error) => vec![away(endpoint, &error)],
    }
}

fn away(endpoint: &str, error: &Error) -> Finding {
    Finding::warning(
        format!("the etcd member at {endpoint} cannot be used: {error}"),
        "start it, or mend the way to it, or take it out of the URL",
    )
}

/// What a member says about itself.
fn findings(status: &StatusResponse, endpoint: &str) -> Vec<Finding> {
    let (at, version) = (format!("the etcd member at {endpoint}"), &status.version);
    let mut findings = vec![Finding::info(format!("{at} is etcd {version}"))];
    match judge(version, endpoint) {
        Ok(defects) => findings.extend(defects.into_iter().map(|defect| {
            Finding::warning(
                format!("{at} is etcd {version}, which has a known defect: {defect}"),
                "upgrade every member to 3.4.38, 3.5.23, 3.6.5 or newer",
            )
        })),
        Err(error) => findings.push(Finding::critical(error.to_string(), "upgrade it")),
    }
    if status.is_learner {
        findings.push(Finding::warning(
            format!("{at} is a learner: it has no vote, and serves no locks"),
            "promote it with `etcdctl member promote`, or take it out of the URL",
        ));
    }
    if status.leader == 0 {
        findings.push(Finding::critical(
            format!("{at} has no leader: it is cut off, or too few members run"),
            "start the other members, or mend the network between them",
        ));
    }
    // The same words of every member: a missing leader, and alarms such as NOSPACE.
    let alarms = status.errors.iter().filter(|alarm| !alarm.contains("no leader"));
    findings.extend(alarms.map(|alarm| {
        Finding::critical(
            format!("{at} reports {alarm}"),
            "see `etcdctl alarm list`; after NOSPACE compact and defragment every member, then `etcdctl alarm disarm`",
        )
    }));
    findings
}

/// Watches of one stream are numbered since 3.4.
const ETCD: MinimumVersion =
    MinimumVersion::new("etcd", [3, 4, 0], "older ones cannot number the watches of one stream");

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
    let is_older = |version| MinimumVersion::new("etcd", version, "").check(text).is_err();
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
            Err(failed) => Err(failed.into()),
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
async fn version_of(config: &EtcdConfig, member: usize) -> Result<String, EtcdFailure> {
    let connection = MemberConnection::to_member(config, member, 0);
    let connection =
        connection.map_err(|error| EtcdFailure { why: FailureClass::Refused, error })?;
    let limit = config.call_limit();
    match tokio::time::timeout(limit, exchange::send(&connection, &EtcdRequest::Status)).await {
        Ok(status) => Ok(status?.version),
        Err(_) => Err(EtcdFailure::timeout(connection.endpoint(), limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Severity;

    #[test]
    fn a_member_that_cannot_serve_is_critical() {
        let sound =
            StatusResponse { version: "3.6.5".into(), leader: 7, ..StatusResponse::default() };
        assert_eq!(
            findings(&sound, "a:1"),
            [Finding::info("the etcd member at a:1 is etcd 3.6.5")]
        );
        let worst = |status: StatusResponse| {
            findings(&status, "a:1").into_iter().max_by_key(|found| found.severity).unwrap()
        };
        let old = worst(StatusResponse { version: "3.6.4".into(), ..sound.clone() });
        assert!(old.severity == Severity::Warning && old.what.contains("revoked"), "{old}");
        let cut_off = worst(StatusResponse { leader: 0, ..sound.clone() });
        assert!(cut_off.severity == Severity::Critical && cut_off.what.contains("no leader"));
        let alarms =
            vec!["memberID:7 alarm:NOSPACE".to_owned(), "etcdserver: no leader".to_owned()];
        let full = findings(&StatusResponse { errors: alarms, ..sound }, "a:1");
        assert!(full.len() == 2 && full[1].what.contains("NOSPACE"), "{full:?}");
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
