//! `rediss://` and `rediss+sentinel://`: the certificates of both sides are checked. So are those of `redlocks://`,
//! by `tests/tls.rs` of the workspace, with what all stores have in common.
//!
//! `cargo test -p lock-redis --features tls --test tls`; needs the program `openssl`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::process::Command;
use std::time::Duration;

use conformance_tests::server::Port;
use lock_core::{ErrorKind, Locks};
use lock_testkit::certificates::Certificates;
use lock_testkit::servers::{RedisServer, Sentinel, Server, monitor, order};

const CHILD: &str = "LOCK_REDIS_TEST_TLS";

/// A server, and the port on which it speaks TLS.
async fn server(folder: &Certificates, asks_for_clients: bool) -> (RedisServer, Port) {
    let port = Port::reserve().unwrap();
    let server = RedisServer::builder()
        .option("tls-port", &port.to_string())
        .option("tls-cert-file", &folder.of("server"))
        .option("tls-key-file", &folder.key("server"))
        .option("tls-ca-cert-file", &folder.of("ca"))
        .option("tls-auth-clients", if asks_for_clients { "yes" } else { "no" })
        .start()
        .await
        .unwrap();
    (server, port)
}

async fn lock_once(url: &str) -> lock_core::Result<()> {
    let locks = if url.starts_with("rediss+sentinel:") {
        Locks::new(lock_redis::connect_sentinel(url).await?)
    } else {
        Locks::new(lock_redis::connect(url).await?)
    };
    let guard = locks.named("a")?.acquire().await?;
    guard.renew().await?;
    guard.release().await.map(drop)
}

/// Connecting fails with an error that mentions the certificate and shows no key.
async fn is_refused(what: &str, url: &str, why: &str) {
    let connected = tokio::time::timeout(Duration::from_secs(10), lock_redis::connect(url)).await;
    let error = connected.unwrap().expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
    assert!(error.to_string().to_lowercase().contains(why), "{what}: {error}");
}

/// Sentinels and servers are both reached by TLS, and the certificate of a server is for the name that the sentinels
/// give.
#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_a_master_is_checked_to_its_end() {
    let folder = Certificates::make().await.unwrap();
    let (_server, server_port) = server(&folder, false).await;
    let port = Port::reserve().unwrap();
    let sentinel = Server::<Sentinel>::builder()
        .option("tls-port", &port.to_string())
        .option("tls-cert-file", &folder.of("server"))
        .option("tls-key-file", &folder.key("server"))
        .option("tls-ca-cert-file", &folder.of("ca"))
        .option("tls-auth-clients", "no")
        .option("tls-replication", "yes");
    let sentinel = sentinel.start().await.unwrap();
    for setting in ["resolve-hostnames", "announce-hostnames"] {
        let set = format!("SENTINEL CONFIG SET {setting} yes");
        assert_eq!(order(sentinel.address().unwrap(), &set).unwrap(), "+OK\r\n");
    }
    monitor(&sentinel, "named", ("localhost", server_port.number())).unwrap();
    let url = |ca: &str| {
        let ca = folder.of(ca);
        format!("rediss+sentinel://localhost:{port}/named?lock_failover=trust&lock_ca={ca}")
    };
    lock_once(&url("ca")).await.unwrap();
    let unknown = lock_once(&url("other")).await.unwrap_err();
    assert!(unknown.to_string().to_lowercase().contains("certificate"), "{unknown}");
    monitor(&sentinel, "unnamed", ("127.0.0.1", server_port.number())).unwrap();
    let unnamed = url("ca").replace("/named?", "/unnamed?");
    let other_name = lock_once(&unnamed).await.unwrap_err();
    assert!(other_name.to_string().to_lowercase().contains("certificate"), "{other_name}");
}

/// The process that trusts an authority by its environment.
#[tokio::test]
#[ignore = "the child process of the other test"]
async fn child() {
    let Ok(url) = std::env::var(CHILD) else { return };
    lock_once(&url).await.unwrap();
    println!("@locked");
}

