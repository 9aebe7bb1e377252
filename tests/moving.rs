//! An application moves from store to store by changing only the URL, and its protected data stays
//! usable: the fences of each store are above those of the one before.

#![cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "redlock",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql"
))]

use std::time::Duration;

use distlock::capabilities::Capabilities;
use distlock::{FenceCheck, FencingToken, Result};
use lock_testkit::servers::{EtcdCluster, MariaDbServer, PostgresServer, RedisServer, ZooKeeper};

/// Two saves under the lock, each by a different holder; returns the fence of the second.
async fn save_twice(url: &str, row: &mut FenceCheck) -> Result<FencingToken> {
    let locks = distlock::connect(url).await?;
    the_guide_knows(locks.backend_name(), locks.capabilities());
    for _ in 0..2 {
        let guard = locks.named("order:42")?.acquire().await?;
        row.admit(guard.token()?)?;
        guard.release().await?;
    }
    locks.close(Duration::from_secs(5)).await?;
    Ok(row.highest().expect("a fence was admitted"))
}

/// The limits of a store are those in the guide, where its servers do not decide.
fn the_guide_knows(store: &str, can: &Capabilities) {
    let page = include_str!("../docs/guide/stores.md");
    let begins = format!("| {store} |");
    let row = page.lines().find(|line| line.starts_with(&begins)).expect(store);
    let [least, most, detachable] =
        [2, 3, 4].map(|cell| row.split('|').nth(cell).expect(row).trim());
    let shown = format!("{:?}", can.min_ttl);
    assert!([&*shown, "the servers'"].contains(&least), "{row}: {can:?}");
    let year = Duration::from_secs(366 * 86_400);
    let longest =
        can.max_ttl.filter(|ttl| *ttl < year).map_or("–".to_owned(), |ttl| format!("{ttl:?}"));
    assert!([&*longest, "the servers'"].contains(&most), "{row}: {can:?}");
    assert_eq!(detachable.starts_with("yes"), can.detachable, "{row}: {can:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_row_moves_through_all_stores_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = async {
        let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let node = RedisServer::builder().start().await.unwrap();
            hosts.push(node.url().trim_start_matches("redis://").to_owned());
            nodes.push(node);
        }
        (nodes, format!("redlock://{}?lock_bootstrap=now", hosts.join(",")))
    };
    let (redis, (_nodes, redlock), etcd, zookeeper, postgres, mariadb) = tokio::join!(
        RedisServer::start(),
        nodes,
        EtcdCluster::start(),
        ZooKeeper::start(),
        PostgresServer::start(),
        MariaDbServer::start(),
    );
    let (redis, etcd, zookeeper) = (redis.unwrap(), etcd.unwrap(), zookeeper.unwrap());
    let (postgres, mariadb) = (postgres.unwrap(), mariadb.unwrap());
    let there = [
        format!("sqlite://{}/locks.db", folder.path().display()),
        redis.url().to_owned(),
        redlock,
        etcd.url().to_owned(),
        zookeeper.url().to_owned(),
        postgres.url().to_owned(),
        mariadb.url().to_owned(),
    ];
    let mut back: Vec<_> = there.iter().rev().skip(1).cloned().collect();
    // Its base is set once, so the page says that moving back takes a new root.
    let again = back.iter_mut().find(|url| url.starts_with("zookeeper://")).unwrap();
    again.push_str("/again");

    let (mut row, mut refused, mut before) = (FenceCheck::default(), Vec::new(), None);
    for url in there.iter().chain(&back) {
        match save_twice(url, &mut row).await {
            Ok(fence) => {
                println!("{fence} on {url}");
                if let Some(before) = before {
                    row.admit(before).expect_err("a late save by a holder on the previous store");
                }
                before = Some(fence);
            }
            Err(error) => refused.push(format!("{url}: {error}")),
        }
        // The clocks of this machine agree, so a move takes longer than they differ.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(refused.is_empty(), "the row could not be saved:\n{}", refused.join("\n"));
}
