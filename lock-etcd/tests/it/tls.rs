//! `etcds://`: the certificates of both sides are checked.
//!
//! `cargo test -p lock-etcd --features tls --test it tls`; needs the program `openssl`.

use lock_core::{ErrorKind, Locks};
use lock_testkit::certificates::Certificates;
use lock_testkit::servers::EtcdCluster;

use crate::common::soon;

#[tokio::test]
async fn only_those_who_trust_each_other_lock() {
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
    let port = cluster.tls_port(0).unwrap();
    let url = |host: &str, ca: &str, client: &str| {
        let client = match client {
            "" => String::new(),
            name => format!("&lock_cert={}&lock_key={}", folder.of(name), folder.key(name)),
        };
        format!("etcds://{host}:{port}?lock_ca={}{client}", folder.of(ca))
    };
    let good = url("localhost", "ca", "client");
    for good in
        [good.clone(), format!("{}&lock_server_name=localhost", url("127.0.0.1", "ca", "client"))]
    {
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
        ("another authority than the server's", url("localhost", "other", "client")),
        ("another name than the certificate's", url("127.0.0.1", "ca", "client")),
        ("no certificate of the client", url("localhost", "ca", "")),
        ("a certificate that the server does not trust", url("localhost", "ca", "stranger")),
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
