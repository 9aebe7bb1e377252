//! Requests that are late.

use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, LockBackend, LockKey, OsRng, OwnerId, Renewal, Resume,
};
use lock_sql::SqlBackend;

/// The ttl of the first holder, and that of the one who takes the hold over.
const TTLS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A hold that was handed to another process, and what the first one may have sent before that.
struct Handed {
    name: &'static str,
    late: Box<dyn Claim>,
}

async fn handed(store: &SqlBackend, name: &'static str) -> Handed {
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = |ttl| ClaimRequest::new(LockKey::new("", name).unwrap(), owner, ttl);
    let mut late = store.claim(request(TTLS.0)).unwrap();
    let Attempt::Granted { token, .. } = late.try_acquire().await.unwrap() else {
        panic!("a new lock is held by another client");
    };
    let data = late.detach().await.unwrap();
    let taker = request(TTLS.1).with_resume(Resume::new(token, data));
    let Renewal::Alive { .. } = store.claim(taker).unwrap().renew().await.unwrap() else {
        panic!("a hold was lost in {:?}", TTLS.0);
    };
    Handed { name, late }
}

/// A try and renewals, one by one and many at a time, that were sent before a hold was handed over and
/// arrive afterwards, end it no sooner than the new holder was promised.
pub(crate) async fn late_requests(url: &str) -> Result<(), String> {
    let store = lock_sql::connect(url).await.unwrap();
    let mut tried = handed(&store, "tried").await;
    tried.late.try_acquire().await.unwrap();
    let mut renewed = handed(&store, "renewed").await;
    renewed.late.renew().await.unwrap();
    // The first goes alone, the others together.
    let (mut a, mut b, mut c) =
        (handed(&store, "a").await, handed(&store, "b").await, handed(&store, "c").await);
    let all = tokio::join!(a.late.renew(), b.late.renew(), c.late.renew());
    assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok(), "{all:?}");
    tokio::time::sleep(TTLS.0 * 5 / 4).await;
    for Handed { name, .. } in [tried, renewed, a, b, c] {
        let owner = OwnerId::generate(&OsRng).unwrap();
        let other = ClaimRequest::new(LockKey::new("", name).unwrap(), owner, TTLS.1);
        if let Attempt::Granted { .. } = store.claim(other).unwrap().try_acquire().await.unwrap() {
            return Err(format!(
                "violated: two holders of {name}: a late request has shortened the lease"
            ));
        }
    }
    Ok(())
}
