//! A claim that makes one mistake.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Attempt, Busy, Bytes, Claim, ClaimRequest, ClockInstant, Effect, Error, ErrorKind,
    FencingToken, LockBackend, OwnerId, Released, Renewal, Result, Victim,
};

use super::bug::Bug;
use super::side::{Side, admin_of, holder_of, release_behind, written};

/// A lease that outlives every test.
pub(super) const FOR_EVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long one that asks all the time pauses.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct WrongClaim {
    pub(super) bug: Bug,
    pub(super) store: Arc<dyn LockBackend>,
    pub(super) side: Arc<Side>,
    pub(super) client: u64,
    pub(super) request: ClaimRequest,
    pub(super) right: Box<dyn Claim>,
    /// What this claim remembers of its own past.
    pub(super) granted: Option<FencingToken>,
    pub(super) failed: bool,
    pub(super) pushed: bool,
    /// A token drawn before the lock was won.
    pub(super) drawn: Option<FencingToken>,
    pub(super) released: bool,
    /// Whether it was resumed with data that cannot be correct.
    pub(super) damaged: bool,
}

impl WrongClaim {
    /// A claim of the true store for another owner or ttl.
    pub(super) fn other(&self, change: impl FnOnce(&mut ClaimRequest)) -> Result<Box<dyn Claim>> {
        let mut request = self.request.clone();
        change(&mut request);
        self.store.claim(request)
    }

    /// Who holds the lock now.
    pub(super) fn holder(&self) -> impl Future<Output = Result<Option<OwnerId>>> + Send + 'static {
        holder_of(Arc::clone(&self.store), self.request.key.clone())
    }

    pub(super) fn take_from_anybody(
        &self,
    ) -> impl Future<Output = Result<Released>> + Send + 'static {
        let (store, key) = (Arc::clone(&self.store), self.request.key.clone());
        async move { admin_of(&*store)?.force_release(&key, &Victim::Anybody).await }
    }

    async fn forget_pushes(&mut self) {
        let _ = tokio::time::timeout(Duration::ZERO, self.right.changed()).await;
    }

    fn since(&self, start: ClockInstant) -> Duration {
        self.side.clock.now().since(start)
    }

    /// The true answer, obtained in a wrong way.
    async fn ask(&mut self) -> Result<Attempt> {
        let ttl = self.request.ttl;
        match self.bug {
            Bug::CheckThenSet => {
                if self.holder().await?.is_some_and(|holder| holder != self.request.owner) {
                    return Ok(Attempt::Busy(Busy::default()));
                }
                self.take_from_anybody().await?;
            }
            Bug::SetThenExpire => {
                let mut endless = self.other(|request| request.ttl = FOR_EVER)?;
                if let busy @ Attempt::Busy { .. } = endless.try_acquire().await? {
                    return Ok(busy);
                }
                // No other request makes the correct store end it sooner.
                endless.release().await?;
            }
            Bug::LosersProlong => {
                let attempt = self.right.try_acquire().await?;
                if let (Attempt::Busy { .. }, Some(holder)) = (&attempt, self.holder().await?) {
                    self.other(|request| request.owner = holder)?.renew().await?;
                }
                return Ok(attempt);
            }
            Bug::SecondEntry if self.failed => {
                self.right = self.other(|request| request.owner = self.side.another_owner())?;
            }
            Bug::RepeatIsBusy if self.granted.is_some() => {
                let mut stranger =
                    self.other(|request| request.owner = self.side.another_owner())?;
                return stranger.try_acquire().await;
            }
            Bug::PushBelieved if self.pushed => {
                let token = self.side.next_of(&self.request.key, 1_000_000)?;
                return Ok(Attempt::Granted { token, valid_for: Some(ttl) });
            }
            Bug::NeverExpires | Bug::ExpiresLate => {
                let lasts = if self.bug == Bug::ExpiresLate { ttl * 2 } else { FOR_EVER };
                self.right = self.other(|request| request.ttl = lasts)?;
            }
            Bug::RepeatLastsLonger if self.granted.is_some() => {
                self.right = self.other(|request| request.ttl = ttl * 2)?;
            }
            Bug::HandOverLastsLonger if self.request.wait => {
                let attempt = self.right.try_acquire().await?;
                if !matches!(attempt, Attempt::Granted { .. }) {
                    return Ok(attempt);
                }
                self.right = self.other(|request| request.ttl = ttl * 2)?;
            }
            Bug::ExpiresEarly => {
                self.right = self.other(|request| request.ttl = ttl / 2)?;
            }
            Bug::DeadWaitersStay | Bug::HandOverWithoutTtl | Bug::ForcedHandOverWithoutTtl => {
                let attempt = self.right.try_acquire().await?;
                if self.bug == Bug::ForcedHandOverWithoutTtl
                    && matches!(attempt, Attempt::Granted { .. })
                    && !self.side.was_forced(&self.request.key)
                {
                    self.right = self.other(|request| request.ttl = ttl)?;
                    self.right.renew().await?;
                }
                if self.request.wait && matches!(attempt, Attempt::Busy { .. }) {
                    let stays = if self.bug == Bug::DeadWaitersStay { FOR_EVER } else { ttl / 4 };
                    // The place is recreated: the entry in the true store keeps its first ttl.
                    self.right.release().await?;
                    self.right = self.other(|request| request.ttl = stays)?;
                    return self.right.try_acquire().await;
                }
                return Ok(attempt);
            }
            _ => self.before_a_try().await?,
        }
        self.right.try_acquire().await
    }

    /// The wrong token for a true grant.
    fn wrong_token(&self, token: FencingToken) -> Result<FencingToken> {
        match self.bug {
            Bug::FenceRestarts => match self.granted {
                Some(before) => Ok(before),
                None => self.side.next_of(&self.request.key, 0),
            },
            Bug::FenceRisesOnRepeat => self.side.next_of(&self.request.key, 0),
            Bug::FenceFromClock => FencingToken::new(self.side.clock.now().as_nanos() / 1_000_000),
            Bug::FencePerClient => match self.granted {
                Some(before) => Ok(before),
                None => self.side.next_of_client(self.client),
            },
            Bug::FenceOf32Bits => FencingToken::new((token.get() % (1 << 32)).max(1)),
            Bug::FenceDrawnFirst => Ok(self.drawn.unwrap_or(token)),
            Bug::TokenRemembered => Ok(self.granted.unwrap_or(token)),
            Bug::ForceKeepsFence => Ok(self.side.kept_fence(&self.request.key).unwrap_or(token)),
            _ => Ok(token),
        }
    }
}

