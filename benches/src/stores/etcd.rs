//! etcd.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::proxied::Servers;
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, WatchOptions};
use lock_testkit::servers::EtcdCluster;
use tokio::time::Instant;

use super::{Floor, OWNER, Subject, Usage, own_name};
use crate::Done;

/// The methods that a lock uses.
const METHODS: [&str; 6] = ["Txn", "Range", "Watch", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive"];

pub(super) struct Etcd(EtcdCluster);

impl Etcd {
    pub(super) async fn start(members: usize) -> Done<Self> {
        Ok(Self(EtcdCluster::builder().members(members).start().await?))
    }

    fn ask(&self, member: usize, path: &str) -> Done<String> {
        let mut stream = TcpStream::connect(self.0.address(member)?)?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// The sum of the counters with this name and, if there are any, one of these labels.
fn counted(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let meant = lines.filter(|rest| match rest.strip_prefix('{') {
        Some(rest) => labels.iter().any(|label| rest.contains(&format!("\"{label}\""))),
        None => rest.starts_with(' '),
    });
    meant.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[async_trait]
impl Subject for Etcd {
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    async fn version(&mut self) -> Done<String> {
        let answer = self.ask(0, "/version")?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let version: serde_json::Value = serde_json::from_str(body)?;
        let version = version["etcdserver"].as_str().unwrap_or("?");
        Ok(format!("etcd {version}, without fsync where it can"))
    }

    /// A message in a stream counts like a request.
    async fn usage(&mut self) -> Done<Usage> {
        let (mut requests, mut cpu, mut bytes) = (0.0, Duration::ZERO, 0.0);
        for member in 0..self.0.members() {
            let metrics = self.ask(member, "/metrics")?;
            requests += counted(&metrics, "grpc_server_msg_received_total", &METHODS);
            cpu += self.0.cpu_time(member)?;
            bytes += [
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "etcd_debugging_mvcc_db_total_size_in_use_in_bytes",
            ]
            .map(|name| counted(&metrics, name, &[]))
            .iter()
            .sum::<f64>();
        }
        Ok(Usage { requests: Some(requests), cpu: Some(cpu), bytes: Some(bytes) })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    async fn members(&self) -> Done<Vec<&'static str>> {
        let leader = self.0.leader().await?;
        let name = |member| if member == leader { "the leader" } else { "a follower" };
        Ok((0..self.0.members()).map(name).collect())
    }

    fn freeze(&self, member: usize, frozen: bool) -> Done {
        Ok(if frozen { self.0.freeze(member) } else { self.0.thaw(member) }?)
    }
}

pub(super) struct EtcdFloor {
    first: Client,
    second: Client,
    lease: i64,
    key: String,
    revision: i64,
}

impl EtcdFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let hosts: Vec<_> = url.trim_start_matches("etcd://").split(',').collect();
        let (mut first, second) =
            (Client::connect(&hosts[..1], None).await?, Client::connect(&hosts[..1], None).await?);
        let lease = first.lease_grant(3600, None).await?.id();
        let key = own_name();
        Ok(Self { first, second, lease, key, revision: 0 })
    }
}

fn delete(key: &str, revision: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, revision)])
        .and_then([TxnOp::delete(key, None)])
}

#[async_trait]
impl Floor for EtcdFloor {
    async fn acquire(&mut self) -> Done {
        let put = PutOptions::new().with_lease(self.lease);
        let txn = Txn::new()
            .when([Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(self.key.as_str(), OWNER, Some(put))])
            .or_else([TxnOp::get(self.key.as_str(), None)]);
        self.revision = self.first.txn(txn).await?.header().ok_or("no header")?.revision();
        Ok(())
    }

    async fn release(&mut self) -> Done {
        self.first.txn(delete(&self.key, self.revision)).await?;
        Ok(())
    }

    async fn hand_over(&mut self) -> Done<Duration> {
        self.acquire().await?;
        let options = WatchOptions::new().with_start_revision(self.revision + 1);
        let mut events = self.second.watch(self.key.as_str(), Some(options)).await?;
        events.message().await?.ok_or("no answer to a watch")?;
        let start = Instant::now();
        let woken = async {
            events.message().await?.ok_or("no event")?;
            let look = Txn::new().and_then([TxnOp::get(self.key.as_str(), None)]);
            self.second.txn(look).await?;
            Done::Ok(start.elapsed())
        };
        let (released, took) =
            tokio::join!(self.first.txn(delete(&self.key, self.revision)), woken);
        released?;
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_their_labels() {
        let metrics = "# HELP calls x\ncalls{m=\"Txn\"} 3\ncalls{m=\"Range\"} 4\ncalls{m=\"No\"} 5\ncalls_b 7\nsize 1.5e+3\n";
        assert!((counted(metrics, "calls", &["Txn", "Range"]) - 7.0).abs() < 1e-9);
        assert!((counted(metrics, "size", &[]) - 1500.0).abs() < 1e-9);
    }
}
