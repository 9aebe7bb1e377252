//! A database that is full: etcd takes no more keys until somebody makes room.

use lock_core::{Effect, ErrorKind, LockState};
use lock_testkit::servers::EtcdCluster;

use crate::common::{LONG, locks, plain, soon};

/// Every member has room for a few values of this size only.
const VALUE: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_ends_no_hold() {
    let quota = (VALUE * 6).to_string();
    let cluster =
        EtcdCluster::builder().option("quota-backend-bytes", &quota).start().await.unwrap();
    let (a, b) = (locks(&cluster).await, locks(&cluster).await);
    let guard = a.named("held").unwrap().ttl(LONG).acquire().await.unwrap();
    let fence = guard.token().unwrap();

    let other = plain(&cluster, 0);
    let mut values = (0..).map(|at| format!("data{}", at % 2));
    let full = soon("the database is full", async {
        loop {
            let key = values.next().unwrap();
            if let Err(refused) = other.try_put(key, &"x".repeat(VALUE), 0).await {
                return refused;
            }
        }
    });
    let refused = full.await;
    assert!(refused.contains("database space exceeded"), "{refused}");

    guard.renew().await.unwrap();
    guard.check().await.unwrap();
    assert_eq!(guard.state(), LockState::Secure);
    for name in ["held", "another"] {
        let error = b.named(name).unwrap().try_acquire().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::Unavailable, Effect::None),
            "{error:?}"
        );
        assert!(format!("{error:?}").contains("database space exceeded"), "{name}: {error:?}");
    }
    // What takes no room is done.
    guard.release().await.unwrap();

    other.make_room().await;
    let next = b.named("held").unwrap().try_acquire().await.unwrap().expect("it is free");
    lock_testkit::assert_exactly!(next.token().unwrap() > fence, "a fence falls: {next:?}");
    next.release().await.unwrap();
}
