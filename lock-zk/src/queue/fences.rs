//! Fences above those of the store used before.
//!
//! The transaction number rises while the ensemble keeps its data, but it starts small. So a fence
//! is counted from a base: the clock of the first client, in microseconds, stored in a node outside
//! the locks' own nodes, since Curator counts every child of those. Transactions are counted from
//! the one that created this node: an old ensemble has seen very many, and its fences must not run
//! ahead of the clock.
//!
//! Each session reads the base once, or at first once for each claim. A session is known to one ensemble only: an
//! ensemble recreated without its data does not know it, and has a later base.

use std::time::SystemTime;

use lock_core::{Error, ErrorKind, FencingToken};

use crate::error::{Reply, RequestFailure};
use crate::sessions::SharedSession;
use crate::settings::Fence;
use crate::wire::NodeRecord;

/// How often the node is read when other clients create and remove it.
const ROUNDS: usize = 4;

impl SharedSession {
    /// The fence of a node created by the transaction `czxid`.
    pub(crate) async fn fence(&self, czxid: i64) -> Reply<FencingToken> {
        token(self.fence_base().await?, czxid)
    }

    /// The base of the fences of this session; created if there is none.
    pub(crate) async fn fence_base(&self) -> Reply<u64> {
        let path = self.config.fence_base_path();
        for _ in 0..=ROUNDS {
            if let Some(base) = self.known_base().await? {
                return Ok(base);
            }
            match self.create_record(&path, clock().to_string().as_bytes()).await {
                Ok(()) | Err(RequestFailure::NodeExists) => {}
                Err(RequestFailure::NoNode) => self.create_parents(&self.config.root).await?,
                Err(failure) => return Err(failure),
            }
        }
        let why = format!("the node {path} is repeatedly created and removed");
        Err(Error::new(ErrorKind::Unavailable, why).into())
    }

    /// The base of the fences of this session, if there is one.
    pub(crate) async fn known_base(&self) -> Reply<Option<u64>> {
        match (self.config.fence, self.base.get()) {
            (Fence::Revision, _) => Ok(Some(0)),
            (Fence::Based, Some(base)) => Ok(Some(*base)),
            // Nobody waits for another one that reads it: that may be a claim which is not driven.
            (Fence::Based, None) => {
                let path = self.config.fence_base_path();
                // A server that is behind may show one that was removed meanwhile.
                self.sync(&path).await?;
                let Some(node) = self.get(&path).await? else { return Ok(None) };
                let base = base_in(&node, &path)?;
                Ok(Some(*self.base.get_or_init(|| base)))
            }
        }
    }
}

/// The fence that the transaction `zxid` gives, or would give: none if there is no base yet, or nothing was ever done.
pub(crate) fn known_fence(base: Option<u64>, zxid: i64) -> Reply<Option<FencingToken>> {
    base.filter(|_| zxid > 0).map(|base| token(base, zxid)).transpose()
}

/// The base that the node at `path` records.
fn base_in(node: &NodeRecord, path: &str) -> Result<u64, Error> {
    let number = std::str::from_utf8(&node.data).ok().and_then(|text| text.parse::<u64>().ok());
    let origin = u64::try_from(node.czxid).unwrap_or_default();
    number.map(|number| number.saturating_sub(origin)).ok_or_else(|| {
        let data = String::from_utf8_lossy(&node.data);
        Error::new(
            ErrorKind::Store,
            format!(
                "the node {path} has {data:?} instead of the number that fences are counted from: restore the number that it had, or remove the node while no client runs"
            ),
        )
    })
}

/// Microseconds since 1970.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn token(base: u64, czxid: i64) -> Reply<FencingToken> {
    Ok(FencingToken::answered(base.saturating_add(u64::try_from(czxid).unwrap_or_default()))?)
}
