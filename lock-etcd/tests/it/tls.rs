//! `etcds://`: what its URL names. Who trusts whom is checked by `tests/tls.rs` of the workspace.
//!
//! `cargo test -p lock-etcd --features tls --test it tls`; needs the program `openssl`.

use lock_core::Locks;
use lock_testkit::certificates::Certificates;
use lock_testkit::servers::EtcdCluster;

use crate::common::soon;

#[tokio::test]
async fn what_the_url_names_is_used() {
    let folder = Certificates::make().await.unwrap();
    let cluster = EtcdCluster::builder()
        .tls()
        .option("cert-file", &folder.of("server"))
        .option("key-file", &folder.key("server"))
        .option("trusted-ca-file", &folder.of("ca"))
        .option("client-cert-auth", "true")
        .start()
        .await
        .unwrap();
    let url = format!(
        "etcds://127.0.0.1:{}?lock_ca={}&lock_cert={}&lock_key={}&lock_server_name=localhost",
        cluster.tls_port(0).unwrap(),
        folder.of("ca"),
        folder.of("client"),
        folder.key("client")
    );
    let locks = Locks::new(soon("a connection", lock_etcd::connect(&url)).await.unwrap());
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let wrong = url.replace("lock_cert=", "lock_cert=/nowhere");
    let error = lock_etcd::connect(&wrong).await.unwrap_err();
    assert!(error.to_string().contains("lock_cert=\"/nowhere"), "{error}");
    let error = lock_etcd::connect(&url.replace("ca.crt", "ca.key")).await.unwrap_err();
    assert!(error.to_string().contains("has no certificate"), "{error}");
}
