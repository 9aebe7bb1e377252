//! The examples do what they say, on every store of this build, by changing only the URL.

#[path = "../examples/edit_lock.rs"]
mod edit_lock;
#[path = "../examples/tasks.rs"]
mod tasks;

/// Whether a hold can be handed from one process to another.
#[derive(Clone, Copy, PartialEq)]
enum Hold {
    Lease,
    #[cfg(feature = "zookeeper")]
    Session,
}

async fn examples_work(url: &str, hold: Hold) {
    let runs = tasks::run(url).await.expect(url);
    assert_eq!(runs, [1; 20], "{url}");
    let edited = edit_lock::run(url).await;
    if hold == Hold::Lease {
        let (before, after) = edited.expect(url);
        assert!(matches!(before, edit_lock::Answer::Taken(who) if who == "ann"), "{url}");
        assert!(matches!(after, edit_lock::Answer::Yours(_)), "{url}");
    } else {
        let error = edited.expect_err("a hold that is bound to a session stays where it is");
        assert_eq!(error.kind(), distlock::ErrorKind::Unsupported, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_memory() {
    examples_work("memory://examples", Hold::Lease).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    examples_work(&url, Hold::Lease).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let server = lock_testkit::servers::PostgresServer::start().await.unwrap();
    examples_work(server.url(), Hold::Lease).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    let server = lock_testkit::servers::MariaDbServer::start().await.unwrap();
    examples_work(server.url(), Hold::Lease).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = lock_testkit::servers::RedisServer::start().await.unwrap();
    examples_work(server.url(), Hold::Lease).await;
}

#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redlock() {
    let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = lock_testkit::servers::RedisServer::builder().start().await.unwrap();
        hosts.push(node.url().trim_start_matches("redis://").to_owned());
        nodes.push(node);
    }
    let url = format!("redlock://{}?lock_bootstrap=now", hosts.join(","));
    examples_work(&url, Hold::Lease).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let server = lock_testkit::servers::EtcdCluster::start().await.unwrap();
    examples_work(server.url(), Hold::Lease).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let server = lock_testkit::servers::ZooKeeper::start().await.unwrap();
    examples_work(server.url(), Hold::Session).await;
}
