//! Deliberate mistakes, for the mutation tests.
//!
//! Only with `--cfg distlock_mutants`, and only if the variable below names one: mistakes that
//! locks on ZooKeeper are known to be made with. The items here replace those of the same name in
//! `connection`, and alter a request before it is sent or a reply before it is trusted.
//! `tests/mutants.rs` shows that each mistake is found.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use lock_core::Clock;
use zookeeper_client as zk;

use crate::config::{Acl, SESSION};
use crate::connection::reply::{Created, Failure, Node, Reply, none_if_missing};
use crate::connection::{self, Connection, Proves, Watch};
use crate::names;
use crate::timeline::Timeline;

/// The environment variable that names the mistake to make.
pub const VARIABLE: &str = "LOCK_ZK_MUTANT";

/// A mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name in the variable.
    pub name: &'static str,
    /// What is wrong.
    pub wrong: &'static str,
    /// The scene that must fail.
    pub killed_by: &'static str,
}

macro_rules! mutants {
    ($($name:ident: $wrong:literal => $killed_by:ident,)*) => {
        /// All of them.
        pub const MUTANTS: &[Mutant] = &[$(Mutant {
            name: stringify!($name),
            wrong: $wrong,
            killed_by: stringify!($killed_by),
        }),*];
    };
}

mutants! {
    fence_is_the_sequence: "the fence is the number in the node's name, which begins again with a new queue"
        => fences_rise_over_a_new_queue,
    keep_the_base: "fences are counted from the base of an ensemble that is no more"
        => fences_rise_over_an_ensemble_without_its_data,
    trust_any_session: "a node of an earlier session is taken for one of this session"
        => a_node_of_an_old_session_is_not_trusted,
    create_again: "a node's name does not tell its owner, so one whose reply was lost is made again"
        => a_check_after_a_lost_reply_asks,
    check_what_is_known: "a node whose reply was lost is not recognised by the session that made it"
        => a_check_after_a_lost_reply_asks,
    watch_one_connection: "a watch is not set again when its connection is lost"
        => a_hand_over_during_a_cut_is_not_missed,
    watch_the_parent: "a waiter watches the whole queue in place of the node before its own"
        => a_hand_over_wakes_one_waiter,
    read_based_renewal: "renewals and checks read the nodes, which any server answers"
        => a_renewal_needs_the_leader,
    read_based_check: "a check reads the node, which a server that is behind answers"
        => a_server_that_is_behind_confirms_nothing,
    beat_by_reads: "the session is kept by reads, of which the leader hears nothing"
        => a_read_prolongs_nothing,
    grant_by_read: "the queue is listed without asking the leader first"
        => a_server_that_is_behind_grants_nothing,
    believe_a_shorter_session: "a server is believed to grant what it was asked for"
        => a_session_that_was_shortened_is_not_believed,
    one_ttl_for_all: "a session lasts for 30 s at least, whatever the ttl of its locks"
        => a_lock_of_a_silent_holder_is_free_after_its_own_ttl,
    one_session_for_all: "the paths of a session's nodes are not counted"
        => a_full_session_is_followed_by_another,
}

fn is(mutant: &str) -> bool {
    static WANTED: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());
    debug_assert!(MUTANTS.iter().any(|known| known.name == mutant), "{mutant} is no mutant");
    *WANTED == mutant
}

pub(crate) async fn connect(
    connector: zk::Connector,
    host: &str,
    timeout: Duration,
) -> Result<Connection, zk::Error> {
    let asked = if is("one_ttl_for_all") { timeout.max(SESSION) } else { timeout };
    let mut connection = connection::connect(connector, host, asked).await?;
    if is("believe_a_shorter_session") {
        connection.granted = connection.granted.max(timeout);
    }
    Ok(connection)
}

/// A session, with mistakes in its requests and answers.
#[derive(Debug)]
pub(crate) struct Session(Arc<connection::Session>);

impl Deref for Session {
    type Target = connection::Session;

    fn deref(&self) -> &connection::Session {
        &self.0
    }
}

impl Session {
    pub(crate) fn new(
        connection: Connection,
        timeline: Timeline,
        acl: Acl,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self(connection::Session::new(connection, timeline, acl, clock)))
    }

    pub(crate) fn path_len(&self, bytes: usize) -> usize {
        if is("one_session_for_all") { 0 } else { self.0.path_len(bytes) }
    }

    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> Reply<(Created, Reply<Vec<String>>)> {
        let prefix = if is("create_again") { "lock-" } else { prefix };
        let (mut created, children) = self.0.create_and_list(parent, prefix, data).await?;
        if is("fence_is_the_sequence")
            && let Some(number) = names::sequence(&created.name)
        {
            created.czxid = number + 1;
        }
        Ok((created, children))
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<Node>> {
        let mut read = self.0.get(path).await?;
        if let Some(node) = &mut read {
            if is("trust_any_session") && node.owner != 0 {
                node.owner = self.0.id();
            }
            if is("check_what_is_known") {
                node.owner = 0;
            }
            if is("keep_the_base") && path.ends_with(names::FENCE_BASE) {
                static FIRST: OnceLock<Node> = OnceLock::new();
                *node = FIRST.get_or_init(|| node.clone()).clone();
            }
        }
        Ok(read)
    }

    pub(crate) async fn sync(&self, path: &str) -> Reply<()> {
        if is("beat_by_reads") {
            let sent = self.now();
            return self.note(Proves::Leader, sent, self.0.get(path).await).map(drop);
        }
        self.0.sync(path).await
    }

    pub(crate) async fn sync_and_list(&self, path: &str) -> Reply<Vec<String>> {
        if is("grant_by_read") {
            return self.0.list(path).await;
        }
        self.0.sync_and_list(path).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Reply<Option<Watch>> {
        if is("watch_one_connection") {
            static WATCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
            let is_first = WATCHED.lock().is_ok_and(|mut paths| paths.insert(path.to_owned()));
            // The other one never changes.
            return self.0.watch(if is_first { path } else { "/zookeeper" }).await;
        }
        let Some(parent) = path.rfind('/').filter(|_| is("watch_the_parent")) else {
            return self.0.watch(path).await;
        };
        let connection = self.0.connection().await?;
        let children = connection.client().list_and_watch_children(&path[..parent]).await;
        let read = none_if_missing(children.map_err(Failure::from))?;
        Ok(read.map(|(_, watcher)| connection.listen(watcher)))
    }

    pub(crate) async fn first_missing(&self, paths: &[&str]) -> Reply<Option<usize>> {
        if !is("read_based_renewal") {
            return self.0.first_missing(paths).await;
        }
        for (at, path) in paths.iter().enumerate() {
            if self.0.get(path).await?.is_none() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        if is("read_based_check") || is("read_based_renewal") {
            return Ok(self.0.get(path).await?.is_some());
        }
        self.0.check(path).await
    }
}