/// What it does in several steps, where the store has one for it.
impl WrongClaim {
    /// What comes before the true attempt.
    async fn before_a_try(&mut self) -> Result<()> {
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
    async fn renew_in_steps(&mut self) -> Result<Renewal> {
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
    async fn release_in_steps(&mut self) -> Result<Released> {
        for _ in 0..2 {
            if self.holder().await? != Some(self.request.owner) {
                return self.right.release().await;
            }
        }
        self.take_from_anybody().await
    }

    /// From now on nobody is told of this lock, if it was handed to this claim, which does not want
    /// it.
    async fn decline_in_silence(&mut self) -> Result<Released> {
        if self.granted.is_none() && self.holder().await? == Some(self.request.owner) {
            self.side.silence(&self.request.key);
        }
        self.right.release().await
    }
}

#[async_trait]
impl Claim for WrongClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let start = self.side.clock.now();
        let answer = self.ask().await;
        match answer {
            Ok(Attempt::Granted { token, valid_for }) => {
                let token = self.wrong_token(token)?;
                self.granted = Some(token);
                self.side.ends_after(&self.request.key, self.request.ttl);
                let valid_for = match self.bug {
                    Bug::ValidityFromReply => valid_for.map(|d| d + self.since(start)),
                    Bug::ExpiresEarly
                    | Bug::HandOverWithoutTtl
                    | Bug::ForcedHandOverWithoutTtl
                    | Bug::NeverExpires
                    | Bug::ExpiresLate => Some(self.request.ttl),
                    Bug::PromisesLittle => valid_for.map(|d| d / 4),
                    _ => valid_for,
                };
                Ok(Attempt::Granted { token, valid_for })
            }
            Ok(Attempt::Busy { .. }) if self.bug == Bug::BusyIsError => {
                Err(Error::new(ErrorKind::Store, "the key exists"))
            }
            Ok(Attempt::Busy(mut busy)) => {
                let place = busy.valid_for.map(|_| self.request.ttl);
                match self.bug {
                    Bug::StaleHolder => busy.holder = self.side.first_holder(busy.holder),
                    Bug::HintOfZero => busy.retry_after = Some(Duration::ZERO),
                    Bug::HintOfAnHour => busy.retry_after = Some(Duration::from_secs(3600)),
                    _ => {}
                }
                Ok(Attempt::Busy(busy.with_place(place)))
            }
            // No other answer exists yet; it would be passed on unchanged.
            Ok(other) => Ok(other),
            Err(error) => {
                self.failed |= error.effect() == Effect::Unknown;
                match self.bug {
                    Bug::ErrorIsBusy => Ok(Attempt::Busy(Busy::default())),
                    Bug::RefusedIsGone if is_down(&error) => Ok(Attempt::Busy(Busy::default())),
                    _ => Err(error),
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let ttl = self.request.ttl;
        let start = self.side.clock.now();
        match self.bug {
            Bug::RenewalThatLies => return Ok(Renewal::Alive { valid_for: Some(ttl) }),
            Bug::RenewWithoutCompare => {
                let Some(holder) = self.holder().await? else { return Ok(Renewal::Lost) };
                return self.other(|request| request.owner = holder)?.renew().await;
            }
            Bug::DamagedDataRelease if self.damaged => return Ok(Renewal::Lost),
            Bug::ReadsThenRenews => return self.renew_in_steps().await,
            Bug::RenewsByAsking => {
                for _ in 0..50 {
                    self.right.check().await?;
                }
            }
            _ => {}
        }
        match self.right.renew().await {
            Ok(Renewal::Lost) if self.bug == Bug::RenewRecreates => {
                Ok(match self.right.try_acquire().await? {
                    Attempt::Granted { valid_for, .. } => Renewal::Alive { valid_for },
                    _ => Renewal::Lost,
                })
            }
            Ok(Renewal::Alive { valid_for }) => {
                self.side.ends_after(&self.request.key, ttl);
                Ok(Renewal::Alive {
                    valid_for: match self.bug {
                        Bug::ValidityFromReply => valid_for.map(|d| d + self.since(start)),
                        Bug::ExpiresEarly
                        | Bug::HandOverWithoutTtl
                        | Bug::ForcedHandOverWithoutTtl => Some(ttl),
                        _ => valid_for.map(|d| d.min(ttl)),
                    },
                })
            }
            Ok(Renewal::Lost) if self.bug == Bug::LostIsAlive => {
                Ok(Renewal::Alive { valid_for: Some(ttl) })
            }
            Err(_) if self.bug == Bug::ErrorIsLost => Ok(Renewal::Lost),
            Err(_) if self.bug == Bug::ErrorIsAlive => Ok(Renewal::Alive { valid_for: Some(ttl) }),
            Err(error) if self.bug == Bug::RefusedIsGone && is_down(&error) => Ok(Renewal::Lost),
            answer => answer,
        }
    }

    async fn check(&mut self) -> Result<Renewal> {
        let ttl = self.request.ttl;
        match self.bug {
            Bug::CheckWrites => self.right.renew().await,
            Bug::CheckIsLook => {
                self.forget_pushes().await;
                self.right.check().await
            }
            Bug::UnknownIsLost if self.granted.is_none() => Ok(Renewal::Lost),
            Bug::ErrorIsLost => Ok(self.right.check().await.unwrap_or(Renewal::Lost)),
            Bug::LostIsAlive => {
                self.right.check().await?;
                Ok(Renewal::Alive { valid_for: Some(ttl) })
            }
            Bug::ErrorIsAlive => {
                Ok(self.right.check().await.unwrap_or(Renewal::Alive { valid_for: Some(ttl) }))
            }
            _ => match self.right.check().await? {
                Renewal::Alive { valid_for } => {
                    Ok(Renewal::Alive { valid_for: valid_for.map(|d| d.min(ttl)) })
                }
                lost => Ok(lost),
            },
        }
    }

    async fn release(&mut self) -> Result<Released> {
        if self.released && self.bug == Bug::SecondReleaseFails {
            return Err(Error::new(ErrorKind::Store, "the lock is not held"));
        }
        let answer = match self.bug {
            Bug::ReleaseWithoutCompare => self.take_from_anybody().await,
            Bug::ReadThenDelete => {
                if self.holder().await? != Some(self.request.owner) {
                    return Ok(Released::AlreadyGone);
                }
                self.take_from_anybody().await
            }
            Bug::ReleaseWithoutHaving if self.granted.is_none() => self.take_from_anybody().await,
            Bug::ResumeReleasesByOwner => {
                self.other(|request| request.resume = None)?.release().await
            }
            Bug::ReadsThenDeletes => self.release_in_steps().await,
            Bug::DeclinePushesNobody => self.decline_in_silence().await,
            Bug::ReleaseByMemory if self.granted.is_none() => Ok(Released::AlreadyGone),
            _ => self.right.release().await,
        };
        if answer.is_ok() {
            self.released = true;
            if self.bug == Bug::FenceRestarts && self.granted.is_some() {
                self.side.forget(&self.request.key);
            }
        }
        answer
    }

    async fn changed(&mut self) -> Result<()> {
        if self.bug == Bug::PushLost {
            // Listening begins only now: pushes since the look are missed.
            self.forget_pushes().await;
        }
        if self.bug == Bug::ChangeIsASleep {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(());
        }
        while self.bug == Bug::WaitsByAsking {
            if tokio::time::timeout(PAUSE, self.right.changed()).await.is_ok() {
                return Ok(());
            }
            self.right.check().await?;
        }
        self.right.changed().await?;
        if self.side.is_silent(&self.request.key) {
            std::future::pending::<()>().await;
        }
        self.pushed = true;
        Ok(())
    }

    async fn detach(&mut self) -> Result<Bytes> {
        let bytes = self.right.detach().await?;
        match self.bug {
            Bug::DetachReleases => {
                self.right.release().await?;
                Ok(bytes)
            }
            Bug::ResumeBelievesData | Bug::DamagedDataRelease => {
                Ok(written(&self.request.key, &self.request.owner))
            }
            Bug::ResumeBelievesTtl => {
                Ok(Bytes::copy_from_slice(&self.request.ttl.as_secs().to_be_bytes()))
            }
            _ => Ok(bytes),
        }
    }
}

impl Drop for WrongClaim {
    fn drop(&mut self) {
        if self.bug == Bug::DropReleases {
            release_behind(self.other(|_| {}));
        }
    }
}

fn is_down(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
