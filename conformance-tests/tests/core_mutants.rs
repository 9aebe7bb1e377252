//! Mutation tests of the core: mistakes in passing a hold on, and the case that fails for each.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-mutants cargo test -p conformance-tests --test core_mutants`

#[cfg(not(distlock_mutants))]
fn main() -> std::process::ExitCode {
    conformance_tests::mutation::not_built()
}

#[cfg(distlock_mutants)]
fn main() -> std::process::ExitCode {
    wrong::main()
}

#[cfg(distlock_mutants)]
mod wrong {
    use std::process::ExitCode;
    use std::time::Duration;

    use conformance_tests::{MemoryHarness, mutation};
    use lock_core::mutants::MUTANTS;
    use lock_core::testing::{ManualClock, MemoryBackend};
    use lock_core::{Locks, Result};

    const SCENE: &str = "the_rest_of_a_hold_is_not_passed_on";

    pub(crate) fn main() -> ExitCode {
        let suite = || conformance_tests::main(MemoryHarness::queued());
        mutation::main(MUTANTS.iter().copied(), suite, play)
    }

    fn play(name: &str) -> Result<(), String> {
        assert_eq!(name, SCENE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime
            .expect("a runtime")
            .block_on(the_rest_of_a_hold())
            .map_err(|error| format!("what was left of a hold was passed on: {error}"))
    }

    /// A process that was paused gives its lock up just before the end of its lease, before anybody
    /// has noticed.
    async fn the_rest_of_a_hold() -> Result<()> {
        let clock = ManualClock::default();
        let store = MemoryBackend::queued().with_clock(clock.clone());
        let locks = Locks::builder(store).clock(clock.clone()).build()?;
        let lock = locks.named("lock")?.ttl(Duration::from_millis(30)).no_renew().cohort(8);
        let holder = lock.acquire().await?;
        let first = holder.token()?.get();
        let next = tokio::spawn(async move { lock.acquire().await });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_millis(26));
        drop(holder);
        // What was passed on would be lost at once.
        let guard = next.await.expect("a task of this scene")?;
        assert!(guard.token()?.get() > first + 7);
        Ok(())
    }
}
