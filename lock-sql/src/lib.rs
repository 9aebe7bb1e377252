#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "parts of the shared code are used by only one or two dialects")
)]

mod backend;
mod config;
mod engine;
#[cfg(test)]
mod fuzz;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use backend::{SqlBackend, SqlPool};
pub use config::{PARAMETERS, SqlConfig};
#[cfg(feature = "mysql")]
pub use mysql::MYSQL_PARAMETERS;
#[cfg(feature = "postgres")]
pub use postgres::{POSTGRES_PARAMETERS, Pooler};
#[cfg(feature = "sqlite")]
pub use sqlite::SQLITE_PARAMETERS;

/// The URL schemes of the dialects that are compiled in.
pub const SCHEMES: &[&str] = &[
    #[cfg(feature = "postgres")]
    "postgres",
    #[cfg(feature = "postgres")]
    "postgresql",
    #[cfg(feature = "sqlite")]
    "sqlite",
    #[cfg(feature = "mysql")]
    "mysql",
    #[cfg(feature = "mysql")]
    "mariadb",
];

/// Opens the store that `url` names, with its table. `url` must not contain parameters that belong
/// to the core: the caller removes them first.
///
/// # Errors
///
/// See [`SqlConfig::from_url`] and [`SqlBackend::connect`].
///
/// # Cancel safety
///
/// A dropped call may already have created the file and the table.
pub async fn connect(url: &str) -> lock_core::Result<SqlBackend> {
    SqlBackend::connect(SqlConfig::from_url(url)?).await
}
