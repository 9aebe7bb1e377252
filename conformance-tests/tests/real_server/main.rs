//! The suite on a real server: each case has one of its own, and each client a proxy of its own.

mod store;

use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::server::{Port, Proxy, Server};
use conformance_tests::{Client, Harness, Store, Unavailable};
use lock_core::{LockBackend, LockKey, Result, async_trait};

use self::store::ByHand;

#[derive(Debug)]
struct MyHarness;

#[derive(Debug)]
struct MyStore(Server);

#[async_trait]
impl Harness for MyHarness {
    fn name(&self) -> &str {
        "redis-by-hand"
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let port = Port::reserve()?;
        let mut command = Command::new("redis-server");
        // Its data is in its working directory, which is a temporary folder.
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--appendonly", "yes"]);
        // Otherwise a write that it has acknowledged may wait for the disk, and a kill loses it.
        command.args(["--appendfsync", "no"]);
        // It accepts connections before it has read its data.
        let serves = |server: SocketAddr| async move {
            store::ask(&server.to_string(), &["EXISTS", "lock"]).await.is_ok()
        };
        let server = Server::start_until(command, port, Duration::from_secs(60), serves).await?;
        Ok(Box::new(MyStore(server)))
    }

    /// Opens the store from another process, which the suite starts, stops and kills.
    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(ByHand(uri.to_owned())))
    }
}

#[async_trait]
impl Store for MyStore {
    async fn client(&self) -> Result<Client> {
        let proxy = Proxy::start(self.0.address()).await?;
        Ok(Client::new(ByHand(proxy.address().to_string())).with_faults(proxy))
    }

    fn server(&self) -> Option<&Server> {
        Some(&self.0)
    }

    /// As an operator does who knows the database.
    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        store::ask(&self.0.address().to_string(), &["DEL", &store::hold(key)]).await?;
        Ok(())
    }
}

fn main() -> ExitCode {
    conformance_tests::main(MyHarness)
}
