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

use crate::config::Fence;
use crate::error::describe;
use crate::session::Session;
use crate::transport::Failure;

/// The name of the base's node under the root: no lock has it, since `%fe` is no UTF-8.
const NODE: &str = "%fence";
/// How often the node is looked for when others make and remove it.
const ROUNDS: usize = 4;

impl Session {
    /// The fence of a node that was made by this transaction.
    pub(crate) async fn fence(&self, czxid: i64) -> Result<FencingToken> {
        token(self.ensure_base().await?, czxid)
    }

    /// What fences are counted from; it is made if there is none.
    pub(crate) async fn ensure_base(&self) -> Result<u64> {
        #[cfg(distlock_mutants)]
        if crate::mutants::is("keep_the_base") {
            return Ok(crate::mutants::first_base(self.read_or_make_base().await?));
        }
        match self.config.fence {
            Fence::Revision => Ok(0),
            Fence::Based => {
                self.fence_base.get_or_try_init(|| self.read_or_make_base()).await.copied()
            }
        }
    }

    /// The same for one who only looks: none if there is no base yet.
    pub(crate) async fn known_fence(&self, czxid: i64) -> Result<Option<FencingToken>> {
        let base = match (self.config.fence, self.fence_base.get()) {
            (Fence::Revision, _) => Some(0),
            (Fence::Based, Some(base)) => Some(*base),
            (Fence::Based, None) => self.read_base().await?,
        };
        base.map(|base| token(base, czxid)).transpose()
    }

    fn base_path(&self) -> String {
        format!("{}/{NODE}", self.config.root)
    }

    async fn read_base(&self) -> Result<Option<u64>> {
        let path = self.base_path();
        let Some(node) = self.get(&path).await.map_err(|failure| self.describe(&failure))? else {
            return Ok(None);
        };
        let number = std::str::from_utf8(&node.data).ok().and_then(|text| text.parse::<u64>().ok());
        let origin = u64::try_from(node.czxid).unwrap_or_default();
        number.map(|number| Some(number.saturating_sub(origin))).ok_or_else(|| {
            let data = String::from_utf8_lossy(&node.data).into_owned();
            Error::new(
                ErrorKind::Store,
                format!(
                    "the node {path} has {data:?} in place of the number that fences are counted from: write back the number that it had, or remove the node while no client runs"
                ),
            )
        })
    }

    async fn read_or_make_base(&self) -> Result<u64> {
        let path = self.base_path();
        let mut known = self.read_base().await?;
        for _ in 0..ROUNDS {
            if let Some(base) = known {
                return Ok(base);
            }
            match self.create_record(&path, clock().to_string().as_bytes()).await {
                Ok(()) | Err(Failure::NodeExists) => known = self.read_base().await?,
                Err(Failure::NoNode) => {
                    let parents = self.create_parents(&self.config.root).await;
                    parents.map_err(|failure| self.describe(&failure))?;
                }
                Err(failure) => return Err(self.describe(&failure)),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the node {path} is made and removed again and again"),
        ))
    }

    fn describe(&self, failure: &Failure) -> Error {
        describe(failure, self.link().endpoint())
    }
}

/// Microseconds since 1970.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn token(base: u64, czxid: i64) -> Result<FencingToken> {
    FencingToken::new(base.saturating_add(u64::try_from(czxid).unwrap_or_default()))
}
