//! The code of the guide's pages that use other crates besides `distlock`: `cargo test -p distlock-examples --doc`
//! compiles it.

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/axum.md")]
#[doc = include_str!("../docs/guide/workers.md")]
#[doc = include_str!("../docs/guide/one-replica.md")]
#[doc = include_str!("../docs/guide/schedulers.md")]
mod pages {}
