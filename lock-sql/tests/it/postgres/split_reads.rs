//! A proxy that sends plain reads to a standby which is behind, and a pooler whose clients leave a
//! search path behind.

use std::sync::atomic::Ordering::SeqCst;

use lock_core::{LockBackend, Locks, Renewal};

use crate::postgres_common::{TTL, busy, claim, granted, plain, run};
use crate::postgres_scenes::{
    a_clock_that_is_behind, a_cohort_that_is_handed_over, behind_a_splitter, paths_of_others,
    reads_that_are_behind,
};

#[tokio::test]
async fn a_read_of_a_standby_that_is_behind_is_no_loss() {
    reads_that_are_behind().await.unwrap();
}

#[tokio::test]
async fn a_check_by_a_standby_whose_clock_is_behind_promises_nothing() {
    a_clock_that_is_behind().await.unwrap();
}

#[tokio::test]
async fn a_handed_over_cohort_is_alive_also_where_plain_reads_are_behind() {
    a_cohort_that_is_handed_over().await.unwrap();
}

#[tokio::test]
async fn a_search_path_that_another_client_left_leads_to_no_other_table() {
    paths_of_others().await.unwrap();
}

#[tokio::test]
async fn locks_work_where_plain_reads_are_behind() {
    let (primary, _standby, splitter, client) = behind_a_splitter("").await;
    let mut held = claim(&client, "x", TTL, true);
    let fence = granted(&mut *held).await;
    assert!(matches!(held.renew().await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(granted(&mut *held).await, fence);
    busy(&mut *claim(&client, "x", TTL, false)).await;
    let locks = Locks::new(client.clone());
    let guard = locks.named("guarded").unwrap().acquire().await.unwrap();
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    assert!(splitter.reads.load(SeqCst) > 0, "the standby was asked");
    // What is gone on the primary is gone.
    run(&mut plain(&primary).await, "DELETE FROM distlock").await;
    assert_eq!(held.check().await.unwrap(), Renewal::Lost);
    assert_eq!(held.renew().await.unwrap(), Renewal::Lost);
    client.close().await.unwrap();
}
