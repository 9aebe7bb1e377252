//! TLS to PostgreSQL: certificates are checked as the URL says.
//!
//! `cargo test -p lock-sql --features postgres,tls --test postgres_tls`; needs the program `openssl`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use lock_core::{ErrorKind, Locks};
use lock_testkit::servers::PostgresServer;

fn program(directory: &Path, command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap();
    let output = Command::new(program)
        .current_dir(directory)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}: apt-get install {program}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The certificate of `localhost` by the authority `ca`, and another authority.
fn certificates(folder: &Path) {
    for authority in ["ca", "other"] {
        program(
            folder,
            &format!(
                "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.crt"
            ),
        );
    }
    program(
        folder,
        "openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout s.key -out s.csr",
    );
    std::fs::write(folder.join("ext"), "subjectAltName=DNS:localhost").unwrap();
    program(
        folder,
        "openssl x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out s.crt",
    );
    // The server may run as another user, and insists that its key is its own.
    for (name, mode) in [("", 0o755), ("s.key", 0o600), ("s.crt", 0o644), ("ca.crt", 0o644)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.join(name), mode).unwrap();
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let account = users.lines().any(|line| line.starts_with("postgres:"));
    let owner = if account { "postgres" } else { "nobody" };
    // Only root may, and only root must.
    let _ = Command::new("chown").arg(owner).arg(folder.join("s.key")).output();
}

#[tokio::test]
async fn an_authority_that_is_given_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    certificates(folder);
    let path = |name: &str| folder.join(name).display().to_string();
    let server = PostgresServer::builder()
        .option("ssl", "on")
        .option("ssl_cert_file", &path("s.crt"))
        .option("ssl_key_file", &path("s.key"))
        .start()
        .await
        .unwrap();
    let port = server.address().unwrap().port();
    let url = |host: &str, parameters: &str| {
        format!("postgres://postgres@{host}:{port}/postgres?{parameters}")
    };
    let (ca, other) = (path("ca.crt"), path("other.crt"));
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
        // Another name than the certificate's, and an authority that nobody knows.
        url("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={ca}")),
        url("localhost", "sslmode=verify-full"),
    ] {
        let error = lock_sql::connect(&bad).await.expect_err(&bad);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{bad}: {error}");
        assert!(error.to_string().contains("TLS"), "{bad}: {error}");
    }
    let missing = url("localhost", "sslmode=require&sslrootcert=/nowhere/ca.crt");
    lock_sql::connect(&missing).await.unwrap_err();
    // A server that speaks no TLS is refused, and not spoken to in the clear.
    let plain = PostgresServer::builder().start().await.unwrap();
    let error = lock_sql::connect(&format!("{}?sslrootcert={ca}", plain.url())).await.unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}
