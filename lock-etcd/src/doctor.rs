//! What an operator should know about a cluster and each of its members.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Finding, Result};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::config::EtcdConfig;
use crate::connection::Connection;
use crate::driver::Call;
use crate::error::{Failed, Why};
use crate::proto::{MemberListRequest, MemberListResponse, StatusRequest, StatusResponse};
use crate::version;

/// The limit for asking one member.
const LIMIT: Duration = Duration::from_secs(3);

pub(crate) async fn diagnose(cluster: &Cluster) -> Result<Vec<Finding>> {
    let Some(connection) = cluster.connection() else { return Err(Failed::closed().error) };
    let mut findings = Vec::new();
    match cluster.config() {
        Some(config) => findings.extend(all_members(config).await),
        None => {
            findings.extend(member(connection.endpoint(), ask(&connection, StatusRequest {}).await))
        }
    }
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
            let status = match Connection::to_member(&config, at, 0) {
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

async fn ask<C: Call + Copy>(connection: &Connection, message: C) -> Result<C::Reply> {
    let call = async {
        let token = connection.token();
        match connection.call(message).await {
            Err(failed) if failed.why == Why::StaleToken => {
                connection.renew_token(token).await?;
                connection.call(message).await
            }
            answer => answer,
        }
    };
    let late = || Err(Failed::timeout(connection.endpoint(), LIMIT));
    let answer = tokio::time::timeout(LIMIT, call).await.unwrap_or_else(|_| late());
    answer.map_err(|failed| failed.error)
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
        _ => Finding::fact(what),
    }
}

fn member(endpoint: &str, answer: Result<StatusResponse>) -> Vec<Finding> {
    match answer {
        Ok(status) => Standing::of(status).findings(endpoint),
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
#[derive(Clone, Debug, Default)]
struct Standing {
    version: String,
    has_leader: bool,
    is_learner: bool,
    alarms: Vec<String>,
}

impl Standing {
    fn of(status: StatusResponse) -> Self {
        Self {
            version: status.version,
            has_leader: status.leader != 0,
            is_learner: status.is_learner,
            alarms: status.errors,
        }
    }

    fn findings(&self, endpoint: &str) -> Vec<Finding> {
        let (at, version) = (format!("the etcd member at {endpoint}"), &self.version);
        let mut findings = vec![Finding::fact(format!("{at} is etcd {version}"))];
        match version::judge(version, endpoint) {
            Ok(defects) => findings.extend(defects.into_iter().map(|defect| {
                Finding::warning(
                    format!("{at} is etcd {version}, which has a known defect: {defect}"),
                    "upgrade every member to 3.4.38, 3.5.23, 3.6.5 or newer",
                )
            })),
            Err(error) => findings.push(Finding::critical(error.to_string(), "upgrade it")),
        }
        if self.is_learner {
            findings.push(Finding::warning(
                format!("{at} is a learner: it has no vote, and serves no locks"),
                "promote it with `etcdctl member promote`, or take it out of the URL",
            ));
        }
        if !self.has_leader {
            findings.push(Finding::critical(
                format!("{at} has no leader: it is cut off, or too few members run"),
                "start the other members, or mend the network between them",
            ));
        }
        // The same words of every member: a missing leader, and alarms such as NOSPACE.
        let alarms = self.alarms.iter().filter(|alarm| !alarm.contains("no leader"));
        findings.extend(alarms.map(|alarm| {
            Finding::critical(
                format!("{at} reports {alarm}"),
                "see `etcdctl alarm list`; after NOSPACE compact and defragment every member, then `etcdctl alarm disarm`",
            )
        }));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Severity;

    #[test]
    fn a_member_that_cannot_serve_is_critical() {
        let sound = Standing { version: "3.6.5".into(), has_leader: true, ..Standing::default() };
        assert_eq!(sound.findings("a:1"), [Finding::fact("the etcd member at a:1 is etcd 3.6.5")]);
        let worst = |standing: &Standing| {
            standing.findings("a:1").into_iter().max_by_key(|found| found.severity).unwrap()
        };
        let old = worst(&Standing { version: "3.6.4".into(), ..sound.clone() });
        assert!(old.severity == Severity::Warning && old.what.contains("revoked"), "{old}");
        let cut_off = worst(&Standing { has_leader: false, ..sound.clone() });
        assert!(cut_off.severity == Severity::Critical && cut_off.what.contains("no leader"));
        let alarms =
            vec!["memberID:7 alarm:NOSPACE".to_owned(), "etcdserver: no leader".to_owned()];
        let full = Standing { alarms, ..sound }.findings("a:1");
        assert!(full.len() == 2 && full[1].what.contains("NOSPACE"), "{full:?}");
    }
}
