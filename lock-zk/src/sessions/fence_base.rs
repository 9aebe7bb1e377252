//! Fences that rise above those of the store that was used before.
//!
//! The number of a transaction rises for as long as the ensemble keeps its data, but it begins small, and
//! a resource that has seen the fences of another store would refuse it. So a fence is counted from a
//! base: the clock of the client that came first, in microseconds. The base is kept in a node beside the
//! locks, outside of each lock's own, since Curator counts every child of those. Transactions count from
//! the one that made this node: an old ensemble has seen very many, and its fences must not run
//! ahead of the clock, or the store that is used next could not give greater ones.
//!
//! The base is read once in each session, and never kept for longer. A session is known to one ensemble
//! only: one that was made again without its data does not know it, so the next base is that of the new
//! ensemble, and the clock has gone on since the last one was made.

use std::time::SystemTime;

use lock_core::{Error, ErrorKind, FencingToken, Result};
use tokio::sync::OnceCell;

use crate::config::Fence;
use crate::connection::reply::{Failure, Node};
use crate::names::fence_base_path;
use crate::session::Session;

/// How often the node is looked for when others make and remove it.
const ROUNDS: usize = 4;

/// What the fences of one session are counted from. A session belongs to one ensemble, and so does this.
#[derive(Debug, Default)]
pub(crate) struct FenceBase(OnceCell<u64>);

impl FenceBase {
    /// The fence of a node that was made by this transaction. The base is made if there is none.
    pub(crate) async fn fence(&self, session: &Session, czxid: i64) -> Result<FencingToken> {
        token(self.ensure(session).await?, czxid)
    }

    /// What fences are counted from; it is made if there is none.
    pub(crate) async fn ensure(&self, session: &Session) -> Result<u64> {
        match session.config.fence {
            Fence::Revision => Ok(0),
            Fence::Based => self.0.get_or_try_init(|| read_or_make(session)).await.copied(),
        }
    }

    /// The same for a mere look: none if there is no base yet.
    pub(crate) async fn known_fence(
        &self,
        session: &Session,
        czxid: i64,
    ) -> Result<Option<FencingToken>> {
        let base = match (session.config.fence, self.0.get()) {
            (Fence::Revision, _) => Some(0),
            (Fence::Based, Some(base)) => Some(*base),
            (Fence::Based, None) => {
                let path = fence_base_path(&session.config.root);
                let node =
                    session.get(&path).await.map_err(|failure| session.describe(&failure))?;
                node.map(|node| base_in(&node, &path)).transpose()?
            }
        };
        base.map(|base| token(base, czxid)).transpose()
    }
}

async fn read_or_make(session: &Session) -> Result<u64> {
    let path = fence_base_path(&session.config.root);
    for _ in 0..=ROUNDS {
        let node = session.get(&path).await.map_err(|failure| session.describe(&failure))?;
        if let Some(node) = node {
            return base_in(&node, &path);
        }
        let made = match session.create_record(&path, clock().to_string().as_bytes()).await {
            Err(Failure::NoNode) => session.create_parents(&session.config.root).await,
            made => made,
        };
        match made {
            Ok(()) | Err(Failure::NodeExists) => {}
            Err(failure) => return Err(session.describe(&failure)),
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("the node {path} is made and removed again and again"),
    ))
}

/// The base that the node at `path` records.
fn base_in(node: &Node, path: &str) -> Result<u64> {
    let number = std::str::from_utf8(&node.data).ok().and_then(|text| text.parse::<u64>().ok());
    let origin = u64::try_from(node.czxid).unwrap_or_default();
    number.map(|number| number.saturating_sub(origin)).ok_or_else(|| {
        let data = String::from_utf8_lossy(&node.data);
        Error::new(
            ErrorKind::Store,
            format!(
                "the node {path} has {data:?} in place of the number that fences are counted from: write back the number that it had, or remove the node while no client runs"
            ),
        )
    })
}

/// Microseconds since 1970.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn token(base: u64, czxid: i64) -> Result<FencingToken> {
    FencingToken::answered(base.saturating_add(u64::try_from(czxid).unwrap_or_default()))
}
