//! The wire, with mistakes: what is not here is as it is.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::testing::Mutant;
use lock_core::{Clock, Released};
use parking_lot::Mutex;
use zookeeper_client as zk;

use crate::error::{Reply, RequestFailure};
use crate::queue::entry;
use crate::settings::{Acl, SESSION};

#[path = "../wire/mod.rs"]
mod right;
pub(crate) use right::*;

pub(crate) async fn connect(
    connector: zk::Connector,
    host: &str,
    timeout: Duration,
) -> Result<DriverConnection, zk::Error> {
    let asked = if Mutant::is_wanted("one_ttl_for_all") { timeout.max(SESSION) } else { timeout };
    let mut connection = right::connect(connector, host, asked).await?;
    if Mutant::is_wanted("believe_a_shorter_session") {
        connection.granted = connection.granted.max(timeout);
    }
    Ok(connection)
}

pub(crate) async fn close(connection: DriverConnection) {
    if Mutant::is_wanted("keep_the_probe") {
        tokio::spawn(async move {
            tokio::time::sleep(SESSION).await;
            drop(connection);
        });
    } else {
        right::close(connection).await;
    }
}

pub(crate) async fn sever(connection: DriverConnection) {
    if !Mutant::is_wanted("close_what_is_given_up") {
        right::sever(connection).await;
    }
}

/// A session, with mistakes in its requests and answers.
#[derive(Debug)]
pub(crate) struct Session(Arc<right::Session>);

impl Deref for Session {
    type Target = right::Session;

    fn deref(&self) -> &right::Session {
        &self.0
    }
}

