#![doc = include_str!("../README.md")]

//! Where things are, in reading order:
//!
//! - `backend` — the store as the core sees it, whatever the database
//! - `config` — the URL and its parameters
//! - `engine` — what the databases share: a store in `backend`, a contender for a lock in `claim`; in `store`
//!   the steps of each dialect, taking and giving back a lock, limits, retries, and what is sent again after
//!   a lost reply (what is still in doubt then, the core settles by a release, in its `keeper/leaving`); renewals that
//!   go out together in `renewals`, and how a dialect makes them as `renew_batch` in its own room; which claim a
//!   notification wakes in `waiters` (without notifications the core polls, in its `keeper/search`)
//! - `engine/table` — the lock table: which one in `settings`, its texts in `lock_table`, how they become
//!   statements in `preparation`, what a row says in `row`, making sure that it is there in `creation`,
//!   removing old rows in `sweep`
//! - `engine/wire` — sending: statements and values in `statement`, one database in `driver`, what a client
//!   sends over in `connections`, those to a server in `pool`, what went wrong in `errors`
//! - `sqlite` — a file: its `statements`, its two `connections`, where it may be in `filesystem`, and
//!   the machine's `clocks`
//! - `postgres` — its `statements`, notifications in `listener`, poolers in `pooler`; opening a connection, and for
//!   which locks one statement less is enough, in `server`
//! - `mysql` — its `statements` and `renewals`
//! - `fence` — a token compared in the transaction of the caller, on the data's own database
//! - `mutants` — known mistakes in statements, for the tests of the tests
//! - `fuzz` — rows that nobody has written
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "parts of the shared code are used by only one or two dialects")
)]

mod backend;
mod config;
mod engine;
pub mod fence;
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
