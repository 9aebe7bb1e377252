//! The handful of requests that the recipe needs.

use std::sync::Arc;

use zookeeper_client as zk;

use super::line::{Heard, Listening};
use super::{Checked, Entered, Failure, Link, Node, Watch};
use crate::config::Access;

/// Sends a request on the present connection, or on the next one, and waits for its answer.
macro_rules! ask {
    ($link:expr, |$client:ident| $request:expr) => {
        loop {
            let line = $link.line().await?;
            let Some(call) = line.send(|$client| $request) else { continue };
            match call.await {
                Err(error) if was_not_sent(&error) => {}
                answer => break fail(answer),
            }
        }
    };
}

/// Whether the connection went before the driver had taken the request: then nobody has it, and the driver
/// says that it "got none" of an answer. What it had taken ends with another error.
fn was_not_sent(error: &zk::Error) -> bool {
    matches!(error, zk::Error::UnexpectedError(why) if why.ends_with("response, but got none"))
}

/// Requests are sent when a connection is there and the call is polled, and are executed in the order of
/// their sending. One that is dropped may be executed all the same, also much later.
impl Link {
    fn acls(&self) -> zk::Acls<'static> {
        match self.access {
            Access::Open => zk::Acls::anyone_all(),
            Access::Creator => zk::Acls::creator_all(),
        }
    }

    /// Makes a container node.
    pub(crate) async fn create_parent(&self, path: &str) -> Result<(), Failure> {
        let container = zk::CreateMode::Container.with_acls(self.acls());
        ask!(self, |client| client.create(path, &[], &container)).map(drop)
    }

    /// Makes a persistent node that everybody may read.
    pub(crate) async fn create_record(&self, path: &str, data: &[u8]) -> Result<(), Failure> {
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
    /// after it. Both requests are on their way before either is answered.
    pub(crate) async fn enter(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Result<Entered, Failure>, Result<Vec<String>, Failure>) {
        let path = format!("{parent}/{prefix}");
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        loop {
            let line = match self.line().await {
                Ok(line) => line,
                Err(failure) => return (Err(failure.clone()), Err(failure)),
            };
            // In this order.
            let sent = line
                .send(|client| (client.create(&path, data, &mode), client.list_children(parent)));
            let Some((create, list)) = sent else { continue };
            let (created, listed) = tokio::join!(create, list);
            if created.as_ref().is_err_and(was_not_sent) {
                continue;
            }
            let entered = fail(created).map(|(stat, sequence)| Entered {
                name: format!("{prefix}{sequence}"),
                czxid: stat.czxid,
            });
            return (entered, fail(listed));
        }
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<String>, Failure> {
        ask!(self, |client| client.list_children(path))
    }

    /// Waits until this client's server has seen everything that the leader had done.
    pub(crate) async fn sync(&self, path: &str) -> Result<(), Failure> {
        ask!(self, |client| client.sync(path))
    }

    /// As [`sync`](Self::sync), and right after it a listing of the children. Both requests are on their
    /// way before either is answered. A server executes the requests of a session in order, so the
    /// listing is no older than the answer of the leader.
    pub(crate) async fn sync_and_list(
        &self,
        path: &str,
    ) -> (Result<(), Failure>, Result<Vec<String>, Failure>) {
        loop {
            let line = match self.line().await {
                Ok(line) => line,
                Err(failure) => return (Err(failure.clone()), Err(failure)),
            };
            // In this order.
            let sent = line.send(|client| (client.sync(path), client.list_children(path)));
            let Some((sync, list)) = sent else { continue };
            let (synced, listed) = tokio::join!(sync, list);
            if !synced.as_ref().is_err_and(was_not_sent) {
                return (fail(synced), fail(listed));
            }
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Option<Node>, Failure> {
        let found = none_if_missing(ask!(self, |client| client.get_data(path)))?;
        Ok(found.map(|(data, stat)| Node { data, czxid: stat.czxid, owner: stat.ephemeral_owner }))
    }

    /// Watches a node; `None` if it does not exist, and then nothing is left on the server. The watch is
    /// set again on every connection that follows, so it misses nothing.
    pub(crate) async fn watch(self: &Arc<Self>, path: &str) -> Result<Option<Watch>, Failure> {
        let Some(mut listening) = self.listen(path).await? else { return Ok(None) };
        let (link, path) = (Arc::clone(self), path.to_owned());
        Ok(Some(Box::pin(async move {
            while listening.await == Heard::Cut {
                listening = loop {
                    match link.listen(&path).await {
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

    async fn listen(&self, path: &str) -> Result<Option<Listening>, Failure> {
        loop {
            let line = self.line().await?;
            // As Curator does: a watch by reading the data leaves nothing behind on a missing node.
            let sent = line.send(|client| client.get_and_watch_data(path));
            let Some(call) = sent else { continue };
            match call.await {
                Err(error) if was_not_sent(&error) => {}
                answer => {
                    let found = none_if_missing(fail(answer))?;
                    return Ok(found.map(|(_, _, watcher)| line.listen(watcher)));
                }
            }
        }
    }

    /// Watches the children of a node. Only a mutant does.
    #[cfg(distlock_mutants)]
    pub(crate) async fn watch_children(&self, path: &str) -> Result<Option<Watch>, Failure> {
        let line = self.line().await?;
        let found = none_if_missing(fail(line.client().list_and_watch_children(path).await))?;
        Ok(found.map(|(_, watcher)| {
            let listening = line.listen(watcher);
            Box::pin(async move {
                listening.await;
            }) as Watch
        }))
    }

    /// One transaction that checks that all these nodes exist, and changes nothing. It is committed
    /// by the leader, unlike a read.
    pub(crate) async fn check(&self, paths: &[&str]) -> Result<Checked, Failure> {
        loop {
            let line = self.line().await?;
            let mut transaction = line.client().new_multi_writer();
            for path in paths {
                fail(transaction.add_check_version(path, ANY_VERSION))?;
            }
            let Some(commit) = line.send(|_| transaction.commit()) else { continue };
            match commit.await {
                Ok(_) => return Ok(Checked::All),
                Err(zk::MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                    return Ok(Checked::Missing(index));
                }
                Err(error) => match error.into() {
                    error if was_not_sent(&error) => {}
                    error => return Err(failure(&error)),
                },
            }
        }
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        ask!(self, |client| client.delete(path, None))
    }
}

/// A check with this version asks for existence alone.
const ANY_VERSION: i32 = -1;

/// What the server or the driver said.
pub(crate) fn failure(error: &zk::Error) -> Failure {
    match error {
        zk::Error::NoNode => Failure::NoNode,
        zk::Error::NodeExists => Failure::NodeExists,
        zk::Error::NotEmpty => Failure::NotEmpty,
        zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => Failure::Denied,
        zk::Error::SessionExpired | zk::Error::ClientClosed => Failure::SessionEnded,
        zk::Error::Unimplemented => Failure::TooOld,
        zk::Error::BadArguments(_)
        | zk::Error::BadVersion
        | zk::Error::NoChildrenForEphemerals
        | zk::Error::NotReadOnly
        | zk::Error::QuotaExceeded
        | zk::Error::Throttled
        | zk::Error::MarshallingError
        | zk::Error::NoHosts => Failure::Refused(error.to_string()),
        // A moved session, a lost connection, a silent one, and whatever nobody has thought of.
        _ => Failure::Unknown(error.to_string()),
    }
}

fn fail<T>(result: Result<T, zk::Error>) -> Result<T, Failure> {
    result.map_err(|error| failure(&error))
}

fn none_if_missing<T>(result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_unknown() {
        for error in [zk::Error::ConnectionLoss, zk::Error::Timeout, zk::Error::SessionMoved] {
            assert!(matches!(failure(&error), Failure::Unknown(_)), "{error}");
        }
        assert_eq!(failure(&zk::Error::NoNode), Failure::NoNode);
        assert_eq!(failure(&zk::Error::SessionExpired), Failure::SessionEnded);
    }
}
