#![doc = include_str!("../README.md")]

pub mod measure;
pub mod proxy;
pub mod servers;
