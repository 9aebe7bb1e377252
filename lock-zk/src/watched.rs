//! How much a session watches.
//!
//! After a reconnect the client sets all watches again, by one request for each 128 KiB of paths, and all
//! of these have the same number. So it takes the answer to the second one for a mistake of the server,
//! leaves that server, and goes on like this until the session has ended (`zookeeper-client` 0.11.2,
//! `WatchManager::resend_watches`, `Depot::pop_request`). A session that watches less needs one request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of paths. What is below the client's 128 KiB is for watches that are under way.
const ALL: usize = 120 * 1024;
const _: () = assert!(ALL + 8 * 1024 <= 128 * 1024);
/// The most of them at which somebody's own node is still watched: a holder would find out by its next
/// renewal as well, a waiter only by looking again and again.
const OWN: usize = 60 * 1024;
const _: () = assert!(OWN < ALL && ALL + 8 * 1024 <= 128 * 1024);

/// Whose node is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// That of the one before.
    Ahead,
    /// One's own.
    Own,
}

/// What a session watches: each path counts once, as it does for the client.
#[derive(Debug)]
pub(crate) struct Watched {
    chroot_len: usize,
    paths: Mutex<Paths>,
}

#[derive(Debug, Default)]
struct Paths {
    /// How many watches there are on each.
    counts: HashMap<Arc<str>, usize>,
    bytes: usize,
}

/// The room that one watch takes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    watched: Arc<Watched>,
    path: Arc<str>,
}

impl Watched {
    /// For a client that puts so many bytes before each path.
    pub(crate) fn new(chroot_len: usize) -> Arc<Self> {
        Arc::new(Self { chroot_len, paths: Mutex::default() })
    }

    /// Room for one more watch, if there is any.
    pub(crate) fn room(self: &Arc<Self>, path: &str, whose: Whose) -> Option<Room> {
        let mut paths = self.paths();
        let path = match paths.counts.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => {
                let bytes = paths.bytes + self.chroot_len + path.len();
                let most = match whose {
                    Whose::Ahead => ALL,
                    Whose::Own => OWN,
                };
                #[cfg(feature = "mutants")]
                let most = if crate::mutants::is("watch_everything") { usize::MAX } else { most };
                if bytes > most {
                    return None;
                }
                paths.bytes = bytes;
                Arc::from(path)
            }
        };
        *paths.counts.entry(Arc::clone(&path)).or_default() += 1;
        Some(Room { watched: Arc::clone(self), path })
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut paths = self.watched.paths();
        if let Some(count) = paths.counts.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                paths.counts.remove(&self.path);
                paths.bytes -= self.watched.chroot_len + self.path.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many paths of 1 KiB as there is room for.
    fn filled(watched: &Arc<Watched>, whose: Whose) -> Vec<Room> {
        (0..).map_while(|n| watched.room(&format!("{n:01000}"), whose)).collect()
    }

    #[test]
    fn own_nodes_leave_room_for_those_ahead() {
        let watched = Watched::new(24);
        let own = filled(&watched, Whose::Own);
        assert_eq!(own.len(), 60);
        let ahead = filled(&watched, Whose::Ahead);
        assert_eq!(ahead.len(), 120, "60 of them are watched already");
        assert!(watched.room("x", Whose::Ahead).is_none());
        assert!(
            watched.room(&format!("{:01000}", 7), Whose::Own).is_some(),
            "it takes no more room"
        );
        drop(own);
        assert!(watched.room("x", Whose::Ahead).is_none(), "they are watched still");
        drop(ahead);
        assert_eq!(watched.paths().bytes, 0);
        assert!(watched.paths().counts.is_empty());
        assert!(watched.room("x", Whose::Own).is_some());
    }
}
