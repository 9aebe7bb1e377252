//! What a server's client needs from the Tokio runtime, checked when it connects: drivers panic if
//! something is missing.
//!
//! ```
//! use lock_kit::runtime;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
//! runtime::require("Redis")?;
//! # Ok(()) }
//! ```

use std::time::Duration;

use tokio::runtime::Handle;

use lock_core::{Error, Result};

/// The caller's runtime. `server` names the server in the error.
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) outside of a Tokio runtime.
pub fn current(server: &str) -> Result<Handle> {
    Handle::try_current().map_err(|_| {
        Error::config(format!(
            "cannot connect to {server} outside of a Tokio runtime: call from within one"
        ))
    })
}

/// The same, if that runtime has timers and sockets. It reports what it lacks by a panic, which is
/// caught here.
///
/// # Errors
///
/// [`Config`](lock_core::ErrorKind::Config) if it lacks one of them, and as [`current`].
pub fn require(server: &str) -> Result<Handle> {
    let runtime = current(server)?;
    let has: [(&str, fn()); 2] = [
        ("timers", || drop(tokio::time::sleep(Duration::ZERO))),
        ("sockets", || drop(tokio::net::UnixDatagram::unbound())),
    ];
    for (what, look) in has {
        std::panic::catch_unwind(look).map_err(|_| {
            Error::config(format!(
                "cannot connect to {server} on a Tokio runtime without {what}: build it with `enable_all`"
            ))
        })?;
    }
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn what_is_missing_is_named() {
        let error = require("X").unwrap_err().to_string();
        assert!(error.contains("cannot connect to X outside"), "{error}");
        let bare = Builder::new_current_thread().build().unwrap();
        let error = bare.block_on(async { require("X").unwrap_err() }).to_string();
        assert!(error.contains("without timers"), "{error}");
        let deaf = Builder::new_current_thread().enable_time().build().unwrap();
        let error = deaf.block_on(async { require("X").unwrap_err() }).to_string();
        assert!(error.contains("without sockets"), "{error}");
        let whole = Builder::new_current_thread().enable_all().build().unwrap();
        whole.block_on(async { require("X").map(drop) }).unwrap();
    }
}
