//! Members that have not heard of what the others know.

use std::time::Duration;

use lock_core::{LockBackend, Renewal};

use crate::common::{LONG, granted, keys, must, plain, request, soon, starting_at, three};

/// A member that is cut off still has the key of a lock that others can take by now, and believes in
/// its leader for a second.
pub(crate) async fn a_check_does_not_believe_a_member_that_is_cut_off() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    let member = (leader + 1) % 3;
    let alone = format!("etcd://{}", cluster.address(member).unwrap());
    let a = lock_etcd::connect(&alone).await.unwrap();
    let mut holder = a.claim(request("lock", LONG)).unwrap();
    granted(&mut *holder).await;
    cluster.cut_off(member).unwrap();
    let other = plain(&cluster, leader);
    other.delete(&keys(&other, "lock/").await[0].0).await;
    let answer = holder.check().await;
    must!(!matches!(answer, Ok(Renewal::Alive { .. })), "its key has gone: {answer:?}");
}

/// The other way round: it has not heard of a lock that was just granted.
pub(crate) async fn a_check_loses_nothing_to_a_member_that_is_behind() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    let [first, behind] = [leader, (leader + 1) % 3].map(|at| cluster.address(at).unwrap());
    let url = format!("etcd://{first},{behind}");
    let a = starting_at(&url, &first.to_string()).await;
    // What is needed is there before.
    granted(&mut *a.claim(request("warm", LONG)).unwrap()).await;
    cluster.cut_off((leader + 1) % 3).unwrap();
    let mut holder = a.claim(request("lock", LONG)).unwrap();
    granted(&mut *holder).await;
    cluster.kill(leader).unwrap();
    let answer = holder.check().await;
    must!(!matches!(answer, Ok(Renewal::Lost)), "it holds the lock: {answer:?}");
    cluster.rejoin((leader + 1) % 3).unwrap();
    let answer = soon("a check", async {
        loop {
            if let Ok(answer) = holder.check().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    must!(matches!(answer.await, Renewal::Alive { .. }), "it still holds the lock");
}
