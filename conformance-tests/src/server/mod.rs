//! What a harness needs to test a store on a real server.
//!
//! A [`Server`] is one program in a temporary folder, on a [`Port`] that nobody else is given. It is
//! killed when its value is dropped, also after a panic or when the test process itself is killed;
//! no program is ever looked for by name. A [`Proxy`] stands between it and one client, and is that
//! client's [`Faults`](crate::Faults). Several programs that need each other, such as a cluster, are
//! built from [`Process`]es.
//!
//! ```no_run
//! use std::process::Command;
//!
//! use conformance_tests::server::{Port, Proxy, Server};
//! use conformance_tests::{Client, Unavailable};
//! # use lock_core::memory::MemoryBackend;
//! # struct MyBackend;
//! # impl MyBackend { fn connect(_: std::net::SocketAddr) -> MemoryBackend { MemoryBackend::poll_only() } }
//!
//! # async fn example() -> Result<(), Unavailable> {
//! let port = Port::reserve()?;
//! let mut command = Command::new("memcached");
//! command.args(["--listen", "127.0.0.1", "--port", &port.to_string()]);
//! let server = Server::start(command, port).await?;
//!
//! let proxy = Proxy::start(server.address()).await?;
//! let client = Client::new(MyBackend::connect(proxy.address())).with_faults(proxy);
//! # Ok(())
//! # }
//! ```
//!
//! An error is [`Unavailable::missing`](crate::Unavailable::missing) if a program is not installed, and
//! otherwise [`Unavailable::broken`](crate::Unavailable::broken), with the beginning and the end of the
//! server's log.

mod guarded;
mod port;
mod process;
mod proxy;
mod single;

pub use port::Port;
pub use process::Process;
pub use proxy::{Cut, Proxy};
pub use single::Server;
