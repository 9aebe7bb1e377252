//! Which locks are probably free.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The most names that are kept in mind.
const MOST: usize = 4096;

/// The names of locks that were free when this client last heard of them: it has released them, or was
/// told. Their rows are there, so the statement that does nothing but take a free lock is worth a try.
#[derive(Debug, Default)]
pub(super) struct ProbablyFree(Mutex<HashSet<String>>);

impl ProbablyFree {
    pub(super) fn note(&self, name: &str) {
        let mut names = self.0.lock();
        if names.len() >= MOST {
            // Each costs one statement more at most.
            names.clear();
        }
        names.insert(name.to_owned());
    }

    /// Whether it is noted. Not any more afterwards, since the caller tries to take it.
    pub(super) fn take(&self, name: &str) -> bool {
        self.0.lock().remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_a_limited_number_of_names() {
        let free = ProbablyFree::default();
        for n in 0..3 * MOST {
            free.note(&n.to_string());
        }
        assert!(free.0.lock().len() <= MOST);
        let last = (3 * MOST - 1).to_string();
        assert!(free.take(&last) && !free.take(&last));
    }
}
