//! A store that is far away.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::server::Proxy;

use super::{Subject, Usage};
use crate::Done;

/// The servers of another one, over links that take their time.
pub(crate) struct Far<'a> {
    near: &'a mut dyn Subject,
    links: Vec<(SocketAddr, Proxy)>,
}

impl<'a> Far<'a> {
    /// Where a request and its reply take this long together, beside the time of the server.
    pub(crate) async fn from(near: &'a mut dyn Subject, both_ways: Duration) -> Done<Self> {
        let mut links = Vec::new();
        for address in near.addresses() {
            if !near.url().contains(&address.to_string()) {
                return Err(format!("{} does not name {address}", near.url()).into());
            }
            let link = Proxy::start(address).await?;
            link.delay(both_ways / 2, Duration::ZERO);
            links.push((address, link));
        }
        Ok(Self { near, links })
    }
}

#[async_trait]
impl Subject for Far<'_> {
    fn url(&self) -> String {
        let over = |url: String, (address, link): &(SocketAddr, Proxy)| {
            url.replace(&address.to_string(), &link.address().to_string())
        };
        self.links.iter().fold(self.near.url(), over)
    }

    async fn version(&mut self) -> Done<String> {
        self.near.version().await
    }

    async fn usage(&mut self) -> Done<Usage> {
        self.near.usage().await
    }
}
