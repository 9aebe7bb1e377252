//! The harness of one Redis node: a real server per case.

use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::proxied::{self, Setup};
use lock_testkit::servers::{RedisServer, Servers};

#[derive(Debug)]
struct OneNode;

#[async_trait]
impl Setup for OneNode {
    fn name(&self) -> &str {
        "redis"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(RedisServer::start().await?))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        format!("redis://{hosts}")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_redis::connect(url).await?))
    }
}

pub(crate) fn main() -> ExitCode {
    proxied::main(OneNode)
}
