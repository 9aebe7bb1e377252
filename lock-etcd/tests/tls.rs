//! `etcds://`: the certificates of both sides are checked.
//!
//! `cargo test -p lock-etcd --features tls --test tls`; needs the program `openssl`.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::path::Path;
use std::process::Command;

use lock_core::{ErrorKind, Locks};
use lock_testkit::servers::EtcdCluster;

use common::soon;

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(directory)
        .args(arguments.split_whitespace())
        .output()
        .expect("openssl is not installed: apt-get install openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn authority(folder: &Path, name: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
        ),
    );
}

fn certificate(folder: &Path, authority: &str, name: &str) {
    openssl(
        folder,
        &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
    );
    std::fs::write(folder.join("ext"), "subjectAltName=DNS:localhost").unwrap();
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
        ),
    );
}

#[tokio::test]
async fn only_those_who_trust_each_other_lock() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    for name in ["ca", "other"] {
        authority(folder, name);
    }
    certificate(folder, "ca", "server");
    certificate(folder, "ca", "client");
    certificate(folder, "other", "stranger");
    let path = |name: &str| folder.join(name).display().to_string();
    let cluster = EtcdCluster::builder()
        .tls()
        .option("cert-file", &path("server.crt"))
        .option("key-file", &path("server.key"))
        .option("trusted-ca-file", &path("ca.crt"))
        .option("client-cert-auth", "true")
        .start()
        .await
        .unwrap();
    let port = cluster.tls_port(0).unwrap();
    let url = |host: &str, ca: &str, client: &str| {
        let client = match client {
            "" => String::new(),
            name => format!(
                "&lock_cert={}&lock_key={}",
                path(&format!("{name}.crt")),
                path(&format!("{name}.key"))
            ),
        };
        format!("etcds://{host}:{port}?lock_ca={}{client}", path(ca))
    };
    let good = url("localhost", "ca.crt", "client");
    for good in [
        good.clone(),
        format!("{}&lock_server_name=localhost", url("127.0.0.1", "ca.crt", "client")),
    ] {
        let locks = Locks::new(soon("a connection", lock_etcd::connect(&good)).await.unwrap());
        let guard = locks.named("a").unwrap().acquire().await.unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    let wrong = good.replace("lock_cert=", "lock_cert=/nowhere");
    let error = lock_etcd::connect(&wrong).await.unwrap_err();
    assert!(error.to_string().contains("lock_cert=\"/nowhere"), "{error}");
    let error = lock_etcd::connect(&good.replace("ca.crt", "ca.key")).await.unwrap_err();
    assert!(error.to_string().contains("has no certificate"), "{error}");
    for (what, url) in [
        ("another authority than the server's", url("localhost", "other.crt", "client")),
        ("another name than the certificate's", url("127.0.0.1", "ca.crt", "client")),
        ("no certificate of the client", url("localhost", "ca.crt", "")),
        ("a certificate that the server does not trust", url("localhost", "ca.crt", "stranger")),
        // A server without TLS is not contacted in plain text.
        (
            "a server without TLS",
            good.replace(&port.to_string(), &cluster.address(0).unwrap().port().to_string()),
        ),
    ] {
        let error = soon(what, lock_etcd::connect(&url)).await;
        let error = error.expect_err(what);
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer),
            "{what}: {error}"
        );
    }
}
