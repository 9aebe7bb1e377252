//! A client that makes one mistake in what it asks for, in what it shows to operators, or in what it
//! prints.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, ErrorKind, Finding, HolderInfo, HolderMark,
    LockAdmin, LockBackend, LockInfo, LockKey, OwnerId, Released, Result, Seen, Victim,
};

use super::PASSWORD;
use super::backend::narrow;
use super::bug::Bug;
use super::place::WrongPlace;
use super::side::{Side, admin_of, show_the_ttl};

/// The layer around a correct client, or one that makes another mistake.
pub(super) struct WrongView {
    bug: Bug,
    right: Arc<dyn LockBackend>,
    side: Arc<Side>,
    is_closed: AtomicBool,
}

impl fmt::Debug for WrongView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WrongView");
        shown.field("right", &self.right);
        if self.bug == Bug::PasswordInDebug {
            shown.field("url", &format_args!("memory://user:{PASSWORD}@host"));
        }
        shown.finish_non_exhaustive()
    }
}

impl WrongView {
    pub(super) fn new(bug: Bug, right: Arc<dyn LockBackend>, side: Arc<Side>) -> Self {
        Self { bug, right, side, is_closed: AtomicBool::new(false) }
    }

    fn key(&self, key: &LockKey) -> Result<LockKey> {
        if self.bug != Bug::NamesHashed {
            return Ok(key.clone());
        }
        let mut hash = DefaultHasher::new();
        key.name().hash(&mut hash);
        LockKey::new(key.prefix(), format!("lock {:04x}", hash.finish() % 0x1_0000))
    }

    /// The holder, as it is wrongly shown.
    fn shown(&self, key: &LockKey, mut holder: HolderInfo) -> HolderInfo {
        match self.bug {
            Bug::MarkOfTheLock => holder.mark = HolderMark::new(key.encode()),
            Bug::LabelStays => holder.label = self.side.first_label(holder.label),
            Bug::FenceOfTheNext => {
                holder.fence = holder.fence.and_then(|fence| (fence.get() + 1).try_into().ok());
            }
            Bug::TtlIsShown => {
                show_the_ttl(&mut holder);
            }
            Bug::LabelInSmallLetters => {
                holder.label = holder.label.map(|label| label.to_lowercase());
            }
            Bug::LabelTrimmed => {
                holder.label = holder.label.map(|label| label.trim().to_owned());
            }
            Bug::LabelsEndAtWide => {
                holder.label = holder.label.map(|label| narrow(&label).to_owned());
            }
            Bug::HandedIsHidden => {
                holder.owner = holder.owner.filter(|owner| self.side.before(*owner).is_none());
            }
            Bug::HandedLabelIsOld | Bug::HandedFenceIsOld => {
                if let Some(before) = holder.owner.and_then(|owner| self.side.before(owner)) {
                    match self.bug {
                        Bug::HandedLabelIsOld => holder.label = before.label,
                        _ => holder.fence = before.fence,
                    }
                }
            }
            Bug::AgeStandsStill => {
                holder.held_for = holder.held_for.map(|age| age.min(Duration::from_secs(3)));
            }
            Bug::HeldSinceTheFirst => holder.held_for = Some(self.side.since_first_look()),
            _ => {}
        }
        holder
    }

    /// What is wrong in a list only.
    fn listed(&self, mut info: LockInfo) -> LockInfo {
        match (self.bug, &mut info.holder) {
            (Bug::ListCountsNobody, Some(_)) => info.waiters = info.waiters.and(Some(0)),
            (Bug::ListShowsTheTtl, Some(holder)) => {
                show_the_ttl(holder);
            }
            _ => {}
        }
        info
    }

    fn info(&self, mut info: LockInfo) -> LockInfo {
        info.holder = info.holder.map(|holder| self.shown(&info.key, holder));
        if self.bug == Bug::DeadAreCounted && info.waiters.is_some() {
            info.waiters = Some(self.side.waiters(&info.key));
        }
        let owner = info.holder.as_ref().and_then(|holder| holder.owner);
        if self.bug == Bug::HandedIsCounted
            && owner.is_some_and(|owner| self.side.before(owner).is_some())
        {
            info.waiters = info.waiters.map(|waiters| waiters + 1);
        }
        info
    }
}

