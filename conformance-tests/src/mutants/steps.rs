//! What a wrong claim does in several steps, where the store has one for it.

use lock_core::{Attempt, Released, Renewal, Result};

use super::bug::Bug;
use super::claim::WrongClaim;

impl WrongClaim {
    /// What comes before the true attempt.
    pub(super) async fn before_a_try(&mut self) -> Result<()> {
        match self.bug {
            Bug::FenceDrawnFirst if self.granted.is_none() => {
                self.drawn = Some(self.side.next_of(&self.request.key, 0)?);
                // The answer to the request that has drawn it.
                self.holder().await?;
            }
            Bug::EndSetAnew if self.side.has_ended(&self.request.key) => {
                self.take_from_anybody().await?;
            }
            Bug::ForceLetsPast if !self.request.wait && self.side.was_forced(&self.request.key) => {
                if let Some(chosen) = self.holder().await? {
                    self.right = self.other(|request| request.owner = chosen)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the owner, then prolongs the lock of whoever has it by then.
    pub(super) async fn renew_in_steps(&mut self) -> Result<Renewal> {
        if self.holder().await? != Some(self.request.owner) {
            return Ok(Renewal::Lost);
        }
        let Some(holder) = self.holder().await? else { return Ok(Renewal::Lost) };
        Ok(match self.other(|request| request.owner = holder)?.try_acquire().await? {
            Attempt::Granted { valid_for, .. } => Renewal::Alive { valid_for },
            _ => Renewal::Lost,
        })
    }

    /// Reads the owner a second time, then deletes.
    pub(super) async fn release_in_steps(&mut self) -> Result<Released> {
        for _ in 0..2 {
            if self.holder().await? != Some(self.request.owner) {
                return self.right.release().await;
            }
        }
        self.take_from_anybody().await
    }

    /// From now on nobody is told of this lock, if it was handed to this claim, which does not want
    /// it.
    pub(super) async fn decline_in_silence(&mut self) -> Result<Released> {
        if self.granted.is_none() && self.holder().await? == Some(self.request.owner) {
            self.side.silence(&self.request.key);
        }
        self.right.release().await
    }
}
