//! The few requests that the recipe needs.

use std::pin::Pin;
use std::sync::atomic::Ordering;

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
    /// The last transaction that has created or removed a child of it.
    pub(crate) changed: i64,
}

impl From<(Vec<u8>, zk::Stat)> for NodeRecord {
    fn from((data, stat): (Vec<u8>, zk::Stat)) -> Self {
        Self { data, czxid: stat.czxid, owner: stat.ephemeral_owner, changed: stat.pzxid }
    }
}

/// The children of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Children {
    /// In any order.
    pub(crate) names: Vec<String>,
    /// The last transaction that has created or removed one. So it is not before those that have created the children
    /// that are gone, and before the one that creates the next. `None` if it was not read together with them.
    pub(crate) changed: Option<i64>,
}

impl From<(Vec<String>, zk::Stat)> for Children {
    fn from((names, stat): (Vec<String>, zk::Stat)) -> Self {
        Self { names, changed: Some(stat.pzxid) }
    }
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

/// What is read of some nodes, if they exist.
type Reading<'a, T> = Pin<Box<dyn Future<Output = Reply<Vec<Option<T>>>> + Send + 'a>>;

/// Lists the children of these nodes, by one request.
fn listing<'a>(client: &'a zk::Client, paths: &'a [String]) -> Reading<'a, Children> {
    if let [path] = paths {
        let list = client.get_children(path);
        return Box::pin(async move {
            let listed = list.await.map_err(reading(path));
            Ok(vec![none_if_missing(listed.map(Children::from))?])
        });
    }
    let read = read_many(client, paths, |reader, path| {
        reader.add_get_data(path)?;
        reader.add_get_children(path)?;
        reader.add_get_data(path)
    });
    Box::pin(async move { children_in(paths, read.await?) })
}

/// Sends one request that reads several nodes, one after the other. Servers before 3.6 do not know it.
fn read_many<'a>(
    client: &'a zk::Client,
    paths: &'a [String],
    add: fn(&mut zk::MultiReader<'_>, &str) -> Result<(), zk::Error>,
) -> impl Future<Output = Result<Vec<zk::MultiReadResult>, zk::Error>> + Send + 'a {
    let mut reader = client.new_multi_reader();
    let added = paths.iter().try_for_each(|path| add(&mut reader, path));
    let read = reader.commit();
    async move {
        added?;
        read.await
    }
}

/// The children of these nodes, each of which was read before and after its list. If no child has come or gone in
/// between, it is known since when the list is as it is.
fn children_in(paths: &[String], read: Vec<zk::MultiReadResult>) -> Reply<Vec<Option<Children>>> {
    let mut read = read.into_iter();
    let children_of = |path: &String| -> Reply<_> {
        let before = node_in(path, read.next())?;
        let names = none_if_missing(match read.next() {
            Some(zk::MultiReadResult::Children { children }) => Ok(children),
            other => Err(no_result(path, other)),
        })?;
        let [before, after] =
            [before, node_in(path, read.next())?].map(|node| node.map(|node| node.changed));
        Ok(names.map(|names| Children { names, changed: before.filter(|_| before == after) }))
    };
    paths.iter().map(children_of).collect()
}

/// A node that was read among others, if it exists.
fn node_in(path: &str, read: Option<zk::MultiReadResult>) -> Reply<Option<NodeRecord>> {
    none_if_missing(match read {
        Some(zk::MultiReadResult::Data { data, stat }) => Ok(NodeRecord::from((data, stat))),
        other => Err(no_result(path, other)),
    })
}

/// Why one of several nodes was not read.
fn no_result(path: &str, read: Option<zk::MultiReadResult>) -> RequestFailure {
    match read {
        Some(zk::MultiReadResult::Error { err }) => reading(path)(err),
        other => {
            let why = format!("of {path} it read {other:?}");
            RequestFailure::Unknown(zk::Error::UnexpectedError(why))
        }
    }
}

