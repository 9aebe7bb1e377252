//! The handful of requests that the recipe needs.

use std::sync::Arc;

use zookeeper_client as zk;

use super::channel::Channel;
use super::driver::{Event, Listening};
use super::reply::{
    Checked, Created, Failure, Node, Reply, Watch, none_if_missing, reply, was_not_sent,
};
use crate::config::Access;

/// Sends a request on the present connection, or on the next one, and waits for its answer.
macro_rules! ask {
    ($channel:expr, |$client:ident| $request:expr) => {
        loop {
            let connection = $channel.connection().await?;
            let Some(call) = connection.send(|$client| $request) else { continue };
            match call.await {
                Err(error) if was_not_sent(&error) => {}
                answer => break reply(answer),
            }
        }
    };
}

/// As `ask` for two requests, sent in this order. Both are on their way before either is answered.
macro_rules! ask_both {
    ($channel:expr, |$client:ident| $first:expr, $second:expr) => {
        loop {
            let connection = match $channel.connection().await {
                Ok(connection) => connection,
                Err(failure) => break (Err(failure.clone()), Err(failure)),
            };
            let Some((first, second)) = connection.send(|$client| ($first, $second)) else {
                continue;
            };
            match tokio::join!(first, second) {
                (Err(error), _) if was_not_sent(&error) => {}
                (first, second) => break (reply(first), reply(second)),
            }
        }
    };
}

/// Requests are sent when a connection is there and the call is polled, and are executed in the order of
/// their sending. One that is dropped may be executed all the same, also much later.
impl Channel {
    fn acls(&self) -> zk::Acls<'static> {
        match self.access {
            Access::Open => zk::Acls::anyone_all(),
            Access::Creator => zk::Acls::creator_all(),
        }
    }

    /// Makes a container node.
    pub(crate) async fn create_parent(&self, path: &str) -> Reply<()> {
        let container = zk::CreateMode::Container.with_acls(self.acls());
        ask!(self, |client| client.create(path, &[], &container)).map(drop)
    }

    /// Makes a persistent node that everybody may read.
    pub(crate) async fn create_record(&self, path: &str, data: &[u8]) -> Reply<()> {
        let creator = [
            zk::Acl::new(zk::Permission::ALL, zk::AuthId::authed()),
            zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone()),
        ];
        let acls = match self.access {
            Access::Open => zk::Acls::anyone_all(),
            Access::Creator => zk::Acls::new(&creator),
        };
        let mode = zk::CreateMode::Persistent.with_acls(acls);
        ask!(self, |client| client.create(path, data, &mode)).map(drop)
    }

    /// Makes an ephemeral sequential node under `parent`, and lists the children of `parent` right
    /// after it.
    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Reply<Created>, Reply<Vec<String>>) {
        let path = format!("{parent}/{prefix}");
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        let (created, listed) = ask_both!(
            self,
            |client| client.create(&path, data, &mode),
            client.list_children(parent)
        );
        let created = created.map(|(stat, sequence)| Created {
            name: format!("{prefix}{sequence}"),
            czxid: stat.czxid,
        });
        (created, listed)
    }

    pub(crate) async fn list(&self, path: &str) -> Reply<Vec<String>> {
        ask!(self, |client| client.list_children(path))
    }

    /// Waits until this client's server has seen everything that the leader had done.
    pub(crate) async fn sync(&self, path: &str) -> Reply<()> {
        ask!(self, |client| client.sync(path))
    }

    /// As [`sync`](Self::sync), and right after it a listing of the children. A server executes the
    /// requests of a session in order, so the listing is no older than the answer of the leader.
    pub(crate) async fn sync_and_list(&self, path: &str) -> (Reply<()>, Reply<Vec<String>>) {
        ask_both!(self, |client| client.sync(path), client.list_children(path))
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<Node>> {
        let read = none_if_missing(ask!(self, |client| client.get_data(path)))?;
        Ok(read.map(|(data, stat)| Node { data, czxid: stat.czxid, owner: stat.ephemeral_owner }))
    }

    /// Watches a node; `None` if it does not exist, and then nothing is left on the server. The watch is
    /// set again on every connection that follows, so it misses nothing.
    pub(crate) async fn watch(self: &Arc<Self>, path: &str) -> Reply<Option<Watch>> {
        let Some(mut listening) = self.listen(path).await? else { return Ok(None) };
        let (channel, path) = (Arc::clone(self), path.to_owned());
        Ok(Some(Box::pin(async move {
            while listening.await == Event::Cut {
                listening = loop {
                    match channel.listen(&path).await {
                        Ok(Some(again)) => break again,
                        // The next connection.
                        Err(Failure::Unknown(_)) => tokio::task::yield_now().await,
                        // It has gone meanwhile, or a look is worth while.
                        Ok(None) | Err(_) => return,
                    }
                };
            }
        })))
    }

    async fn listen(&self, path: &str) -> Reply<Option<Listening>> {
        loop {
            let connection = self.connection().await?;
            // As Curator does: a watch by reading the data leaves nothing behind on a missing node.
            let sent = connection.send(|client| client.get_and_watch_data(path));
            let Some(call) = sent else { continue };
            match call.await {
                Err(error) if was_not_sent(&error) => {}
                answer => {
                    let read = none_if_missing(reply(answer))?;
                    return Ok(read.map(|(_, _, watcher)| connection.listen(watcher)));
                }
            }
        }
    }

    /// One transaction that checks that all these nodes exist, and changes nothing. It is committed
    /// by the leader, unlike a read.
    pub(crate) async fn check_all(&self, paths: &[&str]) -> Reply<Checked> {
        loop {
            let connection = self.connection().await?;
            let mut transaction = connection.client().new_multi_writer();
            for path in paths {
                reply(transaction.add_check_version(path, ANY_VERSION))?;
            }
            let Some(commit) = connection.send(|_| transaction.commit()) else { continue };
            match commit.await {
                Ok(_) => return Ok(Checked::All),
                Err(zk::MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                    return Ok(Checked::Missing(index));
                }
                Err(error) => match error.into() {
                    error if was_not_sent(&error) => {}
                    error => return Err(Failure::from(&error)),
                },
            }
        }
    }

    /// As [`check_all`](Self::check_all) for one node: whether it exists.
    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        Ok(self.check_all(&[path]).await? == Checked::All)
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply<()> {
        ask!(self, |client| client.delete(path, None))
    }
}

/// A check with this version asks for existence alone.
const ANY_VERSION: i32 = -1;
