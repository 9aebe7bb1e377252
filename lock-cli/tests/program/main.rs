//! The program, as a user runs it: real processes, signals, terminals and stores.

mod admin;
mod bench;
mod contention;
mod exit_codes;
mod lease;
mod leases;
mod one_job;
mod signals;
mod stores;
mod supervisor;
mod terminal;
