//! `rediss://` and `redlocks://`: certificates are checked.
//!
//! `cargo test -p lock-redis --features tls --test tls`; needs the program `openssl`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use conformance_tests::servers::{RedisServer, free_port};
use lock_core::{ErrorKind, Locks};

const CHILD: &str = "LOCK_REDIS_TEST_TLS";

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(directory)
        .args(arguments.split_whitespace())
        .output()
        .expect("openssl is not installed: apt-get install openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The process that trusts our authority: trust comes from the environment.
#[tokio::test]
#[ignore = "the child process of the other test"]
async fn child() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let locks = if url.starts_with("redlocks:") {
        Locks::new(lock_redis::connect_redlock(&url).await.unwrap())
    } else {
        Locks::new(lock_redis::connect(&url).await.unwrap())
    };
    let guard = locks.lock("a").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    println!("@locked");
}

/// A server's certificate for `localhost`, and the authority that has signed it.
fn certificates(folder: &Path) {
    openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
    );
    openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout s.key -out s.csr");
    std::fs::write(folder.join("ext"), "subjectAltName=DNS:localhost").unwrap();
    openssl(
        folder,
        "x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out s.crt",
    );
}

/// A server that speaks TLS on this port.
async fn server(folder: &Path, port: u16) -> RedisServer {
    let path = |name: &str| folder.join(name).display().to_string();
    let builder = RedisServer::builder()
        .option("tls-port", &port.to_string())
        .option("tls-cert-file", &path("s.crt"))
        .option("tls-key-file", &path("s.key"))
        .option("tls-ca-cert-file", &path("ca.crt"))
        .option("tls-auth-clients", "no");
    builder.start().await.unwrap()
}

/// Whether a client locks, which trusts our authority or does not.
fn locks(folder: &Path, url: &str, trust: bool) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["child", "--exact", "--ignored", "--nocapture"]).env(CHILD, url);
    if trust {
        child.env("SSL_CERT_FILE", folder.join("ca.crt"));
    }
    let output = child.output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("@locked")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_of_a_quorum_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    certificates(folder);
    let (mut servers, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let port = free_port().unwrap();
        servers.push(server(folder, port).await);
        hosts.push(format!("localhost:{port}"));
    }
    let url = format!("redlocks://{}?lock_bootstrap=now", hosts.join(","));
    assert!(!locks(folder, &url, false), "an unknown authority");
    assert!(locks(folder, &url, true), "trusted nodes");
    assert!(!locks(folder, &url.replace("localhost", "127.0.0.1"), true), "other names");
}

#[tokio::test]
async fn a_trusted_server_is_used_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    certificates(folder);
    let port = free_port().unwrap();
    let _server = server(folder, port).await;
    let with = |url: &str, trust: bool| locks(folder, url, trust);
    let url = format!("rediss://localhost:{port}");
    assert!(with(&url, true), "a trusted server");
    assert!(!with(&url, false), "an unknown authority");
    assert!(
        !with(&format!("rediss://127.0.0.1:{port}"), true),
        "another name than the certificate's"
    );
    // A server that speaks no TLS is refused, and not spoken to in the clear.
    let plain = RedisServer::builder().start().await.unwrap();
    let url = plain.url().replace("redis://", "rediss://");
    let error =
        tokio::time::timeout(Duration::from_secs(5), lock_redis::connect(&url)).await.unwrap();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    let insecure = lock_redis::connect(&format!("{url}#insecure")).await.unwrap_err();
    assert_eq!(insecure.kind(), ErrorKind::Config);
}
