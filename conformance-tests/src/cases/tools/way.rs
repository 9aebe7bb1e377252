//! The ways to a hold, for cases about what follows.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, LockBackend};

use crate::cases::tools::after_a_wait;
use crate::cases::tools::detached::Detached;
use crate::context::{Cx, granted};
use crate::runner::check::Check;

/// How a claim comes to have the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    AtOnce,
    AfterAWait,
    ByToken,
}

impl Way {
    /// All that the store has.
    pub(crate) fn all(cx: &Cx) -> &'static [Self] {
        const ALL: [Way; 3] = [Way::AtOnce, Way::AfterAWait, Way::ByToken];
        if cx.capabilities().detachable { &ALL } else { &ALL[..2] }
    }

    /// A claim that has just got "lock" in this way, and has not renewed it.
    pub(crate) async fn held(
        self,
        cx: &Cx,
        backend: &Arc<dyn LockBackend>,
        ttl: Duration,
    ) -> Check<Box<dyn Claim>> {
        let request = cx.request_for("lock", ttl)?;
        match self {
            Self::AtOnce => {
                let mut claim = backend.claim(request)?;
                granted(&mut *claim).await?;
                Ok(claim)
            }
            Self::AfterAWait => Ok(after_a_wait(cx, backend, backend, request).await?.0),
            Self::ByToken => {
                let hold = Detached::take(cx, backend, "lock", ttl).await?;
                Ok(backend.claim(hold.resumed())?)
            }
        }
    }
}