impl Session {
    pub(crate) fn new(
        connection: DriverConnection,
        timeline: Timeline,
        acl: Acl,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self(right::Session::new(connection, timeline, acl, clock)))
    }

    pub(crate) fn path_len(&self, bytes: usize) -> usize {
        if Mutant::is_wanted("one_session_for_all") { 0 } else { self.0.path_len(bytes) }
    }

    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        may_be_missing: bool,
        prefix: &str,
        data: &[u8],
    ) -> Reply<(Created, Reply<Vec<String>>)> {
        let prefix = if Mutant::is_wanted("create_again") { "lock-" } else { prefix };
        let made = self.0.create_and_list(parent, may_be_missing, prefix, data).await;
        let (mut created, children) = made?;
        if Mutant::is_wanted("fence_is_the_sequence")
            && let Some(number) = entry::sequence(&created.name)
        {
            created.czxid = number + 1;
        }
        Ok((created, children))
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<NodeRecord>> {
        let mut read = self.0.get(path).await?;
        if let Some(node) = &mut read {
            if Mutant::is_wanted("trust_any_session") && node.owner != 0 {
                node.owner = self.0.id();
            }
            if Mutant::is_wanted("check_what_is_known") {
                node.owner = 0;
            }
            if Mutant::is_wanted("keep_the_base") && path.ends_with(entry::FENCE_BASE) {
                static FIRST: OnceLock<NodeRecord> = OnceLock::new();
                *node = FIRST.get_or_init(|| node.clone()).clone();
            }
        }
        Ok(read)
    }

    pub(crate) async fn sync(&self, path: &str) -> Reply<()> {
        if Mutant::is_wanted("base_by_read") && path.ends_with(entry::FENCE_BASE) {
            return Ok(());
        }
        if Mutant::is_wanted("beat_by_reads") {
            let sent = self.now();
            return self.note(session::Proves::Leader, sent, self.0.get(path).await).map(drop);
        }
        self.0.sync(path).await
    }

    pub(crate) async fn sync_and_list(&self, path: &str) -> Reply<Vec<String>> {
        if Mutant::is_wanted("grant_by_read") {
            return self.0.list(path).await;
        }
        self.0.sync_and_list(path).await
    }

    pub(crate) fn pack(&self) -> usize {
        if Mutant::is_wanted("look_again_in_packs") { usize::MAX } else { self.0.pack() }
    }

    pub(crate) async fn list_all(
        &self,
        above: &[&str],
        paths: &[String],
        pack: usize,
    ) -> Reply<Listings> {
        let syncs = Mutant::is_wanted("look_by_sync");
        let mut listings = match syncs || Mutant::is_wanted("look_by_read") {
            true => self.list_by_reads(above, paths, syncs).await?,
            false => self.0.list_all(above, paths, pack).await?,
        };
        for (children, path) in listings.children.iter_mut().zip(paths) {
            let Some(children) = children else { continue };
            if Mutant::is_wanted("look_for_our_nodes") {
                children.names.retain(|name| name.starts_with("_c_"));
            }
            if Mutant::is_wanted("look_at_the_last") {
                children.names.sort_unstable_by_key(|name| entry::sequence(name));
                children.names = children.names.pop().into_iter().collect();
            }
            if Mutant::is_wanted("floor_of_the_node")
                && let Some(node) = self.0.get(path).await?
            {
                children.changed = Some(node.czxid);
            }
        }
        for [before, after] in &mut listings.above {
            if Mutant::is_wanted("look_above_before") {
                *after = *before;
            }
            if Mutant::is_wanted("look_above_afterwards") {
                *before = *after;
            }
        }
        Ok(listings)
    }

    async fn list_by_reads(
        &self,
        above: &[&str],
        paths: &[String],
        syncs: bool,
    ) -> Reply<Listings> {
        let connection = self.0.connection().await?;
        let client = connection.client();
        let sync = syncs.then(|| client.sync(above[0]));
        let stats: Vec<_> = above.iter().map(|path| client.check_stat(path)).collect();
        let lists: Vec<_> = paths.iter().map(|path| client.get_children(path)).collect();
        if let Some(sync) = sync {
            sync.await?;
        }
        let mut listings = Listings { children: Vec::new(), above: Vec::new() };
        for stat in stats {
            listings.above.push([stat.await?.map(|stat| stat.pzxid); 2]);
        }
        for list in lists {
            let children = list.await.map(requests::Children::from);
            let children = children.map_err(RequestFailure::from);
            listings.children.push(requests::none_if_missing(children)?);
        }
        Ok(listings)
    }

    pub(crate) async fn watch(&self, path: &str) -> Reply<Option<NodeWatch>> {
        if Mutant::is_wanted("watch_one_connection") {
            static WATCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
            let is_first = WATCHED.lock().insert(path.to_owned());
            // The other one never changes.
            return self.0.watch(if is_first { path } else { "/zookeeper" }).await;
        }
        let Some(parent) = path.rfind('/').filter(|_| Mutant::is_wanted("watch_the_parent")) else {
            return self.0.watch(path).await;
        };
        let connection = self.0.connection().await?;
        let children = connection.client().list_and_watch_children(&path[..parent]).await;
        let read = requests::none_if_missing(children.map_err(RequestFailure::from))?;
        Ok(read.map(|(_, watcher)| connection.listen(watcher)))
    }

    pub(crate) async fn first_failing(
        &self,
        paths: &[&str],
    ) -> Reply<Option<(usize, Reply<bool>)>> {
        if !Mutant::is_wanted("read_based_renewal") {
            return self.0.first_failing(paths).await;
        }
        for (at, path) in paths.iter().enumerate() {
            if self.0.get(path).await?.is_none() {
                return Ok(Some((at, Ok(false))));
            }
        }
        Ok(None)
    }

    pub(crate) fn makes_first(&self, held: Option<Footing>) -> bool {
        Mutant::is_wanted("hands_on_a_place") || self.0.makes_first(held)
    }

    pub(crate) async fn delete_before(&self, path: &str, next: &str) -> Reply<Option<Released>> {
        if Mutant::is_wanted("hands_to_nobody") {
            return self.0.delete(path).await.map(Some);
        }
        self.0.delete_before(path, next).await
    }

    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        if Mutant::is_wanted("read_based_check") || Mutant::is_wanted("read_based_renewal") {
            return Ok(self.0.get(path).await?.is_some());
        }
        self.0.check(path).await
    }
}
