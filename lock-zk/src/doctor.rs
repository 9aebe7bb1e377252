//! What an operator should know about an ensemble and each of its servers.

use std::time::Duration;

use lock_core::Finding;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::error::ZOOKEEPER;
use crate::sessions::Sessions;
use crate::settings::PORT;

/// The limit for asking one server.
const LIMIT: Duration = Duration::from_secs(3);
/// Longer than any answer to the question.
const LONGEST: u64 = 1 << 14;

pub(crate) async fn diagnose(sessions: &Sessions) -> Vec<Finding> {
    let limits = &sessions.limits;
    let mut findings = vec![Finding::info(format!(
        "sessions, and with them locks, last for {:?} to {:?} without a sign of life",
        limits.least, limits.most
    ))];
    let mut asked = JoinSet::new();
    for host in &sessions.ensemble.config.hosts {
        // Encrypted servers answer no such question.
        if host.contains("://") {
            continue;
        }
        let host = address(host);
        asked.spawn(async move {
            let answer = tokio::time::timeout(LIMIT, ask(&host)).await;
            let answer = answer.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
            server(&host, answer)
        });
    }
    let mut servers = asked.join_all().await;
    servers.sort_unstable_by(|a, b| a.what.cmp(&b.what));
    findings.extend(servers);
    findings
}

/// The address in a connect string of one server, where the port may be missing and a path may follow.
fn address(host: &str) -> String {
    let host = host.split('/').next().unwrap_or_default().trim_end_matches(':');
    // The colons in brackets are of an IPv6 address.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    if has_port { host.to_owned() } else { format!("{host}:{PORT}") }
}

/// The server's summary of itself, which every version gives to everyone unless it is told not to.
async fn ask(host: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).await?;
    Ok(answer)
}

fn server(host: &str, answer: std::io::Result<String>) -> Finding {
    let at = format!("the ZooKeeper server at {host}");
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return Finding::warning(
                format!("{at} does not answer: {error}"),
                "start it, or mend the way to it: locks survive only as long as a majority runs",
            );
        }
    };
    let field = |name| {
        let mut lines = answer.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(field, value)| (field == name).then_some(value))
    };
    let (Some(version), Some(mode)) = (field("Zookeeper version"), field("Mode")) else {
        if answer.contains("not in the whitelist") {
            return Finding::info(format!("{at} answers, but not the question for its version"));
        }
        return Finding::warning(
            format!("{at} runs, but serves no requests now"),
            "start the other servers, and mend the network between them: a majority must agree on a leader",
        );
    };
    let version = version.split(['-', ',']).next().unwrap_or(version);
    match ZOOKEEPER.check(version) {
        Err(error) => Finding::critical(format!("{at} cannot be used: {error}"), "upgrade it"),
        Ok(()) if mode == "read-only" => Finding::warning(
            format!("{at} is cut off from the others and only answers reads"),
            "mend the network between the servers",
        ),
        Ok(()) => Finding::info(format!("{at} is ZooKeeper {version}, {mode}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Severity;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        for (host, asked) in [
            ("a.example", "a.example:2181"),
            ("a.example:", "a.example:2181"),
            ("a.example/shop", "a.example:2181"),
            ("a.example:7/shop", "a.example:7"),
            ("[::1]", "[::1]:2181"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(address(host), asked, "{host}");
        }
    }

    #[test]
    fn each_answer_is_judged() {
        let judged = |answer: &str| server("z:1", Ok(answer.to_owned()));
        let sound = "Zookeeper version: 3.8.0-${mvnGitCommitId}, built on 2022\nMode: follower\n";
        assert_eq!(judged(sound).what, "the ZooKeeper server at z:1 is ZooKeeper 3.8.0, follower");
        assert_eq!(judged(sound).severity, Severity::Info);
        for (answer, severity, word) in [
            ("Zookeeper version: 3.4.14-x\nMode: leader\n", Severity::Critical, "3.4.14"),
            ("Zookeeper version: 3.8.0-x\nMode: read-only\n", Severity::Warning, "cut off"),
            (
                "This ZooKeeper instance is not currently serving requests\n",
                Severity::Warning,
                "no requests",
            ),
            (
                "srvr is not executed because it is not in the whitelist.\n",
                Severity::Info,
                "answers",
            ),
        ] {
            let found = judged(answer);
            assert!(found.severity == severity && found.what.contains(word), "{found:?}");
        }
        let silent = server("z:1", Err(std::io::ErrorKind::ConnectionRefused.into()));
        assert!(silent.severity == Severity::Warning && silent.what.contains("refused"));
    }
}
