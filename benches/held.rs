//! The memory that a held lock costs: the growth of the resident set with 10 000 locks held on the
//! memory store, the store's own entry included, divided by their number.

use std::time::Duration;

use distlock::Locks;
use distlock::testing::MemoryBackend;
use lock_testkit::measure::{Done, hold, resident, run};

const LOCKS: u32 = 10_000;

fn main() -> Done {
    run(async {
        let locks = Locks::new(MemoryBackend::queued());
        // What is allocated once is not a cost of a lock.
        drop(locks.named("warm-up")?.acquire().await?);
        let before = resident()?;
        let guards = hold(&locks, LOCKS).await?;
        let each = (resident()? - before) / f64::from(LOCKS);
        println!("  bytes per lock          {each:>8.0} (goal: at most 4096)");
        for guard in guards {
            guard.release().await?;
        }
        locks.close(Duration::from_secs(10)).await?;
        Ok(())
    })
}
