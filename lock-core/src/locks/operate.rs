//! What an operator does with a store as a whole.

use std::time::Duration;

use super::locks::Locks;
use crate::{Finding, Operation, Result};

/// It may take several requests to several servers, one of which is silent.
const LIMIT: Duration = Duration::from_secs(15);

impl Locks {
    /// What an operator should know about this store, worst first: versions with known defects,
    /// settings that lose locks, members that do not serve. Changes nothing.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// for finding in locks.diagnose().await? {
    ///     println!("{}: {finding}", finding.severity);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let asked = self.within(LIMIT, Operation::Diagnose, self.admin()?.diagnose()).await;
        asked.map(|mut findings| {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            findings
        })
    }

    /// Lets a store serve again that waits for an operator, such as a Redlock quorum whose nodes
    /// have lost their data, with `lock_recover=manual`. Call it only when it is certain that the
    /// servers that answer are the right ones.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that never waits for an operator;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) while a lock may still be held that the store
    /// has forgotten: the message says when to repeat the call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the recovery may have begun: call this again.
    pub async fn recover(&self) -> Result<()> {
        self.within(LIMIT, Operation::Recover, self.admin()?.recover()).await
    }
}
