//! TLS to MariaDB: certificates are checked as the URL says.
//!
//! `cargo test -p lock-sql --features mysql,tls --test it tls`; needs the program `openssl`.

use lock_core::{ErrorKind, Locks};
use lock_testkit::certificates::Certificates;
use lock_testkit::servers::MariaDbServer;

use crate::mysql_common::{admin, assert_says, run};

#[tokio::test]
async fn a_trusted_server_is_used_and_no_other() {
    let folder = Certificates::make().await.unwrap();
    let server = MariaDbServer::builder()
        .option("ssl-ca", &folder.of("ca"))
        .option("ssl-cert", &folder.of("server"))
        .option("ssl-key", &folder.key("server"))
        .start()
        .await
        .unwrap();
    run(
        &admin(&server).await,
        "CREATE USER app IDENTIFIED BY 'secret' REQUIRE SSL; GRANT ALL ON locks.* TO app",
    )
    .await;
    let port = server.address().unwrap().port();
    let url = |host: &str, parameters: &str| {
        format!("mysql://app:secret@{host}:{port}/locks?{parameters}")
    };
    let (ca, other) = (folder.of("ca"), folder.of("other"));
    for good in [
        url("localhost", &format!("ssl-mode=verify_identity&ssl-ca={ca}")),
        url("127.0.0.1", &format!("ssl-mode=VERIFY_CA&ssl-ca={ca}")),
        url("127.0.0.1", &format!("ssl-ca={ca}")),
        url("127.0.0.1", "ssl-mode=REQUIRED"),
        url("127.0.0.1", ""),
    ] {
        let locks = Locks::new(lock_sql::connect(&good).await.unwrap());
        locks.named("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    }
    for bad in [
        // Another name than the certificate's, another authority, an unknown one.
        url("127.0.0.1", &format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")),
        url("localhost", &format!("ssl-mode=VERIFY_CA&ssl-ca={other}")),
        url("localhost", "ssl-mode=VERIFY_IDENTITY"),
        // An authority that is named is asked, as `mysql` does.
        url("localhost", &format!("ssl-ca={other}")),
        url("localhost", &format!("ssl-mode=REQUIRED&ssl-ca={other}")),
    ] {
        let error = lock_sql::connect(&bad).await.unwrap_err();
        assert_says(&error, ErrorKind::Unavailable, &["TLS", "ssl-ca"]);
        assert!(!format!("{error:?} {error}").contains("secret"), "{error}");
    }
    // A file that is missing, or is not what its parameter says, is named.
    let key = folder.key("server");
    for (parameters, words) in [
        ("ssl-ca=/nowhere/ca.crt".to_owned(), ["ssl-ca=\"/nowhere/ca.crt\"", "cannot be read"]),
        (format!("ssl-cert={key}"), ["ssl-cert=", "has no certificate"]),
        (format!("ssl-key={ca}"), ["ssl-key=", "has no private key"]),
    ] {
        let error = lock_sql::connect(&url("localhost", &parameters)).await.unwrap_err();
        assert_says(&error, ErrorKind::Config, &words);
    }
    let error = lock_sql::connect(&url("localhost", "ssl-mode=DISABLED")).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["user"]);
    // A server that speaks no TLS is refused, and not spoken to in the clear.
    let plain = MariaDbServer::builder().option("skip-ssl", "1").start().await.unwrap();
    let error = lock_sql::connect(&format!("{}?ssl-mode=REQUIRED", plain.url())).await.unwrap_err();
    assert_says(&error, ErrorKind::Unavailable, &["TLS"]);
}
