//! The conformance suite on three real masters for each case, each client behind fault proxies.

mod redlock_common;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use conformance_tests::{Client, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{LockBackend, Result};
use lock_testkit::servers::Data;
use redlock_common::{Links, Masters};

#[derive(Debug)]
struct RedlockHarness;

#[derive(Debug)]
struct RedlockStore {
    masters: Masters,
    /// The links live as long as the case, also where it keeps only the backend.
    links: Mutex<Vec<Links>>,
}

#[async_trait]
impl Harness for RedlockHarness {
    fn name(&self) -> &str {
        "redlock"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let masters = Masters::start().await?;
        Ok(Box::new(RedlockStore { masters, links: Mutex::default() }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_redis::connect_redlock(uri).await?))
    }
}

#[async_trait]
impl Store for RedlockStore {
    async fn client(&self) -> Result<Client> {
        let links = self.masters.links().await?;
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(links.clone());
        Ok(Client::new(links.client().await?).with_faults(links))
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.masters.0.iter().try_for_each(|server| server.freeze())
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.masters.0.iter().try_for_each(|server| server.thaw())
    }

    /// One node: a quorum is made to survive that. What a restart of more nodes does stands in the
    /// tests of its own, since the longest ttl has to pass then.
    async fn restart(&self) -> Result<(), Unavailable> {
        self.masters.0[0].restart(Data::Keep).await
    }

    fn uri(&self) -> Option<String> {
        Some(self.masters.url(""))
    }
}

fn main() -> ExitCode {
    conformance_tests::main(RedlockHarness)
}
