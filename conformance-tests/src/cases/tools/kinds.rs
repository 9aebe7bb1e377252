//! Holds of all kinds, as one thing.

use std::time::Duration;

use lock_core::kinds::{Leadership, LockSetGuard, Permit, ReadGuard, WriteGuard};
use lock_core::{ClockInstant, FencingToken, Locks, Released, Result, async_trait};

/// A hold of any kind.
#[async_trait]
pub(crate) trait Taken: Send + Sync {
    /// What it has, each with its token; an error once its holder knows that it is lost.
    fn tokens(&self) -> Result<Vec<(String, FencingToken)>>;

    /// Until when its holder believes in it.
    fn valid_until(&self) -> ClockInstant;

    async fn release(self: Box<Self>) -> Result<Released>;
}

/// What a reader has, and what a writer.
pub(crate) const READ: &str = "read";
pub(crate) const WRITE: &str = "write";
/// What a leader has.
pub(crate) const TERM: &str = "term";

macro_rules! taken {
    ($($guard:ident, $it:ident => $part:expr, $token:ident, $release:ident;)+) => {$(
        #[async_trait]
        impl Taken for $guard {
            fn tokens(&self) -> Result<Vec<(String, FencingToken)>> {
                let $it = self;
                Ok(vec![($part.to_string(), self.$token()?)])
            }

            fn valid_until(&self) -> ClockInstant {
                self.held().valid_until()
            }

            async fn release(self: Box<Self>) -> Result<Released> {
                (*self).$release().await
            }
        }
    )+};
}

taken! {
    Permit, permit => permit.slot(), token, release;
    ReadGuard, _read => READ, token, release;
    WriteGuard, _write => WRITE, token, release;
    Leadership, _leader => TERM, term, resign;
}

#[async_trait]
impl Taken for LockSetGuard {
    fn tokens(&self) -> Result<Vec<(String, FencingToken)>> {
        let tokens = self.held().tokens()?;
        Ok(tokens.map(|(key, token)| (key.name().to_owned(), token)).collect())
    }

    fn valid_until(&self) -> ClockInstant {
        self.held().valid_until()
    }

    async fn release(self: Box<Self>) -> Result<Released> {
        (*self).release().await
    }
}

/// What contenders contend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Permits,
    Readers,
    Names,
    Leaders,
}

/// How many permits there are.
pub(crate) const PERMITS: u32 = 3;
/// Of which a contender takes two.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

impl Kind {
    /// Takes one, as a contender of this client does for the `nth` time: of several it takes each in its turn.
    pub(crate) async fn take(
        self,
        locks: &Locks,
        (client, nth): (u32, u64),
        limit: Duration,
    ) -> Result<Box<dyn Taken>> {
        let turn = usize::try_from(nth % 3).unwrap_or(0);
        Ok(match self {
            Self::Permits => {
                Box::new(locks.semaphore("permits", PERMITS)?.acquire_timeout(limit).await?)
            }
            Self::Readers if turn == 0 => {
                Box::new(locks.rw_lock("resource")?.write_timeout(limit).await?)
            }
            Self::Readers => Box::new(locks.rw_lock("resource")?.read_timeout(limit).await?),
            Self::Names => {
                let names = [NAMES[(turn + 1) % 3], NAMES[turn]];
                Box::new(locks.all(names)?.acquire_timeout(limit).await?)
            }
            Self::Leaders => {
                let election = locks.election("leader")?;
                Box::new(election.campaign_timeout(client.to_string(), limit).await?)
            }
        })
    }

    /// What of it must have been held before there is anything to judge.
    pub(crate) fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Permits => &[],
            Self::Readers => &[READ, WRITE],
            Self::Names => &NAMES,
            Self::Leaders => &[TERM],
        }
    }

    /// Takes all that there is, which nobody else may have then.
    pub(crate) async fn take_all(self, locks: &Locks) -> Result<Vec<Box<dyn Taken>>> {
        let mut all: Vec<Box<dyn Taken>> = Vec::new();
        match self {
            Self::Permits => {
                for _ in 0..PERMITS {
                    all.push(Box::new(locks.semaphore("permits", PERMITS)?.acquire().await?));
                }
            }
            Self::Readers => all.push(Box::new(locks.rw_lock("resource")?.write().await?)),
            Self::Names => all.push(Box::new(locks.all(NAMES)?.acquire().await?)),
            Self::Leaders => all.push(Box::new(locks.election("leader")?.campaign("last").await?)),
        }
        Ok(all)
    }
}

/// All of each kind.
pub(crate) const KINDS: [Kind; 4] = [Kind::Permits, Kind::Readers, Kind::Names, Kind::Leaders];