#[async_trait]
impl LockBackend for WrongView {
    fn name(&self) -> &'static str {
        self.right.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.right.capabilities()
    }

    fn claim(&self, mut request: ClaimRequest) -> Result<Box<dyn Claim>> {
        if self.bug == Bug::PasswordWhenClosed && self.is_closed.load(Ordering::Relaxed) {
            let text = format!("memory://user:{PASSWORD}@host is closed");
            return Err(Error::new(ErrorKind::Closed, text));
        }
        let asked = request.clone();
        request.key = self.key(&request.key)?;
        request.ttl = kept(self.bug, request.ttl)?;
        if self.bug == Bug::OwnersCut {
            request.owner = cut(request.owner);
        }
        Ok(Box::new(WrongPlace::new(
            self.bug,
            Arc::clone(&self.right),
            Arc::clone(&self.side),
            asked,
            request,
        )?))
    }

    async fn ping(&self) -> Result<()> {
        let pinged = tokio::time::timeout(Duration::from_millis(100), self.right.ping());
        match self.bug {
            Bug::PasswordInErrors => pinged.await.unwrap_or_else(|_| {
                let text = format!("memory://user:{PASSWORD}@host does not answer");
                Err(Error::new(ErrorKind::NoAnswer, text))
            }),
            _ => self.right.ping().await,
        }
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.right.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.right.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.right.admin().is_some().then_some(self as &dyn LockAdmin)
    }
}

/// How long the wrong store keeps a lease.
fn kept(bug: Bug, ttl: Duration) -> Result<Duration> {
    const SECOND: Duration = Duration::from_secs(1);
    let whole = Duration::from_secs(ttl.as_secs());
    Ok(match bug {
        Bug::TtlCut if whole >= SECOND => whole,
        Bug::TtlRoundedUp if whole < ttl => whole + SECOND,
        Bug::ShortTtlRaised => ttl.max(SECOND),
        Bug::LongTtlWraps => {
            Duration::from_millis(u64::try_from(ttl.as_millis() % (1 << 32)).unwrap_or(0))
        }
        Bug::LimitNotDeclared if ttl > SECOND * 3600 => {
            return Err(Error::invalid("a lease of more than an hour is too long"));
        }
        _ => ttl,
    })
}

/// Without its last byte.
fn cut(owner: OwnerId) -> OwnerId {
    let mut bytes = *owner.as_bytes();
    bytes[15] = 0;
    OwnerId::from_bytes(bytes)
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockAdmin for WrongView {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let found = match self.bug {
            Bug::LongNamesAreNotShown if key.name().len() > 255 => None,
            Bug::InspectByPrefix => {
                admin_of(&*self.right)?.list(key.prefix(), key.name()).await?.into_iter().next()
            }
            _ => admin_of(&*self.right)?.inspect(&self.key(key)?).await?,
        };
        let renamed = |info: LockInfo| LockInfo::new(key.clone(), info.holder, info.waiters);
        Ok(found.map(|info| self.info(renamed(info))))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let mut list = admin_of(&*self.right)?.list(prefix, name_start).await?;
        if self.bug == Bug::ListCut {
            list.truncate(100);
        }
        if self.bug == Bug::LaterPagesOfAll && list.len() > 100 {
            list.truncate(100);
            let last = list.last().map(|info| info.key.clone());
            let next = self.side.taken().into_iter().filter(|key| Some(key) > last.as_ref());
            list.extend(next.map(|key| LockInfo::new(key, None, None)));
        }
        if self.bug == Bug::EndedAreListed {
            let known: Vec<_> = list.iter().map(|info| info.key.clone()).collect();
            let ended = self.side.taken().into_iter().filter(|key| !known.contains(key));
            list.extend(ended.map(|key| LockInfo::new(key, None, None)));
        }
        Ok(list.into_iter().map(|info| self.listed(self.info(info))).collect())
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        if self.bug != Bug::ForceByPrefix {
            return admin_of(&*self.right)?.force_release(&self.key(key)?, victim).await;
        }
        let mut freed = Released::AlreadyGone;
        for info in admin_of(&*self.right)?.list(key.prefix(), key.name()).await? {
            if admin_of(&*self.right)?.force_release(&info.key, victim).await? == Released::Freed {
                freed = Released::Freed;
            }
        }
        Ok(freed)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let mut findings = admin_of(&*self.right)?.diagnose().await?;
        if self.bug == Bug::PasswordInFindings {
            let text = format!("the server is memory://user:{PASSWORD}@host");
            findings.push(Finding::info(text));
        }
        Ok(findings)
    }

    async fn recover(&self) -> Result<()> {
        admin_of(&*self.right)?.recover().await
    }
}
