//! Deliberate mistakes, for the tests of the tests.
//!
//! Only with `--cfg distlock_mutants`, and only if the variable below names one: mistakes that locks on
//! ZooKeeper are known to be made with. The types here take the place of the connections of the same
//! names, and alter a request before it is sent or an answer before it is believed.
//! `tests/mutants.rs` shows that each mistake is found.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use lock_core::Result;
use zookeeper_client as zk;

use crate::config::{Access, ZkConfig};
use crate::connection::reply::{Checked, Created, Node, Reply, Watch, none_if_missing, reply};
use crate::connection::{self, Connection};
use crate::names;

/// Names the mistake to make, in the environment.
pub const VARIABLE: &str = "LOCK_ZK_MUTANT";

/// A mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// How it is called in the variable.
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The scene that must fail.
    pub killed_by: &'static str,
}

const fn mutant(name: &'static str, what: &'static str, killed_by: &'static str) -> Mutant {
    Mutant { name, what, killed_by }
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    mutant(
        "fence_is_the_sequence",
        "the fence is the number in the node's name, which begins again with a new queue",
        "fences_rise_over_a_new_queue",
    ),
    mutant(
        "trust_any_session",
        "a node of an earlier session is taken for one of this session",
        "a_node_of_an_old_session_is_not_trusted",
    ),
    mutant(
        "create_again",
        "a node's name does not tell its owner, so one whose reply was lost is made again",
        "a_lost_reply_leaves_one_node",
    ),
    mutant(
        "watch_the_parent",
        "a waiter watches the whole queue in place of the node before its own",
        "a_hand_over_wakes_one_waiter",
    ),
    mutant(
        "read_based_renewal",
        "renewals and checks read the nodes, which any server answers",
        "a_renewal_needs_the_leader",
    ),
    mutant(
        "read_based_check",
        "a check reads the node, which a server that is behind answers",
        "a_server_that_is_behind_confirms_nothing",
    ),
    mutant(
        "beat_by_reads",
        "the session is kept by reads, of which the leader hears nothing",
        "a_read_prolongs_nothing",
    ),
    mutant(
        "grant_by_read",
        "the queue is listed without asking the leader first",
        "a_server_that_is_behind_grants_nothing",
    ),
    mutant(
        "believe_a_shorter_session",
        "a server is believed to grant what it was asked for",
        "a_session_that_was_shortened_is_not_believed",
    ),
    mutant(
        "one_session_for_all",
        "the paths of a session's nodes are not counted",
        "a_full_session_is_followed_by_another",
    ),
    mutant(
        "keep_the_base",
        "fences are counted from the base of an ensemble that is no more",
        "fences_rise_over_an_ensemble_without_its_data",
    ),
    mutant(
        "check_what_is_known",
        "a node whose reply was lost is not recognised by the session that made it",
        "a_check_after_a_lost_reply_asks",
    ),
];

fn is(mutant: &str) -> bool {
    static WANTED: LazyLock<String> = LazyLock::new(|| std::env::var(VARIABLE).unwrap_or_default());
    debug_assert!(MUTANTS.iter().any(|known| known.name == mutant), "{mutant} is no mutant");
    *WANTED == mutant
}

/// The servers, with mistakes about what they grant.
#[derive(Debug)]
pub(crate) struct Ensemble(connection::Ensemble);

impl Deref for Ensemble {
    type Target = connection::Ensemble;

    fn deref(&self) -> &connection::Ensemble {
        &self.0
    }
}

impl Ensemble {
    pub(crate) fn new(config: &ZkConfig) -> Self {
        Self(connection::Ensemble::new(config))
    }

    pub(crate) fn given(connector: zk::Connector, cluster: &str) -> Result<Self> {
        connection::Ensemble::given(connector, cluster).map(Self)
    }

    pub(crate) async fn connect(
        &self,
        host: usize,
        timeout: Duration,
        patience: Duration,
        session: Option<&zk::SessionInfo>,
    ) -> Result<Connection, zk::Error> {
        let mut connection = self.0.connect(host, timeout, patience, session).await?;
        if is("believe_a_shorter_session") {
            connection.granted = connection.granted.max(timeout);
        }
        Ok(connection)
    }
}

/// A session's way to the servers, with mistakes in its requests and answers.
pub(crate) struct Channel(Arc<connection::Channel>);

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for Channel {
    type Target = connection::Channel;

    fn deref(&self) -> &connection::Channel {
        &self.0
    }
}

impl Channel {
    pub(crate) fn new(connection: Connection, access: Access, endpoint: String) -> Arc<Self> {
        Arc::new(Self(connection::Channel::new(connection, access, endpoint)))
    }

    pub(crate) fn path_len(&self, bytes: usize) -> usize {
        if is("one_session_for_all") { 0 } else { self.0.path_len(bytes) }
    }

    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Reply<Created>, Reply<Vec<String>>) {
        let prefix = if is("create_again") { "lock-" } else { prefix };
        let (mut created, children) = self.0.create_and_list(parent, prefix, data).await;
        if is("fence_is_the_sequence")
            && let Ok(created) = &mut created
            && let Some(number) = names::sequence(&created.name)
        {
            created.czxid = i64::from(number) + 1;
        }
        (created, children)
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<Node>> {
        let mut read = self.0.get(path).await?;
        if let Some(node) = &mut read {
            if is("trust_any_session") && node.owner != 0 {
                node.owner = self.0.session_id();
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
            return self.0.get(path).await.map(drop);
        }
        self.0.sync(path).await
    }

    pub(crate) async fn sync_and_list(&self, path: &str) -> (Reply<()>, Reply<Vec<String>>) {
        if is("grant_by_read") {
            return (Ok(()), self.0.list(path).await);
        }
        self.0.sync_and_list(path).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Reply<Option<Watch>> {
        let Some(parent) = path.rfind('/').filter(|_| is("watch_the_parent")) else {
            return self.0.watch(path).await;
        };
        let connection = self.0.connection().await?;
        let children = connection.client().list_and_watch_children(&path[..parent]).await;
        Ok(none_if_missing(reply(children))?.map(|(_, watcher)| {
            let listening = connection.listen(watcher);
            Box::pin(async move {
                listening.await;
            }) as Watch
        }))
    }

    pub(crate) async fn check_all(&self, paths: &[&str]) -> Reply<Checked> {
        if !is("read_based_renewal") {
            return self.0.check_all(paths).await;
        }
        for (at, path) in paths.iter().enumerate() {
            if self.0.get(path).await?.is_none() {
                return Ok(Checked::Missing(at));
            }
        }
        Ok(Checked::All)
    }

    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        if is("read_based_check") || is("read_based_renewal") {
            return Ok(self.0.get(path).await?.is_some());
        }
        self.0.check(path).await
    }
}
