//! The harness of one Redis node.

use std::sync::Arc;

use conformance_tests::Unavailable;
use conformance_tests::mutants::PASSWORD;
use conformance_tests::proxied::{Servers, Setup};
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::servers::RedisServer;

#[derive(Debug)]
pub(crate) struct OneNode;

#[async_trait]
impl Setup for OneNode {
    fn name(&self) -> &str {
        "redis"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(RedisServer::builder().option("requirepass", PASSWORD).start().await?))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        format!("redis://:{PASSWORD}@{hosts}")
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_redis::connect(url).await?))
    }
}
