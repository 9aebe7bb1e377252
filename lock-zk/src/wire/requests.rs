//! The few requests that the recipe needs.

use lock_core::Released;
use zookeeper_client as zk;

use super::connection::NodeWatch;
use super::session::{Proves, Session};
use crate::error::{Reply, RequestFailure, creating, deleting, no_chroot, reading};
use crate::settings::Acl;

/// A node of ours that was just created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Its name, without the path.
    pub(crate) name: String,
    /// The transaction that created it.
    pub(crate) czxid: i64,
}

/// A node as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    pub(crate) data: Vec<u8>,
    pub(crate) czxid: i64,
    /// The session that it lives and dies with; 0 if it is not ephemeral.
    pub(crate) owner: i64,
}

/// The children of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Children {
    /// In any order.
    pub(crate) names: Vec<String>,
    /// The last transaction that has created or removed one. So it is not before those that have created the children
    /// that are gone, and before the one that creates the next.
    pub(crate) changed: i64,
}

/// The children of several nodes, listed between two looks at the nodes above them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listings {
    /// Of each node, if it exists.
    pub(crate) children: Vec<Option<Children>>,
    /// The last transaction that had created or removed a child of each node above, before and after; `None` if that did
    /// not exist.
    pub(crate) above: Vec<[Option<i64>; 2]>,
}