/// The most nodes that one request reads: with the longest names, too, it is below the server's limit for one
/// (`jute.maxbuffer`, 1 MB).
const PACK: usize = 64;

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
    /// right after it. If `parent` may be missing, it is created right before, unless it exists.
    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        may_be_missing: bool,
        prefix: &str,
        data: &[u8],
    ) -> Reply<(Created, Reply<Vec<String>>)> {
        let path = format!("{parent}/{prefix}");
        let container = zk::CreateMode::Container.with_acls(self.acls());
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        let ((stat, sequence), children) = ask_both!(
            self,
            Session,
            |client| {
                let made = may_be_missing.then(|| client.create(parent, &[], &container));
                let created = client.create(&path, data, &mode);
                async move {
                    match made {
                        Some(made) => match tokio::join!(made, created) {
                            (Err(why @ zk::Error::Unimplemented), _) => Err(why),
                            // If it was not made, the other request fails, or did not need it.
                            (_, created) => created,
                        },
                        None => created.await,
                    }
                }
            },
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
        let read = ask!(self, Nothing, |client| client.get_data(path), reading(path));
        Ok(none_if_missing(read)?.map(NodeRecord::from))
    }

    /// Reads these nodes, by one request.
    pub(crate) async fn get_all(&self, paths: &[String]) -> Reply<Vec<Option<NodeRecord>>> {
        if let [path] = paths {
            return Ok(vec![self.get(path).await?]);
        }
        let read = ask!(
            self,
            Nothing,
            |client| read_many(client, paths, |reader, path| reader.add_get_data(path)),
            RequestFailure::from
        );
        paths.iter().zip(read?).map(|(path, read)| node_in(path, Some(read))).collect()
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

    /// How many nodes each request of a look reads.
    pub(crate) fn pack(&self) -> usize {
        if self.is_old.load(Ordering::Relaxed) { 1 } else { PACK }
    }

    /// Lists the children of these nodes, as many by each request as a `pack` has, and looks at the nodes `above`, all
    /// sent together. A transaction that changes nothing is sent before them: since it takes a majority, they show
    /// everything that was committed when they were asked for. After a `sync` they need not: a leader that was deposed
    /// and does not know it yet answers that, too.
    pub(crate) async fn list_all(
        &self,
        above: &[&str],
        paths: &[String],
        pack: usize,
    ) -> Reply<Listings> {
        let sent = self.now();
        loop {
            let connection = self.connection().await?;
            let mut transaction = connection.client().new_multi_writer();
            transaction.add_check_version(above[0], ANY_VERSION)?;
            let asked = connection.send(|client| {
                let look = || above.iter().map(|path| client.check_stat(path)).collect::<Vec<_>>();
                let (commit, before) = (transaction.commit(), look());
                let lists: Vec<_> = paths.chunks(pack).map(|it| listing(client, it)).collect();
                (commit, before, lists, look())
            });
            let Some((commit, before, lists, after)) = asked else { continue };
            let read = async {
                let mut listings = Listings { children: Vec::new(), above: Vec::new() };
                for list in lists {
                    listings.children.extend(list.await?);
                }
                for ((before, after), path) in before.into_iter().zip(after).zip(above) {
                    let both = [before.await, after.await].map(|stat| stat.map_err(reading(path)));
                    let [before, after] = both;
                    let changed = |stat: Option<zk::Stat>| stat.map(|stat| stat.pzxid);
                    listings.above.push([changed(before?), changed(after?)]);
                }
                Reply::Ok(listings)
            };
            let (committed, read) = tokio::join!(commit, read);
            if matches!(read, Err(RequestFailure::TooOld)) {
                // Such a server closes the connection, too.
                connection.end().wait().await;
                return self.note(Proves::Nothing, sent, read);
            }
            let committed = match failing(committed) {
                Err(error) if connection.has_not_sent(&error) => continue,
                committed => committed.map_err(RequestFailure::from),
            };
            self.note(Proves::Session, sent, committed)?;
            return self.note(Proves::Nothing, sent, read);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn node(changed: i64) -> zk::MultiReadResult {
        let stat = zk::Stat {
            czxid: 1,
            mzxid: 1,
            pzxid: changed,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        };
        zk::MultiReadResult::Data { data: Vec::new(), stat }
    }

    fn list(names: &[&str]) -> zk::MultiReadResult {
        let children = names.iter().map(|name| (*name).to_owned()).collect();
        zk::MultiReadResult::Children { children }
    }

    fn failed(err: zk::Error) -> zk::MultiReadResult {
        zk::MultiReadResult::Error { err }
    }

    #[test]
    fn a_list_among_others_is_dated_if_nothing_has_changed_around_it() {
        let paths: Vec<_> = (0..6).map(|at| format!("/locks/{at}")).collect();
        let missing = || failed(zk::Error::NoNode);
        let read = vec![
            [node(7), list(&["a", "b"]), node(7)],
            [node(7), list(&["b"]), node(8)],
            [node(9), list(&[]), node(9)],
            // It is removed after the list, before it, or made before it.
            [node(9), list(&[]), missing()],
            [node(9), missing(), missing()],
            [missing(), list(&["c"]), node(10)],
        ];
        let children = children_in(&paths, read.into_iter().flatten().collect()).expect("read");
        let seen: Vec<_> = children
            .iter()
            .map(|it| it.as_ref().map(|it| (it.names.concat(), it.changed)))
            .collect();
        let of = |names: &str, changed| Some((names.to_owned(), changed));
        let expected =
            [of("ab", Some(7)), of("b", None), of("", Some(9)), of("", None), None, of("c", None)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_was_not_read_among_others_is_told_by_its_cause() {
        let paths = ["/locks/a".to_owned(), "/locks/b".to_owned()];
        let read = |last| children_in(&paths, vec![node(7), list(&[]), node(7), node(7), last]);
        let denied = read(failed(zk::Error::NoAuth));
        assert!(
            matches!(&denied, Err(RequestFailure::Denied(what)) if what.contains("/locks/b")),
            "{denied:?}"
        );
        // The answer to another question, and none at all.
        for short in [read(node(7)), read(list(&[]))] {
            assert!(matches!(short, Err(RequestFailure::Unknown(_))), "{short:?}");
        }
    }
}
