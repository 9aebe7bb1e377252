//! The harness of MariaDB: a real server, and a separate table for each case.

use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::servers::MariaDbServer;

#[derive(Debug)]
struct MariaDb;

#[async_trait]
impl Setup for MariaDb {
    fn name(&self) -> &str {
        "mysql"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(MariaDbServer::start().await?))
    }

    fn url(&self, hosts: &str, case: &str) -> String {
        self.foreign_url(&format!("mysql://root@{hosts}/locks"), case)
    }

    fn foreign_url(&self, url: &str, case: &str) -> String {
        format!("{url}?lock_table=t{case}")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_sql::connect(url).await?))
    }

    /// The table keeps the cases apart.
    fn prefix(&self, _: &str) -> String {
        String::new()
    }
}

pub(crate) fn main() -> ExitCode {
    proxied::main(MariaDb)
}
