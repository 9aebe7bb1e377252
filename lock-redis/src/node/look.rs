//! Requests to a server other than lock operations.

use std::time::Duration;

use lock_core::{LockKey, Result};

use super::reply::Reply;
use super::script::Call;
use super::server::Node;
use crate::error::refusal;
use crate::names::{Keys, escape_glob};

/// How many keys one step of a listing visits.
const STEP: usize = 1000;

impl Node {
    /// Runs a script that tries every command that locks need, only on this client's keys, and
    /// reports what was refused. A missing right would otherwise show up half-way through another
    /// script, and scripts are not rolled back. `page` is where the rights are listed.
    pub(crate) async fn probe(&self, call: Call<'_>, page: &str, limit: Duration) -> Result<()> {
        let answer = self.run(call, limit).await?;
        let what = format!("at {} a check of the rights", self.endpoint());
        let refused = Reply::new(&what, &answer)?;
        if refused.len() == 0 {
            return Ok(());
        }
        let list: Result<Vec<_>> = (0..refused.len()).map(|at| refused.text(at)).collect();
        Err(refusal(self.endpoint(), &list?, &format!("{page} lists the rights")))
    }

    /// The locks that have an auxiliary key with one of the `parts`, found by a walk through all
    /// keys with `SCAN`, which does not block the server. Some are listed more than once.
    pub(crate) async fn find(
        &self,
        (prefix, name_start): (&str, &str),
        parts: &[&str],
        limit: Duration,
    ) -> Result<Vec<LockKey>> {
        // The auxiliary key contains the lock key, with or without braces.
        let start = LockKey::encoded_start(prefix, name_start);
        let pattern = format!("*{}*\u{1e}*", escape_glob(&start));
        let wanted = |key: &LockKey| key.prefix() == prefix && key.name().starts_with(name_start);
        let mut keys = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let answer = self.command(&scan, limit).await?;
            let reply = Reply::new("SCAN", &answer)?;
            let found = reply.list(1)?;
            for at in 0..found.len() {
                let Ok(found) = std::str::from_utf8(found.bytes(at)?) else { continue };
                let lock = parts.iter().find_map(|part| Keys::lock_of(found, part));
                keys.extend(lock.and_then(|lock| LockKey::decode(lock).ok()).filter(wanted));
            }
            cursor = reply.bytes(0)?.to_vec();
            if cursor == b"0" {
                return Ok(keys);
            }
        }
    }
}
