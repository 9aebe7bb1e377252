//! Certificates for tests of TLS, made by `openssl`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use tempfile::TempDir;

use crate::servers::give_to_postgres;

/// The authorities.
const AUTHORITIES: [&str; 2] = ["ca", "other"];
/// Who has a certificate, by whom, and for how many days. All are for the host name `localhost`.
const OWNERS: [(&str, &str, u32); 4] =
    [("server", "ca", 2), ("expired", "ca", 0), ("client", "ca", 2), ("stranger", "other", 2)];

/// A folder with two authorities, `ca` and `other`, and certificates by the first for a `server`, for one
/// whose certificate has `expired` and for a `client`; and one by the second for a `stranger`.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes all of them, and waits until those of no day have expired.
    pub async fn make() -> Result<Self, Unavailable> {
        let failed = |error| Unavailable::broken(format!("no folder for certificates: {error}"));
        let new = Self(tempfile::tempdir().map_err(failed)?);
        // Servers may run as another user.
        std::fs::set_permissions(&new.0, Permissions::from_mode(0o755)).map_err(failed)?;
        std::fs::write(new.0.path().join("ext"), "subjectAltName=DNS:localhost").map_err(failed)?;
        const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for name in AUTHORITIES {
            new.openssl(&format!(
                "req -x509 {KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
            ))?;
        }
        for (name, by, days) in OWNERS {
            new.openssl(&format!("req {KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"))?;
            new.openssl(&format!(
                "x509 -req -in {name}.csr -CA {by}.crt -CAkey {by}.key -CAcreateserial -days {days} -extfile ext -out {name}.crt"
            ))?;
            let (key, own) = (new.key(name), new.key_for_postgres(name));
            std::fs::copy(&key, &own).map_err(failed)?;
            give_to_postgres(Path::new(&own))?;
            std::fs::set_permissions(&key, Permissions::from_mode(0o644)).map_err(failed)?;
        }
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        Ok(new)
    }

    /// The path of a certificate.
    pub fn of(&self, name: &str) -> String {
        self.path(&format!("{name}.crt"))
    }

    /// The path of its key, which every server can read.
    pub fn key(&self, name: &str) -> String {
        self.path(&format!("{name}.key"))
    }

    /// The path of its key as PostgreSQL insists on it: nobody else can read it.
    pub fn key_for_postgres(&self, name: &str) -> String {
        self.path(&format!("{name}.own.key"))
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file among them.
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn openssl(&self, arguments: &str) -> Result<(), Unavailable> {
        let mut openssl = Command::new("openssl");
        openssl.current_dir(&self.0).args(arguments.split_whitespace());
        let output = openssl.output().map_err(|error| {
            Unavailable::missing(format!(
                "openssl does not start ({error}): apt-get install openssl"
            ))
        })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Unavailable::broken(String::from_utf8_lossy(&output.stderr))),
        }
    }
}
