//! Queueing together with etcd's own clients: `etcdctl lock`, which uses the `Mutex` of etcd's
//! package `concurrency`, as Go programs do.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_core::{LockAdmin, LockKey, Released, Victim};
use lock_testkit::servers::EtcdCluster;

use crate::common::{backend, busy, claim, granted, keys, locks, one, plain, soon};

const TTL: Duration = Duration::from_secs(30);

/// `etcdctl lock`, which holds from its first line until it is interrupted.
struct Etcdctl {
    child: Child,
    key: std::sync::mpsc::Receiver<String>,
}

impl Etcdctl {
    fn lock(cluster: &EtcdCluster, name: &str) -> Self {
        let mut child = Command::new("etcdctl")
            .args(["--endpoints", &cluster.address(0).unwrap().to_string(), "lock", name])
            .env("ETCDCTL_API", "3")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("etcdctl is there: apt-get install --no-install-recommends etcd-client");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, key) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, key }
    }

    async fn key(&self) -> String {
        soon("etcdctl holds the lock", async {
            loop {
                if let Ok(key) = self.key.try_recv() {
                    return key;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    fn holds(&self) -> bool {
        self.key.try_recv().is_ok()
    }

    /// Interrupts it: it unlocks and ends.
    async fn unlock(mut self) {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().unwrap();
        soon("etcdctl ends", async {
            while self.child.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn queue_of(cluster: &EtcdCluster, name: &str, length: usize) {
    let client = plain(cluster, 0);
    soon("the queue has grown", async {
        while keys(&client, &format!("{name}/")).await.len() < length {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn etcdctl_waits_for_us() {
    let cluster = one().await;
    let locks = locks(&cluster).await;
    let guard = locks.named("order:42").unwrap().ttl(TTL).acquire().await.unwrap();
    let other = Etcdctl::lock(&cluster, "order:42");
    queue_of(&cluster, "order:42", 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!other.holds(), "etcdctl got a lock that we hold");
    guard.release().await.unwrap();
    assert!(other.key().await.starts_with("order:42/"));
    other.unlock().await;
}

#[tokio::test]
async fn we_wait_for_etcdctl() {
    let cluster = one().await;
    let (locks, admin) = (locks(&cluster).await, backend(&cluster).await);
    let other = Etcdctl::lock(&cluster, "order:42");
    let key = other.key().await;
    assert!(locks.named("order:42").unwrap().try_acquire().await.unwrap().is_none());
    let lock = locks.named("order:42").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queue_of(&cluster, "order:42", 2).await;
    let name = LockKey::new("", "order:42").unwrap();
    let info = admin.inspect(&name).await.unwrap().unwrap();
    let holder = info.holder.unwrap();
    assert_eq!((holder.owner, info.waiters), (None, Some(1)));
    assert!(holder.expires_in.is_some() && holder.label.as_ref().unwrap().contains("not distlock"));
    let listed = admin.list("", "order:").await.unwrap();
    assert_eq!(
        listed.iter().map(|info| info.key.clone()).collect::<Vec<_>>(),
        std::slice::from_ref(&name)
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "we got a lock that etcdctl holds at {key}");
    other.unlock().await;
    let guard = soon("we are next", waiting).await.unwrap().unwrap();
    // The hold that was shown has ended: its mark does not release another holder's lock.
    let forced = admin.force_release(&name, &Victim::Shown(holder.mark)).await.unwrap();
    assert_eq!(forced, Released::AlreadyGone);
    guard.release().await.unwrap();
}

/// Two of ours and two of theirs, in turn: each gets the lock in the order of arrival.
#[tokio::test]
async fn ours_and_theirs_are_served_in_order() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let mut first = claim(&backend, "lock", true);
    let mut last_fence = granted(&mut *first).await;
    let second = Etcdctl::lock(&cluster, "lock");
    queue_of(&cluster, "lock", 2).await;
    let mut third = claim(&backend, "lock", true);
    busy(&mut *third).await;
    let fourth = Etcdctl::lock(&cluster, "lock");
    queue_of(&cluster, "lock", 4).await;
    let mut fifth = claim(&backend, "lock", true);
    busy(&mut *fifth).await;

    first.release().await.unwrap();
    second.key().await;
    busy(&mut *third).await;
    assert!(!fourth.holds());
    second.unlock().await;
    soon("the third hears of it", third.changed()).await.unwrap();
    let fence = granted(&mut *third).await;
    lock_testkit::assert_exactly!(fence > last_fence, "{fence} after {last_fence}");
    last_fence = fence;
    busy(&mut *fifth).await;
    third.release().await.unwrap();
    fourth.key().await;
    busy(&mut *fifth).await;
    fourth.unlock().await;
    soon("the fifth hears of it", fifth.changed()).await.unwrap();
    assert!(granted(&mut *fifth).await > last_fence);
}

/// With a prefix of the URL the key is `prefix/name/…`, which etcdctl spells out.
#[tokio::test]
async fn a_prefix_is_a_part_of_the_name_over_there() {
    let cluster = one().await;
    let prefixed = lock_etcd::connect(&format!("{}/jobs", cluster.url())).await.unwrap();
    let mut holder = claim(&prefixed, "a", false);
    granted(&mut *holder).await;
    let other = Etcdctl::lock(&cluster, "jobs/a");
    queue_of(&cluster, "jobs/a", 2).await;
    assert!(!other.holds());
    holder.release().await.unwrap();
    other.key().await;
    busy(&mut *claim(&prefixed, "a", false)).await;
    // The same name without the prefix is another lock, and the queue below it belongs to the other
    // lock.
    granted(&mut *claim(&backend(&cluster).await, "jobs", false)).await;
    other.unlock().await;
}