#[tokio::test]
async fn a_trusted_server_is_used_and_no_other() {
    let folder = Certificates::make().await.unwrap();
    let (_server, port) = server(&folder, false).await;
    let with = |url: &str, trust: bool| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["child", "--exact", "--ignored", "--nocapture"]).env(CHILD, url);
        if trust {
            child.env("SSL_CERT_FILE", folder.of("ca"));
        }
        let output = child.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("@locked")
    };
    let url = format!("rediss://localhost:{port}");
    assert!(with(&url, true), "a trusted server");
    assert!(!with(&url, false), "an unknown authority");
    assert!(
        !with(&format!("rediss://127.0.0.1:{port}"), true),
        "another name than the certificate's"
    );
    // An authority that is named takes the place of those that the system trusts.
    assert!(with(&format!("{url}?lock_ca={}", folder.of("ca")), false), "the named one");
    assert!(!with(&format!("{url}?lock_ca={}", folder.of("other")), true), "another one");
    // A server that speaks no TLS is refused, and not spoken to in the clear.
    let plain = RedisServer::builder().start().await.unwrap();
    let url = plain.url().replace("redis://", "rediss://");
    is_refused("a server without TLS", &url, "over tls cannot be reached").await;
    let url = format!("redis://localhost:{port}");
    is_refused("plain text to a port of TLS", &url, "rediss:// and redlocks:// are for").await;
    let insecure = lock_redis::connect(&format!("{url}#insecure")).await.unwrap_err();
    assert_eq!(insecure.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_file_may_name_two_authorities() {
    let folder = Certificates::make().await.unwrap();
    let (_server, port) = server(&folder, false).await;
    let both = ["other", "ca"].map(|ca| std::fs::read_to_string(folder.of(ca)).unwrap());
    std::fs::write(folder.of("both"), both.concat()).unwrap();
    lock_once(&format!("rediss://localhost:{port}?lock_ca={}", folder.of("both"))).await.unwrap();
}

#[tokio::test]
async fn a_client_shows_its_certificate() {
    let folder = Certificates::make().await.unwrap();
    let (_server, port) = server(&folder, true).await;
    let trusting = format!("rediss://localhost:{port}?lock_ca={}", folder.of("ca"));
    let as_client = |name: &str| {
        format!("{trusting}&lock_cert={}&lock_key={}", folder.of(name), folder.key(name))
    };
    lock_once(&as_client("client")).await.unwrap();
    let config = lock_redis::RedisConfig::from_url(&as_client("client")).unwrap();
    assert!(!format!("{config:?}").contains("PRIVATE"), "{config:?}");
    is_refused("no certificate of the client", &trusting, "lock_cert and lock_key are").await;
    is_refused("a stranger", &as_client("stranger"), "lock_cert and lock_key are").await;
    let unknown = format!("rediss://localhost:{port}?lock_ca={}", folder.of("other"));
    is_refused("another authority", &unknown, "lock_ca names the authority").await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_with_its_parameter() {
    let folder = Certificates::make().await.unwrap();
    std::fs::write(folder.path("nonsense"), "nonsense").unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(folder.path("broken"), broken).unwrap();
    for (parameters, part) in [
        ("lock_ca=@/not/there", "lock_ca=\"@/not/there\" cannot be read"),
        ("lock_ca=@/nonsense", "lock_ca=\"@/nonsense\" has no certificate"),
        ("lock_ca=@/broken", "lock_ca=\"@/broken\" has a certificate that cannot be used"),
        ("lock_ca=@/ca.key", "lock_ca=\"@/ca.key\" has no certificate"),
        ("lock_cert=@/client.crt", "belong together"),
        ("lock_key=@/client.key", "belong together"),
        (
            "lock_cert=@/nonsense&lock_key=@/client.key",
            "lock_cert=\"@/nonsense\" has no certificate",
        ),
        (
            "lock_cert=@/client.crt&lock_key=@/nonsense",
            "lock_key=\"@/nonsense\" has no private key",
        ),
        ("lock_cert=@/client.crt&lock_key=@/not", "lock_key=\"@/not\" cannot be read"),
        ("lock_cert=@/client.crt&lock_key=@/ca.key", "lock_key=\"@/ca.key\" cannot be used with"),
    ] {
        let at = folder.folder().display().to_string();
        let (parameters, part) = (parameters.replace('@', &at), part.replace('@', &at));
        let error = lock_redis::RedisConfig::from_url(&format!("rediss://h?{parameters}"));
        let error = error.expect_err(&parameters);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(&part), "{error}");
    }
}
