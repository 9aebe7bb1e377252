//! TLS to PostgreSQL: certificates are checked as the URL says.
//!
//! `cargo test -p lock-sql --features postgres,tls --test it tls`; needs the program
//! `openssl`.

use lock_core::{ErrorKind, Locks};
use lock_testkit::certificates::Certificates;
use lock_testkit::servers::PostgresServer;

#[tokio::test]
async fn an_authority_that_is_given_is_used() {
    let folder = Certificates::make().await.unwrap();
    let server = PostgresServer::builder()
        .option("ssl", "on")
        .option("ssl_cert_file", &folder.of("server"))
        .option("ssl_key_file", &folder.key_for_postgres("server"))
        .start()
        .await
        .unwrap();
    let port = server.address().unwrap().port();
    let url = |host: &str, parameters: &str| {
        format!("postgres://postgres@{host}:{port}/postgres?{parameters}")
    };
    let (ca, other) = (folder.of("ca"), folder.of("other"));
    for good in [
        url("127.0.0.1", "sslmode=require"),
        url("127.0.0.1", &format!("sslmode=require&sslrootcert={ca}")),
        url("127.0.0.1", &format!("sslrootcert={ca}")),
        url("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={ca}")),
        url("localhost", &format!("sslmode=verify-full&sslrootcert={ca}")),
    ] {
        let locks = Locks::new(lock_sql::connect(&good).await.unwrap());
        locks.named("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    }
    for bad in [
        url("localhost", &format!("sslmode=require&sslrootcert={other}")),
        url("localhost", &format!("sslrootcert={other}")),
        url("localhost", &format!("sslmode=verify-ca&sslrootcert={other}")),
        // Another name than the certificate's, and an unknown authority.
        url("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={ca}")),
        url("localhost", "sslmode=verify-full"),
    ] {
        let error = lock_sql::connect(&bad).await.expect_err(&bad);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{bad}: {error}");
        assert!(error.to_string().contains("TLS"), "{bad}: {error}");
    }
    // A file that is missing, or is not what its parameter says, is named.
    let key = folder.key("server");
    for (parameters, words) in [
        (
            "sslrootcert=/nowhere/ca.crt".to_owned(),
            "sslrootcert=\"/nowhere/ca.crt\" cannot be read",
        ),
        ("sslkey=%2Fnowhere%2Fc.key".to_owned(), "sslkey=\"/nowhere/c.key\" cannot be read"),
        (format!("sslrootcert={key}"), "has no certificate"),
        (format!("sslcert={key}&sslkey={key}"), "has no certificate"),
        (format!("sslcert={ca}&sslkey={ca}"), "has no private key"),
    ] {
        let error = lock_sql::connect(&url("localhost", &parameters)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // A server that speaks no TLS is refused, and not spoken to in the clear.
    let plain = PostgresServer::builder().start().await.unwrap();
    let error = lock_sql::connect(&format!("{}?sslrootcert={ca}", plain.url())).await.unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}
