//! Scenarios that several stores run.

use std::time::Duration;

use lock_core::{Attempt, Claim, Renewal};

/// Batched renewals survive when the runtime on which one was requested ends or is no longer
/// driven.
///
/// `claim` makes a contender of one client for the lock with the given name, with a long ttl.
///
/// # Panics
///
/// If a renewal is stuck, or fails.
pub async fn renewals_survive_the_end_and_the_standstill_of_another_runtime(
    claim: impl Fn(&str) -> Box<dyn Claim>,
) {
    let mut here = granted(claim("here")).await;
    for (name, ends) in [("ends", true), ("stands", false)] {
        let mut there = granted(claim(name)).await;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let standing = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    answer = there.renew() => panic!("sooner than it is sent: {answer:?}"),
                    () = std::future::ready(()) => {}
                }
            });
            (!ends).then_some(runtime)
        })
        .join()
        .expect("the other runtime asks");
        for _ in 0..2 {
            let renewal = tokio::time::timeout(Duration::from_secs(10), here.renew()).await;
            let renewal = renewal.expect("the renewals are not stuck").expect("an answer");
            assert!(matches!(renewal, Renewal::Alive { .. }), "{renewal:?}");
        }
        if let Some(standing) = standing {
            standing.shutdown_background();
        }
    }
}

async fn granted(mut claim: Box<dyn Claim>) -> Box<dyn Claim> {
    let attempt = claim.try_acquire().await;
    assert!(matches!(attempt, Ok(Attempt::Granted { .. })), "not granted: {attempt:?}");
    claim
}
