#![doc = include_str!("../README.md")]
#![allow(
    clippy::missing_errors_doc,
    reason = "an error says what is missing or broken, and makes the test fail"
)]

pub mod certificates;
pub mod fuzz;
pub mod hostile;
pub mod networked;
pub mod proxied;
pub mod scenes;
pub mod servers;
pub mod usage;
pub mod warnings;
pub mod wrong_clients;
