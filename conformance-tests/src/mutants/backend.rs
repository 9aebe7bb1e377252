//! A backend that makes one mistake, around a correct one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, Finding, HolderMark, LockAdmin, LockBackend,
    LockInfo, LockKey, OwnerId, Released, Result, Seen, Victim,
};

use super::bug::Bug;
use super::claim::{FOR_EVER, WrongClaim};
use super::side::{Side, admin_of, written};

#[derive(Debug)]
pub(super) struct WrongBackend {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    client: u64,
}

impl WrongBackend {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        let client = side.next_client();
        Self { bug, right, side, client }
    }

    /// The key that the wrong store uses.
    fn key(&self, key: &LockKey) -> Result<LockKey> {
        let (prefix, name) = (key.prefix(), key.name());
        match self.bug {
            Bug::NamesFolded => LockKey::new(prefix, name.to_lowercase()),
            Bug::NamesTrimmed if !name.trim_end().is_empty() => {
                LockKey::new(prefix, name.trim_end())
            }
            Bug::PrefixGlued => {
                LockKey::new("", format!("{prefix}{name}").chars().take(120).collect::<String>())
            }
            Bug::PrefixesShortened => {
                LockKey::new(prefix.chars().take(64).collect::<String>(), name)
            }
            Bug::NamesEndAtWide if !narrow(name).is_empty() => LockKey::new(prefix, narrow(name)),
            Bug::PrefixesDotted => LockKey::new(prefix.replace('.', "/"), name),
            Bug::NamesEscapedOnce => LockKey::new(prefix, name.replacen('/', "%2F", 1)),
            Bug::NamesShortened => LockKey::new(prefix, name.chars().take(100).collect::<String>()),
            _ => Ok(key.clone()),
        }
    }

    /// Trusts what it should not in a lease token. Returns whether its data is known to be damaged.
    fn resume(&self, request: &mut ClaimRequest) -> Result<bool> {
        let Some(resume) = &mut request.resume else { return Ok(false) };
        let mut damaged = false;
        match self.bug {
            Bug::ResumeIgnoresFence => request.resume = None,
            Bug::ResumeBelievesTtl => {
                let data = std::mem::take(&mut resume.data);
                request.ttl = Duration::from_secs(u64::from_be_bytes(whole(&data)?));
            }
            Bug::ResumeBelievesData => {
                (request.key, request.owner) = read(&resume.data)?;
                request.resume = None;
            }
            Bug::DamagedDataRelease => {
                damaged = resume.data != written(&request.key, &request.owner);
                request.resume = None;
            }
            _ => {}
        }
        Ok(damaged)
    }
}

/// What is left of a text whose first character of four bytes ends it.
pub(super) fn narrow(text: &str) -> &str {
    let wide = text.char_indices().find(|(_, char)| char.len_utf8() == 4);
    wide.map_or(text, |(at, _)| &text[..at])
}

fn read(data: &[u8]) -> Result<(LockKey, OwnerId)> {
    let (owner, key) = data.split_first_chunk().ok_or_else(is_damaged)?;
    let key = std::str::from_utf8(key).map_err(|_| is_damaged())?;
    Ok((LockKey::decode(key)?, OwnerId::from_bytes(*owner)))
}

fn whole<const N: usize>(data: &[u8]) -> Result<[u8; N]> {
    data.try_into().map_err(|_| is_damaged())
}

fn is_damaged() -> Error {
    Error::invalid("this lease token is damaged")
}

#[async_trait]
impl LockBackend for WrongBackend {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = self.right.capabilities();
        match self.bug {
            Bug::FairnessClaimed => can.fair = true,
            Bug::LossNotDeclared => can.loses_data_on = &[],
            _ => {}
        }
        can
    }

    fn claim(&self, mut request: ClaimRequest) -> Result<Box<dyn Claim>> {
        request.key = self.key(&request.key)?;
        match self.bug {
            Bug::SharedOwner => request.owner = OwnerId::from_bytes([1; 16]),
            Bug::PlaceLeftBehind => request.wait = true,
            Bug::BlockOfOne => request.fences = 1,
            Bug::NoLimit => request.call_timeout = FOR_EVER,
            Bug::HiddenCall => {
                let mut early = self.right.claim(request.clone())?;
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { early.try_acquire().await });
                }
            }
            Bug::ResumeIsRefused if request.resume.is_some() => {
                return Err(Error::unsupported("this store takes no lease token"));
            }
            _ => {}
        }
        if request.wait {
            self.side.waits(&request);
        }
        let damaged = self.resume(&mut request)?;
        Ok(Box::new(WrongClaim {
            bug: self.bug,
            store: Arc::clone(&self.right),
            side: Arc::clone(&self.side),
            client: self.client,
            right: self.right.claim(request.clone())?,
            request,
            granted: None,
            failed: false,
            pushed: false,
            drawn: None,
            released: false,
            damaged,
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.right.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.right.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for WrongBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let found = match admin_of(&*self.right)?.inspect(&self.key(key)?).await {
            Err(_) if self.bug == Bug::NoAnswerIsFree => None,
            answer => answer?,
        };
        Ok(found.map(|info| LockInfo::new(key.clone(), info.holder, info.waiters)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        admin_of(&*self.right)?.list(prefix, name_start).await
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let (below, key) = (admin_of(&*self.right)?, self.key(key)?);
        let waiting = self.side.waiting(&key);
        let is_a_waiter =
            || waiting.iter().any(|waiter| victim.is(&HolderMark::from(waiter.owner)));
        let victim = match self.bug {
            Bug::ForceIgnoresOwner => &Victim::Anybody,
            Bug::ForceInSteps => {
                let holder = below.inspect(&key).await?.and_then(|info| info.holder);
                if !holder.is_some_and(|holder| victim.is(&holder.mark)) {
                    return Ok(Released::AlreadyGone);
                }
                &Victim::Anybody
            }
            Bug::ForceBelievesWaiters if is_a_waiter() => &Victim::Anybody,
            _ => victim,
        };
        match self.bug {
            Bug::ForceClearsQueue => {
                for request in waiting {
                    self.right.claim(request)?.release().await?;
                }
            }
            Bug::ForceLetsPast | Bug::ForcedHandOverWithoutTtl => self.side.forced(&key, None),
            Bug::ForceKeepsFence if !waiting.is_empty() => {
                let holder = below.inspect(&key).await?.and_then(|info| info.holder);
                self.side.forced(&key, holder.and_then(|holder| holder.fence));
            }
            Bug::ForcePushesNobody => self.side.silence(&key),
            _ => {}
        }
        below.force_release(&key, victim).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        admin_of(&*self.right)?.diagnose().await
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}
