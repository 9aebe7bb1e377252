//! Tokio's own. Where they wake somebody, they hold no lock.

pub(crate) use real_tokio::sync::oneshot;
pub(crate) use real_tokio_util::sync::CancellationToken;
