//! Keeps a session alive while claims use it, ends it when none does, and removes what a dropped claim has left in it.

use std::sync::{Arc, Weak};

use super::seats::{LeftEntries, SharedSession};
use crate::error::Reply;
use crate::wire::Timeline;

/// Asks the leader at a steady pace, so that there are always requests of the right age: see
/// [`Timeline`]. `sync` needs no right to any node. These requests replace the driver's own pings. A session unused
/// for a while is closed.
///
/// An entry that a claim has left behind would live as long as the session, which may be for ever. So it ends here as a
/// lease would: a session timeout later.
pub(super) async fn tend(open: Weak<SharedSession>) {
    loop {
        let beat = {
            let Some(open) = open.upgrade() else { return };
            if open.has_ended() {
                return;
            }
            if open.retire_if_idle() {
                open.close().await;
                return;
            }
            let work = async {
                // A failure shows when an entry is renewed.
                let _ = open.sync(&open.config.root).await;
                if let Some(left) = open.overdue()
                    && remove(&open, &left).await.is_ok()
                {
                    open.is_removed(&left);
                }
            };
            // A lost connection is handled elsewhere; a silent one ends this wait.
            let _ = tokio::time::timeout(open.timeout / 2, work).await;
            Timeline::beat(open.timeout)
        };
        tokio::time::sleep(beat).await;
    }
}

async fn remove(open: &Arc<SharedSession>, left: &LeftEntries) -> Reply<()> {
    for name in open.sync_and_list(&left.parent).await? {
        if name.starts_with(&left.prefix) {
            open.delete(&format!("{}/{name}", left.parent)).await?;
        }
    }
    Ok(())
}
