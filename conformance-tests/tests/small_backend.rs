//! A complete small store: a table in memory with one row for each name. It does not push and it is
//! not fair, so it is about the least that a store can be; an SQL table has the same shape.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use conformance_tests::{Client, Harness, Store, Time, Unavailable};
use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Binding, Busy, Bytes, Capabilities, Claim, ClaimRequest, Clock, ClockInstant,
    FencingToken, LockBackend, LockKey, OwnerId, Released, Renewal, Result, Seen, Wake,
    async_trait,
};

/// The store: what a server would keep.
#[derive(Debug)]
struct Table {
    clock: TokioClock,
    rows: Mutex<HashMap<LockKey, Row>>,
}

/// A row stays when its lock is released, to keep its fence.
#[derive(Clone, Debug)]
struct Row {
    owner: OwnerId,
    label: Option<String>,
    fence: FencingToken,
    /// In the past for a free lock.
    expires: ClockInstant,
}

impl Table {
    /// One atomic step of the store: a statement or a script, if this were a server.
    fn step<T>(&self, act: impl FnOnce(&mut HashMap<LockKey, Row>, ClockInstant) -> T) -> T {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut rows, self.clock.now())
    }
}

/// A client of the store.
#[derive(Debug)]
struct SmallBackend(Arc<Table>);

#[async_trait]
impl LockBackend for SmallBackend {
    fn name(&self) -> &'static str {
        "small"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Poll);
        can.detachable = true;
        can.look = true;
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(SmallClaim { table: Arc::clone(&self.0), request }))
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let shown = |row: Option<&Row>, now| match row {
            Some(row) if row.expires > now => {
                Seen::Held { fence: Some(row.fence), label: row.label.clone() }
            }
            // C18: the next fence will be above the one that the row has kept.
            row => Seen::Free { floor: row.map(|row| row.fence) },
        };
        self.0.step(|rows, now| Ok(keys.iter().map(|key| shown(rows.get(key), now)).collect()))
    }
}

/// One contender. All that it knows about itself is in the request.
#[derive(Debug)]
struct SmallClaim {
    table: Arc<Table>,
    request: ClaimRequest,
}

impl SmallClaim {
    /// Whether a row is this contender's hold. The fence of a lease token is compared, not trusted
    /// (C14): the bearer of the token can edit it.
    fn holds(request: &ClaimRequest, row: &Row, now: ClockInstant) -> bool {
        row.owner == request.owner
            && row.expires > now
            && request.resume.as_ref().is_none_or(|resume| resume.fence == row.fence)
    }
}

#[async_trait]
impl Claim for SmallClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let ClaimRequest { key, owner, ttl, label, .. } = &self.request;
        self.table.step(|rows, now| {
            let held = rows.get(key).filter(|row| row.expires > now);
            let (fence, end) = match held {
                // C2: a repeated call finds its own row, with the same fence.
                // C17: it may be late, and does not end the lease sooner.
                Some(row) if row.owner == *owner => (row.fence, row.expires),
                Some(row) => {
                    let busy = Busy::default().with_retry_after(row.expires.since(now));
                    return Ok(Attempt::Busy(busy));
                }
                // C9: the fence continues where the last holder's ended.
                None => {
                    let last = rows.get(key).map_or(0, |row| row.fence.get());
                    (FencingToken::new(last + 1)?, now)
                }
            };
            let expires = end.max(now + *ttl);
            rows.insert(key.clone(), Row { owner: *owner, label: label.clone(), fence, expires });
            // C4: the store counts from now, which is after the start of this call.
            Ok(Attempt::Granted { token: fence, valid_for: Some(*ttl) })
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let ClaimRequest { key, ttl, .. } = &self.request;
        self.table.step(|rows, now| match rows.get_mut(key) {
            Some(row) if Self::holds(&self.request, row, now) => {
                row.expires = row.expires.max(now + *ttl);
                Ok(Renewal::Alive { valid_for: Some(*ttl) })
            }
            // C6: this is an answer of the store, not a failure to get one.
            _ => Ok(Renewal::Lost),
        })
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.table.step(|rows, now| match rows.get(&self.request.key) {
            Some(row) if Self::holds(&self.request, row, now) => {
                Ok(Renewal::Alive { valid_for: Some(row.expires.since(now)) })
            }
            _ => Ok(Renewal::Lost),
        })
    }

    async fn release(&mut self) -> Result<Released> {
        self.table.step(|rows, now| match rows.get_mut(&self.request.key) {
            // C7: the owner is compared in the same step.
            Some(row) if Self::holds(&self.request, row, now) => {
                row.expires = ClockInstant::from_nanos(0);
                Ok(Released::Freed)
            }
            _ => Ok(Released::AlreadyGone),
        })
    }

    async fn detach(&mut self) -> Result<Bytes> {
        // Owner and fence travel anyway; this store needs nothing else.
        Ok(Bytes::new())
    }
}

/// What the suite needs to know: how to get a store, and clients of it.
#[derive(Debug)]
struct SmallHarness;

#[derive(Debug)]
struct SmallStore(Arc<Table>);

#[async_trait]
impl Harness for SmallHarness {
    fn name(&self) -> &str {
        "small"
    }

    fn time(&self) -> Time {
        Time::Virtual
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let table = Table { clock: TokioClock::default(), rows: Mutex::default() };
        Ok(Box::new(SmallStore(Arc::new(table))))
    }
}

#[async_trait]
impl Store for SmallStore {
    async fn client(&self) -> Result<Client> {
        Ok(Client::new(SmallBackend(Arc::clone(&self.0))))
    }
}

fn main() -> ExitCode {
    conformance_tests::main(SmallHarness)
}
