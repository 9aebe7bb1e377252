//! The backends on real databases.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "../common/mod.rs"]
mod common;
#[macro_use]
#[path = "../fence_scenes/mod.rs"]
mod fence_scenes;
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod fences;
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod golden;
#[path = "../looks/mod.rs"]
mod looks;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod lost_answers;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
#[path = "../mysql_common/mod.rs"]
mod mysql_common;
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod opening;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
#[path = "../postgres_common/mod.rs"]
mod postgres_common;
#[cfg(feature = "postgres")]
#[path = "../postgres_scenes/mod.rs"]
mod postgres_scenes;
#[cfg(feature = "sqlite")]
mod sqlite;
