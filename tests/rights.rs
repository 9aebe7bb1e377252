//! The rights that the guide lists are enough, and each of them is needed: an error says so.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod guarded;

use distlock::{Error, ErrorKind};
use lock_testkit::networked::Networked;
use tokio::task::JoinSet;

/// What is listed for others than this test: an older driver, and a database other than the first.
const SPARE: [&str; 3] = ["+hello", "+auth", "+select"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listed_rights_are_enough() {
    let mut playing = JoinSet::new();
    for store in Networked::ALL {
        playing.spawn(async move {
            let servers = guarded::start(store, guarded::rights(store)).await;
            let url = guarded::url(store, &servers.addresses(), "secret");
            guarded::scene(&url).await.map_err(|error| format!("{store:?}: {error}"))
        });
    }
    for played in playing.join_all().await {
        played.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_missing_right_is_an_error_that_names_rights() {
    let mut playing = JoinSet::new();
    for store in Networked::ALL {
        playing.spawn(faults(store));
    }
    let faults = playing.join_all().await.concat();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn faults(store: Networked) -> Vec<String> {
    let mut faults = Vec::new();
    for (missing, commands) in less(store) {
        let servers = guarded::start(store, &commands).await;
        let url = guarded::url(store, &servers.addresses(), "secret");
        let refused = guarded::scene(&url).await.err();
        println!("{store:?} without {missing}: {refused:?}");
        // On one server of Redis, only its version and its eviction policy are not checked then.
        let is_spare =
            SPARE.contains(&&*missing) || (store == Networked::Redis && missing == "+info");
        let fault = match refused {
            None if is_spare => None,
            None => Some("is not needed".to_owned()),
            Some(error) if is_spare => Some(format!("is needed: {error}")),
            Some(error) => {
                let text = error.to_string();
                let names = ["right", "GRANT", "ACL", "grant", "permission"];
                let is_clear = matches!(error.kind(), ErrorKind::Denied | ErrorKind::Config)
                    && names.iter().any(|word| text.contains(word))
                    && (store != Networked::ZooKeeper || is_of_a_node(&error, &missing))
                    && !text.contains("secret");
                (!is_clear).then(|| format!("leads to {:?}: {text}", error.kind()))
            }
        };
        faults.extend(fault.map(|fault| format!("{store:?}: {missing} {fault}")));
    }
    faults
}

/// Whether it says which right is missing on which node, and how to grant it. The server says none of that.
fn is_of_a_node(error: &Error, missing: &str) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::Denied && text.contains(missing) && text.contains("setAcl")
}

/// Each right, and the commands without it.
fn less(store: Networked) -> Vec<(String, String)> {
    let all = guarded::rights(store);
    if store == Networked::ZooKeeper {
        return less_of_nodes(all);
    }
    let parts: Vec<String> = match store {
        Networked::Etcd => all
            .lines()
            .filter(|line| line.contains("grant-permission"))
            .map(str::to_owned)
            .collect(),
        Networked::Postgres | Networked::MariaDb => {
            let usage = all.lines().find(|line| line.contains("USAGE")).map(str::to_owned);
            let words = ["SELECT, ", "INSERT, ", "UPDATE, ", ", DELETE"];
            usage.into_iter().chain(words.map(str::to_owned)).collect()
        }
        _ => {
            let is_right = |word: &&str| word.starts_with(['+', '~', '&']);
            all.split_whitespace().filter(is_right).map(str::to_owned).collect()
        }
    };
    let without = |part: &String| match store {
        Networked::Redis | Networked::Redlock => {
            let lines = all.lines().map(|line| {
                line.split(' ').filter(|word| word != part).collect::<Vec<_>>().join(" ")
            });
            lines.map(|line| line + "\n").collect()
        }
        _ => all.replacen(part.as_str(), "", 1),
    };
    parts.iter().map(|part| (part.clone(), without(part))).collect()
}

/// As [`less`], with each right and its node as an error names them.
fn less_of_nodes(all: &str) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    for line in all.lines().filter(|line| line.starts_with("setAcl ")) {
        let node = line.split(' ').nth(1).unwrap();
        let (before, letters) = line.rsplit_once(':').unwrap();
        for letter in letters.chars() {
            let right = match letter {
                'c' => "create",
                'r' => "read",
                'd' => "delete",
                _ => panic!("{letter}: nobody needs it"),
            };
            let less = format!("{before}:{}", letters.replace(letter, ""));
            parts.push((format!("{right:?} on the node {node}."), all.replace(line, &less)));
        }
    }
    assert_eq!(parts.len(), 5, "{parts:?}");
    parts
}