/// For a read, a missing node is an answer, not a failure.
pub(crate) fn none_if_missing<T>(reply: Reply<T>) -> Reply<Option<T>> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(RequestFailure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The first operation of a transaction that fails for a node that is missing or closed to us, and why.
fn failing(
    done: Result<Vec<zk::MultiWriteResult>, zk::MultiWriteError>,
) -> Result<Option<(usize, zk::Error)>, zk::Error> {
    match done {
        Ok(_) => Ok(None),
        Err(zk::MultiWriteError::OperationFailed {
            index,
            source: why @ (zk::Error::NoNode | zk::Error::NoAuth),
        }) => Ok(Some((index, why))),
        Err(error) => Err(error.into()),
    }
}

/// Sends a request on the current connection, or on the next one, waits for the reply, and notes
/// what it proves about the session. The last part says why it failed, if it did.
macro_rules! ask {
    ($session:ident, $proves:ident, |$client:ident| $request:expr, $failure:expr) => {{
        let sent = $session.now();
        let reply = loop {
            let connection = $session.connection().await?;
            let Some(call) = connection.send(|$client| $request) else { continue };
            match call.await {
                Err(error) if connection.has_not_sent(&error) => {}
                answer => break answer.map_err($failure),
            }
        };
        $session.note(Proves::$proves, sent, reply)
    }};
}

/// As `ask` for two requests, sent in this order. Both are sent before either is answered.
macro_rules! ask_both {
    (
        $session:ident,
        $proves:ident,
        |$client:ident| $first:expr, $first_failure:expr,
        $second:expr, $second_failure:expr
    ) => {{
        let sent = $session.now();
        let (first, second) = loop {
            let connection = $session.connection().await?;
            let Some((first, second)) = connection.send(|$client| ($first, $second)) else {
                continue;
            };
            match tokio::join!(first, second) {
                (Err(error), _) if connection.has_not_sent(&error) => {}
                (first, second) => {
                    break (first.map_err($first_failure), second.map_err($second_failure));
                }
            }
        };
        ($session.note(Proves::$proves, sent, first)?, $session.note(Proves::Nothing, sent, second))
    }};
}

/// No lock is nested deeper than this; a server that says otherwise is not asked forever.
const DEEPEST: usize = 64;
/// A check with this version tests only existence.
const ANY_VERSION: i32 = -1;

/// Requests are sent when a connection is up and the call is polled, and are executed in the order
/// in which they were sent. A dropped request may still be executed, even much later.
impl Session {
    fn acls(&self) -> zk::Acls<'static> {
        match self.acl {
            Acl::Open => zk::Acls::anyone_all(),
            Acl::Creator => zk::Acls::creator_all(),
        }
    }

    /// Creates a container node, and any missing nodes above it.
    pub(crate) async fn create_parents(&self, path: &str) -> Reply<()> {
        let container = zk::CreateMode::Container.with_acls(self.acls());
        let mut missing = vec![path];
        while let Some(path) = missing.last().copied() {
            match ask!(self, Session, |client| client.create(path, &[], &container), creating(path))
            {
                Ok(_) | Err(RequestFailure::NodeExists) => {
                    missing.pop();
                }
                Err(RequestFailure::NoNode) => match path.rfind('/') {
                    Some(0) => return Err(no_chroot().into()),
                    Some(at) if missing.len() < DEEPEST => missing.push(&path[..at]),
                    _ => return Err(RequestFailure::NoNode),
                },
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Creates a persistent node that everyone may read.
    pub(crate) async fn create_record(&self, path: &str, data: &[u8]) -> Reply<()> {
        let creator = [
            zk::Acl::new(zk::Permission::ALL, zk::AuthId::authed()),
            zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone()),
        ];
        let acls = match self.acl {
            Acl::Open => zk::Acls::anyone_all(),
            Acl::Creator => zk::Acls::new(&creator),
        };
        let mode = zk::CreateMode::Persistent.with_acls(acls);
        ask!(self, Session, |client| client.create(path, data, &mode), creating(path)).map(drop)
    }

    /// Creates an ephemeral sequential node under `parent`, and lists the children of `parent`
    /// right after it.
    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> Reply<(Created, Reply<Vec<String>>)> {
        let path = format!("{parent}/{prefix}");
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        let ((stat, sequence), children) = ask_both!(
            self,
            Session,
            |client| client.create(&path, data, &mode),
            creating(&path),
            client.list_children(parent),
            reading(parent)
        );
        let created = Created { name: format!("{prefix}{sequence}"), czxid: stat.czxid };
        Ok((created, children))
    }

    /// The same, and lists nothing.
    pub(crate) async fn create_last(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> Reply<Created> {
        let path = format!("{parent}/{prefix}");
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        let made = ask!(self, Session, |client| client.create(&path, data, &mode), creating(&path));
        let (stat, sequence) = made?;
        Ok(Created { name: format!("{prefix}{sequence}"), czxid: stat.czxid })
    }

    /// The children of a node, in any order; none if it does not exist.
    pub(crate) async fn list(&self, path: &str) -> Reply<Vec<String>> {
        let listed = ask!(self, Nothing, |client| client.list_children(path), reading(path));
        none_if_missing(listed).map(Option::unwrap_or_default)
    }

    /// Waits until this client's server has caught up with the leader.
    pub(crate) async fn sync(&self, path: &str) -> Reply<()> {
        ask!(self, Leader, |client| client.sync(path), RequestFailure::from)
    }

    /// As [`sync`](Self::sync), and right after it [`list`](Self::list). A server executes the
    /// requests of a session in order, so the listing is no older than the leader's reply.
    pub(crate) async fn sync_and_list(&self, path: &str) -> Reply<Vec<String>> {
        let ((), listed) = ask_both!(
            self,
            Leader,
            |client| client.sync(path),
            RequestFailure::from,
            client.list_children(path),
            reading(path)
        );
        none_if_missing(listed).map(Option::unwrap_or_default)
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<NodeRecord>> {
        let read =
            none_if_missing(ask!(self, Nothing, |client| client.get_data(path), reading(path)))?;
        Ok(read.map(|(data, stat)| NodeRecord {
            data,
            czxid: stat.czxid,
            owner: stat.ephemeral_owner,
        }))
    }

    /// Watches a node while the current connection lasts; `None` if it does not exist, and then no
    /// watch is left on the server.
    pub(crate) async fn watch(&self, path: &str) -> Reply<Option<NodeWatch>> {
        let sent = self.now();
        loop {
            let connection = self.connection().await?;
            // As Curator does: a watch by reading the data leaves nothing behind on a missing node.
            let call = connection.send(|client| client.get_and_watch_data(path));
            let Some(call) = call else { continue };
            match call.await {
                Err(error) if connection.has_not_sent(&error) => {}
                answer => {
                    let read = answer.map_err(reading(path));
                    let read = none_if_missing(self.note(Proves::Nothing, sent, read))?;
                    return Ok(read.map(|(_, _, watcher)| connection.listen(watcher)));
                }
            }
        }
    }

    /// Lists the children of these nodes, and looks at the nodes `above`, all sent together. A transaction that changes
    /// nothing is sent before them: since it takes a majority, they show everything that was committed when they were
    /// asked for. After a `sync` they need not: a leader that was deposed and does not know it yet answers that, too.
    pub(crate) async fn list_all(&self, above: &[&str], paths: &[String]) -> Reply<Listings> {
        let sent = self.now();
        loop {
            let connection = self.connection().await?;
            let mut transaction = connection.client().new_multi_writer();
            transaction.add_check_version(above[0], ANY_VERSION)?;
            let asked = connection.send(|client| {
                let look = || above.iter().map(|path| client.check_stat(path)).collect::<Vec<_>>();
                let (commit, before) = (transaction.commit(), look());
                let lists: Vec<_> = paths.iter().map(|path| client.get_children(path)).collect();
                (commit, before, lists, look())
            });
            let Some((commit, before, lists, after)) = asked else { continue };
            let committed = match failing(commit.await) {
                Err(error) if connection.has_not_sent(&error) => continue,
                committed => committed.map_err(RequestFailure::from),
            };
            self.note(Proves::Session, sent, committed)?;
            let read = async {
                let mut listings = Listings { children: Vec::new(), above: Vec::new() };
                for (list, path) in lists.into_iter().zip(paths) {
                    let listed = list.await.map_err(reading(path));
                    let children =
                        listed.map(|(names, stat)| Children { names, changed: stat.pzxid });
                    listings.children.push(none_if_missing(children)?);
                }
                for ((before, after), path) in before.into_iter().zip(after).zip(above) {
                    let both = [before.await, after.await].map(|stat| stat.map_err(reading(path)));
                    let [before, after] = both;
                    let changed = |stat: Option<zk::Stat>| stat.map(|stat| stat.pzxid);
                    listings.above.push([changed(before?), changed(after?)]);
                }
                Ok(listings)
            };
            return self.note(Proves::Nothing, sent, read.await);
        }
    }

    /// Commits one transaction. The first operation that fails for a node that is missing or closed to us, and why.
    async fn commit(
        &self,
        fill: impl Fn(&mut zk::MultiWriter<'_>) -> Result<(), zk::Error>,
    ) -> Reply<Option<(usize, zk::Error)>> {
        let sent = self.now();
        loop {
            let connection = self.connection().await?;
            let mut transaction = connection.client().new_multi_writer();
            fill(&mut transaction)?;
            let Some(commit) = connection.send(|_| transaction.commit()) else { continue };
            let done = match failing(commit.await) {
                Err(error) if connection.has_not_sent(&error) => continue,
                done => done.map_err(RequestFailure::from),
            };
            return self.note(Proves::Session, sent, done);
        }
    }

    /// The first of these nodes that is missing or closed to us, and the answer for it alone; those
    /// before it exist. One transaction of checks that changes nothing and, unlike a read, is
    /// committed by the leader.
    pub(crate) async fn first_failing(
        &self,
        paths: &[&str],
    ) -> Reply<Option<(usize, Reply<bool>)>> {
        let checks = |transaction: &mut zk::MultiWriter<'_>| {
            paths.iter().try_for_each(|path| transaction.add_check_version(path, ANY_VERSION))
        };
        Ok(self.commit(checks).await?.map(|(index, why)| match why {
            zk::Error::NoNode => (index, Ok(false)),
            why => (index, Err(reading(paths.get(index).copied().unwrap_or_default())(why))),
        }))
    }

    /// Deletes a node if `next` exists: one transaction, which the leader commits. `None` if `next` does not exist or
    /// is closed to us, and then nothing is deleted.
    pub(crate) async fn delete_before(&self, path: &str, next: &str) -> Reply<Option<Released>> {
        let failing = self.commit(|transaction| {
            transaction.add_delete(path, None)?;
            transaction.add_check_version(next, ANY_VERSION)
        });
        Ok(match failing.await? {
            None => Some(Released::Freed),
            Some((0, zk::Error::NoNode)) => Some(Released::AlreadyGone),
            Some(_) => None,
        })
    }

    /// Whether the leader knows this node: a server that is behind would show a node that is gone.
    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        match self.first_failing(&[path]).await? {
            Some((_, answer)) => answer,
            None => Ok(true),
        }
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply<Released> {
        match ask!(self, Session, |client| client.delete(path, None), deleting(path)) {
            Ok(()) => Ok(Released::Freed),
            Err(RequestFailure::NoNode) => Ok(Released::AlreadyGone),
            Err(failure) => Err(failure),
        }
    }
}
