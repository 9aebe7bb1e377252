//! Blocks of fences on a quorum.

use lock_core::{ClaimRequest, FencingToken, LockBackend, Released, Renewal, Resume};

use super::super::{granted, request};
use super::{Seen, TTL, client, start};

/// As many as there are microseconds in ten seconds: nobody gets above them by waiting.
const MANY: u32 = 10_000_000;

/// Each block begins above the last fence of the one before, whoever had that, and whichever two of the
/// three nodes grant it.
pub(crate) async fn no_fence_of_a_block_is_given_again() -> Seen {
    let (masters, links) = start().await;
    let clients = [client(&links).await, client(&links).await];
    let mut last = 0;
    for turn in 0..9 {
        let fences = [MANY, 1, 5][turn % 3];
        let one = turn % 3..turn % 3 + 1;
        masters.each(one.clone(), &["SET", "lock", "foreign"]).await;
        let mut claim = clients[turn % 2].claim(request("lock", TTL).with_fences(fences)).unwrap();
        let first = granted(&mut *claim).await;
        ensure!(first > last, "a block begins with {first}, and {last} was given");
        last = first + u64::from(fences) - 1;
        claim.release().await.unwrap();
        masters.each(one, &["DEL", "lock"]).await;
    }
    Ok(())
}

/// A claim that names another block than the nodes have recorded gets nothing, although it may end with
/// the same fence.
pub(crate) async fn only_its_own_block_is_taken_over() -> Seen {
    let (_masters, links) = start().await;
    let backend = client(&links).await;
    let hold: ClaimRequest = request("lock", TTL).with_fences(5);
    let mut claim = backend.claim(hold.clone()).unwrap();
    let first = granted(&mut *claim).await;
    let data = claim.detach().await.unwrap();
    let resumed = |first: u64, fences| {
        let resume = Resume::new(FencingToken::new(first).unwrap(), data.clone());
        backend.claim(hold.clone().with_fences(fences).with_resume(resume)).unwrap()
    };
    for (first, fences) in [(first - 1, 6), (first + 1, 4), (first + 4, 1), (first, 6)] {
        let renewed = resumed(first, fences).renew().await.unwrap();
        ensure!(renewed == Renewal::Lost, "{fences} from {first} on are renewed: {renewed:?}");
        let released = resumed(first, fences).release().await.unwrap();
        ensure!(released == Released::AlreadyGone, "{fences} from {first} on are released");
    }
    let mut right = resumed(first, 5);
    assert!(matches!(right.renew().await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(right.release().await.unwrap(), Released::Freed);
    Ok(())
}
