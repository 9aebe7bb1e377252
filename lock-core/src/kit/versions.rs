//! The oldest version of each server that the library supports. This is the only list; every store
//! checks it on connecting.
//!
//! ```
//! use lock_core::kit::versions::MARIADB;
//!
//! assert!(MARIADB.check("10.6.4-MariaDB-log").is_ok());
//! let error = MARIADB.check("10.5.29-MariaDB").unwrap_err();
//! assert!(error.to_string().contains("10.5.29"), "{error}");
//! ```

use std::fmt;

use crate::{Error, ErrorKind, Result};

/// `EVALSHA` with effects replication is the default since Redis 5; 6.0 is the oldest that was tested.
pub const REDIS: Oldest = Oldest::new("Redis", [6, 0, 0], "scripts were not tested on older ones");
/// Watches of one stream are numbered since 3.4.
pub const ETCD: Oldest =
    Oldest::new("etcd", [3, 4, 0], "older ones cannot number the watches of one stream");
/// Container nodes came with 3.5.3; the first stable release of that line was 3.5.5.
pub const ZOOKEEPER: Oldest =
    Oldest::new("ZooKeeper", [3, 5, 5], "older ones have no stable container nodes");
/// The oldest that was tested. The statements themselves need 9.5 (`ON CONFLICT`, `SKIP LOCKED`).
pub const POSTGRES: Oldest =
    Oldest::new("PostgreSQL", [13, 0, 0], "older ones have not been maintained since 2024");
/// `SKIP LOCKED` came with 8.0.
pub const MYSQL: Oldest =
    Oldest::new("MySQL", [8, 0, 0], "older ones do not know SKIP LOCKED, which renewals need");
/// `SKIP LOCKED` came with 10.6 (MDEV-13115).
pub const MARIADB: Oldest =
    Oldest::new("MariaDB", [10, 6, 0], "older ones do not know SKIP LOCKED, which renewals need");
/// `RETURNING` came with 3.35, STRICT tables with 3.37, `->>` with 3.38.
pub const SQLITE: Oldest = Oldest::new("SQLite", [3, 38, 0], "older ones do not know `->>`");

/// The oldest supported version of one kind of server, and why it is that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    server: &'static str,
    version: [u32; 3],
    why: &'static str,
}

impl Oldest {
    /// For a store outside this project.
    pub const fn new(server: &'static str, version: [u32; 3], why: &'static str) -> Self {
        Self { server, version, why }
    }

    /// Checks the version as the server prints it: up to three numbers separated by dots, followed
    /// by anything. A missing number counts as 0.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) naming both versions if the server is older, and
    /// [`Store`](ErrorKind::Store) if the text does not begin with a number.
    pub fn check(&self, printed: &str) -> Result<()> {
        let found = parse(printed).ok_or_else(|| {
            let server = self.server;
            Error::new(ErrorKind::Store, format!("{server} reported {printed:?} as its version"))
        })?;
        if found < self.version {
            let server = self.server;
            return Err(Error::unsupported(format!(
                "this server is {server} {printed}: use {self} or newer; {}",
                self.why
            )));
        }
        Ok(())
    }
}

impl fmt::Display for Oldest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "{} {major}.{minor}", self.server)?;
        if patch > 0 {
            write!(f, ".{patch}")?;
        }
        Ok(())
    }
}

/// The first three numbers of a printed version.
fn parse(printed: &str) -> Option<[u32; 3]> {
    let mut version = [0; 3];
    let numbers = printed.trim().trim_start_matches('v');
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(numbers.len());
    let mut parts = numbers[..end].split('.');
    version[0] = parts.next()?.parse().ok()?;
    for (slot, part) in version[1..].iter_mut().zip(parts) {
        *slot = part.parse().unwrap_or(0);
    }
    Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(MARIADB.check("10.11.6-MariaDB-0+deb12u1").is_ok());
        assert!(MARIADB.check("10.6").is_ok());
        assert!(POSTGRES.check("15.8 (Debian 15.8-0+deb12u1)").is_ok());
        assert!(POSTGRES.check("18beta1").is_ok());
        assert!(ZOOKEEPER.check("3.4.14").is_err());
        assert!(ZOOKEEPER.check("3.10.0").is_ok());
    }

    #[test]
    fn an_old_server_is_named_with_what_is_needed() {
        let error = MARIADB.check("10.5.29-MariaDB").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("MariaDB 10.5.29") && text.contains("10.6"), "{text}");
    }

    #[test]
    fn a_version_is_shown_as_short_as_it_can_be() {
        assert_eq!(ETCD.to_string(), "etcd 3.4");
        assert_eq!(ZOOKEEPER.to_string(), "ZooKeeper 3.5.5");
    }

    #[test]
    fn a_text_without_a_number_is_no_version() {
        assert_eq!(REDIS.check("unknown").unwrap_err().kind(), ErrorKind::Store);
        assert_eq!(REDIS.check("").unwrap_err().kind(), ErrorKind::Store);
    }
}
