//! A hold whose lease token is out, for several modules of cases.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Bytes, Claim, ClaimRequest, Error, FencingToken, LockBackend, Renewal, Result, Resume,
};

use crate::context::{Cx, granted};
use crate::runner::check::{Check, Demanded, ensure, fail};

/// A detached hold: what its lease token carries.
pub(crate) struct Detached {
    pub(crate) request: ClaimRequest,
    pub(crate) fence: FencingToken,
    pub(crate) data: Bytes,
}

impl Detached {
    pub(crate) async fn take(
        cx: &Cx,
        backend: &Arc<dyn LockBackend>,
        name: &str,
        ttl: Duration,
    ) -> Check<Self> {
        let request = cx.request_for(name, ttl)?;
        let mut claim = backend.claim(request.clone())?;
        let fence = granted(&mut *claim).await?;
        let data = claim.detach().await?;
        Ok(Self { request, fence, data })
    }

    /// A request as made from a token of this hold.
    pub(crate) fn resumed(&self) -> ClaimRequest {
        self.resumed_with(self.fence, &self.data)
    }

    pub(crate) fn resumed_with(&self, fence: FencingToken, data: &Bytes) -> ClaimRequest {
        self.request.clone().with_resume(Resume::new(fence, data.clone()))
    }

    /// A request of another owner with what a token of this hold carries.
    pub(crate) fn resumed_of(&self, other: ClaimRequest) -> ClaimRequest {
        other.with_resume(Resume::new(self.fence, self.data.clone()))
    }

    /// The true token still renews the hold.
    pub(crate) async fn is_unharmed(&self, backend: &Arc<dyn LockBackend>, after: &str) -> Check {
        let renewed = backend.claim(self.resumed())?.renew().await;
        match renewed.demanded("renewing the true hold")? {
            Renewal::Alive { .. } => Ok(()),
            other => fail!("after {after}, the renewal of the true hold is answered {other:?}"),
        }
    }
}

/// If the answer to an edited token is an error, it must not be retryable.
pub(crate) fn is_final(error: &Error, what: &str) -> Check {
    ensure!(!error.is_retryable(), "{what} is answered with an error to be tried again: {error}");
    Ok(())
}

/// A claim on `request`, or `None` if the backend refused to make it.
pub(crate) fn made(
    backend: &Arc<dyn LockBackend>,
    request: &ClaimRequest,
    what: &str,
) -> Check<Option<Box<dyn Claim>>> {
    match backend.claim(request.clone()) {
        Ok(claim) => Ok(Some(claim)),
        Err(error) => is_final(&error, what).map(|()| None),
    }
}

/// Whether an answer says that the hold exists.
pub(crate) fn is_alive(answer: Result<Renewal>, what: &str) -> Check<bool> {
    match answer {
        Ok(Renewal::Alive { .. }) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => is_final(&error, what).map(|()| false),
    }
}
