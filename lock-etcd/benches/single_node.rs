//! What a lock in etcd costs, in raw transactions of the same run.
//!
//! `cargo bench -p lock-etcd --bench single_node` starts its own servers and prints figures.

#[path = "../src/driver.rs"]
#[allow(dead_code, reason = "a raw client needs a part of it")]
mod driver;
#[path = "../src/proto.rs"]
#[allow(dead_code, reason = "a raw client needs a part of it")]
mod proto;

use std::error::Error;
use std::time::Duration;

use lock_core::Locks;
use lock_testkit::measure::{Done, TTL, claim, granted, hand_over, p50, ratio, run};
use lock_testkit::servers::EtcdCluster;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use tonic::Streaming;
use tonic::transport::Channel;

use proto::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, Operation, PutRequest, RangeRequest,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};

const VALUE: &str = "0123456789abcdef0123456789abcdef";

fn main() -> Done {
    run(async {
        for members in [1, 3] {
            println!("etcd with {members} member(s), without fsync where the version can");
            let cluster = EtcdCluster::builder().members(members).start().await?;
            uncontended(&cluster).await?;
            handed_over(&cluster).await?;
        }
        Ok(())
    })
}

/// All clients talk to the same member, which is the leader if there are several.
async fn endpoint(cluster: &EtcdCluster) -> Done<String> {
    let leader = cluster.leader().await?;
    Ok(cluster.address(leader)?.to_string())
}

/// A raw client of the driver.
struct Client(Channel);

impl Client {
    fn new(endpoint: &str) -> Done<Self> {
        Ok(Self(Channel::from_shared(format!("http://{endpoint}"))?.connect_lazy()))
    }

    async fn lease(&self) -> Done<i64> {
        Ok(driver::call(&self.0, None, LeaseGrantRequest { ttl: 3600 }).await?.id)
    }

    async fn txn(&self, txn: TxnRequest) -> Done<TxnResponse> {
        Ok(driver::call(&self.0, None, txn).await?)
    }

    /// As [`txn`](Self::txn); returns the revision.
    async fn put(&self, lease: i64) -> Done<i64> {
        Ok(self.txn(put(lease)).await?.header.ok_or("no header")?.revision)
    }

    /// A watch of one key, ready to tell its deletion.
    async fn watch(&self, from: i64) -> Done<(Sender<WatchRequest>, Streaming<WatchResponse>)> {
        let create =
            WatchCreateRequest { key: "raw".into(), start_revision: from, ..Default::default() };
        let (sender, mut stream) = driver::open(&self.0, None, create.into()).await?;
        stream.message().await?.ok_or("no answer to a watch")?;
        Ok((sender, stream))
    }
}

fn put(lease: i64) -> TxnRequest {
    let put = PutRequest { key: "raw".into(), value: VALUE.into(), lease };
    TxnRequest {
        compare: vec![Compare::create_revision("raw", 0)],
        success: vec![Operation::Put(put).into()],
        failure: vec![get()],
    }
}

fn get() -> proto::RequestOp {
    Operation::Range(RangeRequest { key: "raw".into(), ..Default::default() }).into()
}

fn delete(rev: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare::create_revision("raw", rev)],
        success: vec![Operation::DeleteRange(DeleteRangeRequest { key: "raw".into() }).into()],
        ..Default::default()
    }
}

/// Acquire and release of a free lock, against the two transactions that they cannot do without.
async fn uncontended(cluster: &EtcdCluster) -> Done {
    let endpoint = endpoint(cluster).await?;
    let backend = lock_etcd::connect(&format!("etcd://{endpoint}")).await?;
    let locks = Locks::builder(backend.clone()).default_ttl(TTL).build()?;
    let client = Client::new(&endpoint)?;
    let lease = client.lease().await?;
    let mut samples: [Vec<Duration>; 6] = Default::default();
    for round in 0..4_000_u32 {
        let start = Instant::now();
        let rev = client.put(lease).await?;
        let raw_put = start.elapsed();
        let start = Instant::now();
        client.txn(delete(rev)).await?;
        let raw_delete = start.elapsed();

        let mut claim = claim(&backend, "bench", true)?;
        let start = Instant::now();
        granted(&mut *claim).await?;
        let acquire = start.elapsed();
        let start = Instant::now();
        claim.release().await?;
        let release = start.elapsed();

        let lock = locks.named("bench")?;
        let start = Instant::now();
        let guard = lock.acquire().await?;
        let user_acquire = start.elapsed();
        let start = Instant::now();
        guard.release().await?;
        let user_release = start.elapsed();
        if round >= 1_000 {
            let taken = [raw_put, raw_delete, acquire, release, user_acquire, user_release];
            samples.iter_mut().zip(taken).for_each(|(samples, taken)| samples.push(taken));
        }
    }
    let [raw_put, raw_delete, acquire, release, user_acquire, user_release] = samples.map(p50);
    println!("uncontended, p50 of 3000:");
    println!("  txn: compare, put       {raw_put:>10.1?}");
    println!("  acquire (the backend)   {acquire:>10.1?}   {:.2} x", ratio(acquire, raw_put));
    println!(
        "  acquire (Locks)         {user_acquire:>10.1?}   {:.2} x",
        ratio(user_acquire, raw_put)
    );
    println!("  txn: compare, delete    {raw_delete:>10.1?}");
    println!("  release (the backend)   {release:>10.1?}   {:.2} x", ratio(release, raw_delete));
    println!(
        "  release (Locks)         {user_release:>10.1?}   {:.2} x",
        ratio(user_release, raw_delete)
    );
    Ok(())
}

/// From the call to `release` until the waiter is granted, against a transaction, its watch event,
/// and a transaction.
async fn handed_over(cluster: &EtcdCluster) -> Done {
    let endpoint = endpoint(cluster).await?;
    let url = format!("etcd://{endpoint}");
    let (a, b) = (lock_etcd::connect(&url).await?, lock_etcd::connect(&url).await?);
    let (first, second) = (Client::new(&endpoint)?, Client::new(&endpoint)?);
    let lease = first.lease().await?;
    let (mut floor, mut took) = (Vec::new(), Vec::new());
    for round in 0..1_500_u32 {
        let rev = first.put(lease).await?;
        let (_sender, mut events) = second.watch(rev + 1).await?;
        let start = Instant::now();
        let woken = async {
            events.message().await?.ok_or("no event")?;
            second.txn(TxnRequest { success: vec![get()], ..Default::default() }).await?;
            Ok::<_, Box<dyn Error + Send + Sync>>(start.elapsed())
        };
        let (deleted, raw) = tokio::join!(first.txn(delete(rev)), woken);
        deleted?;
        let raw = raw?;

        let (holder, waiter) = (claim(&a, "hand", false)?, claim(&b, "hand", true)?);
        // The watch of the waiter stands after a moment, as the raw one does.
        let handed_over = hand_over(holder, waiter, Duration::from_millis(2)).await?;
        if round >= 300 {
            floor.push(raw);
            took.push(handed_over);
        }
    }
    let (floor, took) = (p50(floor), p50(took));
    println!("hand-over to the one that waits, p50 of 1200:");
    println!("  txn + event + txn       {floor:>10.1?}");
    println!("  release to grant        {took:>10.1?}   {:.2} x", ratio(took, floor));
    Ok(())
}
