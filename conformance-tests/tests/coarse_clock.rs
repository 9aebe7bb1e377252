//! The suite on a store whose clock counts whole seconds: a lease ends on the first full second
//! after its ttl. The contract allows this for a store that declares its step, so every case must
//! pass.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::MemoryHarness;
use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, LockAdmin, LockBackend, LockKey,
    Released, Renewal, Result, Seen, async_trait,
};

const STEP: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    conformance_tests::main(
        MemoryHarness::poll_only().wrapped("coarse-clock", |exact| {
            Arc::new(Coarse { exact, clock: TokioClock::default() })
        }),
    )
}

#[derive(Clone, Debug)]
struct Coarse {
    exact: Arc<dyn LockBackend>,
    clock: TokioClock,
}

#[async_trait]
impl LockBackend for Coarse {
    fn name(&self) -> &'static str {
        "coarse"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = self.exact.capabilities();
        (can.min_ttl, can.ttl_step) = (STEP, STEP);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        // Whatever the store refuses is refused here, not by the first call.
        self.exact.claim(request.clone())?;
        Ok(Box::new(CoarseClaim { store: self.clone(), request }))
    }

    async fn ping(&self) -> Result<()> {
        self.exact.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.exact.look(keys).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.exact.admin()
    }
}

#[derive(Debug)]
struct CoarseClaim {
    store: Coarse,
    request: ClaimRequest,
}

impl CoarseClaim {
    /// A claim of this owner whose lease, made or renewed now, ends on a full second.
    fn now(&self) -> Result<Box<dyn Claim>> {
        let now = Duration::from_nanos(self.store.clock.now().as_nanos());
        let end = Duration::from_secs((now + self.request.ttl).as_secs() + 1);
        let mut request = self.request.clone();
        request.ttl = end - now;
        self.store.exact.claim(request)
    }

    /// The promise is the requested ttl.
    fn promised(&self, valid_for: Option<Duration>) -> Option<Duration> {
        valid_for.map(|valid_for| valid_for.min(self.request.ttl))
    }
}

#[async_trait]
impl Claim for CoarseClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        Ok(match self.now()?.try_acquire().await? {
            Attempt::Granted { token, valid_for } => {
                Attempt::Granted { token, valid_for: self.promised(valid_for) }
            }
            busy => busy,
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(match self.now()?.renew().await? {
            Renewal::Alive { valid_for } => Renewal::Alive { valid_for: self.promised(valid_for) },
            lost => lost,
        })
    }

    async fn check(&mut self) -> Result<Renewal> {
        Ok(match self.now()?.check().await? {
            Renewal::Alive { valid_for } => Renewal::Alive { valid_for: self.promised(valid_for) },
            lost => lost,
        })
    }

    async fn release(&mut self) -> Result<Released> {
        self.now()?.release().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.now()?.detach().await
    }
}
