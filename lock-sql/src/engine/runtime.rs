//! What a client of a server needs from the runtime.

use std::time::Duration;

use lock_core::{Error, Result};
use tokio::runtime::Handle;

/// Without these the driver would panic. A runtime says what it lacks by a panic, too, which is caught
/// here.
pub(crate) fn require(server: &str) -> Result<()> {
    Handle::try_current().map_err(|_| {
        Error::config(format!(
            "{server} is connected outside of a Tokio runtime: call from within one"
        ))
    })?;
    let has: [(&str, fn()); 2] = [
        ("timers", || drop(tokio::time::sleep(Duration::ZERO))),
        #[cfg(unix)]
        ("sockets", || drop(tokio::net::UnixDatagram::unbound())),
        #[cfg(not(unix))]
        ("sockets", || {}),
    ];
    for (what, look) in has {
        std::panic::catch_unwind(look).map_err(|_| {
            Error::config(format!(
                "{server} is connected in a Tokio runtime without {what}: build it with `enable_all`"
            ))
        })?;
    }
    Ok(())
}
