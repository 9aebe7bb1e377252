#![doc = include_str!("../README.md")]

pub mod measure;
pub mod proxied;
pub mod proxy;
pub mod scenes;
pub mod servers;
pub mod warnings;
