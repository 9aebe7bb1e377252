//! The program, as a user runs it: real processes, signals, terminals and stores.

mod admin;
mod bench;
#[cfg(feature = "conformance")]
mod conformance;
mod contention;
mod deployed;
mod doctor;
mod events;
mod exit_codes;
mod kinds;
mod lease;
mod leases;
mod measure;
mod one_job;
#[cfg(feature = "redis")]
mod redis;
mod several;
mod signals;
mod stores;
mod supervisor;
mod terminal;
mod two_versions;
mod watch;
