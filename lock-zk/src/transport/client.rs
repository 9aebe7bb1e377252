//! The transport on the crate `zookeeper-client`: its primitives only.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::async_trait;
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;

use super::{Checked, Entered, Failure, Node, Transport, Watch};
use crate::config::{Access, ZkConfig};

pub(crate) struct ClientTransport {
    /// Taken out by `close`. The session is closed when the last user of the client has gone.
    client: Mutex<Option<Arc<zk::Client>>>,
    session_id: i64,
    access: Access,
    chroot_len: usize,
    /// Nobody should use this session any more: see [`Transport::ended`].
    ended: CancellationToken,
    /// The client itself has come to its end: no request is under way.
    finished: CancellationToken,
}

/// Opens a new session, with this timeout if the server allows it. The second value is what the server
/// has made of it.
///
/// # Errors
///
/// As the client says; nothing of this session is on the server then, but perhaps the session itself.
///
/// # Cancel safety
///
/// Cancel-safe: a session that nobody gets ends after its timeout.
pub(crate) async fn open(
    config: &ZkConfig,
    wanted: Duration,
) -> Result<(ClientTransport, Duration), zk::Error> {
    let mut connector = zk::Client::connector()
        .with_session_timeout(wanted)
        // Less than what is left of a lock when its renewal is due, so that a lock outlives a server
        // that falls silent.
        .with_connection_timeout(wanted / 4)
        .with_fail_eagerly();
    if let Some(auth) = &config.auth {
        connector = connector.with_auth("digest", auth.digest().as_bytes());
    }
    let client = connector.connect(&config.endpoint()).await?;
    let timeout = client.session_timeout();
    Ok((ClientTransport::new(client, config.access()), timeout))
}

impl ClientTransport {
    /// Must be called within a runtime, which has to live as long as the session is used.
    pub(crate) fn new(client: zk::Client, access: Access) -> Self {
        let (ended, finished) = (CancellationToken::new(), CancellationToken::new());
        let mut states = client.state_watcher();
        // Also cancelled when this task ends with its runtime, since the client does too.
        let on_end = (ended.clone().drop_guard(), finished.clone().drop_guard());
        tokio::spawn(async move {
            let _on_end = on_end;
            while !states.state().is_terminated() {
                states.changed().await;
            }
        });
        Self {
            session_id: client.session_id().0,
            chroot_len: client.path().trim_end_matches('/').len(),
            client: Mutex::new(Some(Arc::new(client))),
            access,
            ended,
            finished,
        }
    }

    fn client(&self) -> Result<Arc<zk::Client>, Failure> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.as_ref().map(Arc::clone).ok_or(Failure::SessionEnded)
    }

    fn acls(&self) -> zk::Acls<'static> {
        match self.access {
            Access::Open => zk::Acls::anyone_all(),
            Access::Creator => zk::Acls::creator_all(),
        }
    }
}

impl fmt::Debug for ClientTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format_args!("{:#x}", self.session_id);
        f.debug_struct("ClientTransport").field("session", &id).finish_non_exhaustive()
    }
}

impl Drop for ClientTransport {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// What the server or the client said.
pub(crate) fn failure(error: &zk::Error) -> Failure {
    match error {
        zk::Error::NoNode => Failure::NoNode,
        zk::Error::NodeExists => Failure::NodeExists,
        zk::Error::NotEmpty => Failure::NotEmpty,
        zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => Failure::Denied,
        zk::Error::SessionExpired | zk::Error::ClientClosed => Failure::SessionEnded,
        zk::Error::BadArguments(_)
        | zk::Error::BadVersion
        | zk::Error::NoChildrenForEphemerals
        | zk::Error::NotReadOnly
        | zk::Error::QuotaExceeded
        | zk::Error::Throttled
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented
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

fn watch(watcher: zk::OneshotWatcher) -> Watch {
    Box::pin(async move {
        watcher.changed().await;
    })
}

#[async_trait]
impl Transport for ClientTransport {
    fn session_id(&self) -> i64 {
        self.session_id
    }

    fn chroot_len(&self) -> usize {
        self.chroot_len
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    async fn create_parent(&self, path: &str) -> Result<(), Failure> {
        let client = self.client()?;
        let container = zk::CreateMode::Container.with_acls(self.acls());
        let result = match client.create(path, &[], &container).await {
            Err(zk::Error::Unimplemented) => {
                let persistent = zk::CreateMode::Persistent.with_acls(self.acls());
                client.create(path, &[], &persistent).await
            }
            result => result,
        };
        fail(result).map(drop)
    }

    async fn enter(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Result<Entered, Failure>, Result<Vec<String>, Failure>) {
        let client = match self.client() {
            Ok(client) => client,
            Err(failure) => return (Err(failure.clone()), Err(failure)),
        };
        let path = format!("{parent}/{prefix}");
        let mode = zk::CreateMode::EphemeralSequential.with_acls(self.acls());
        // Both are sent by the calls themselves, in this order.
        let (create, list) = (client.create(&path, data, &mode), client.list_children(parent));
        let (created, listed) = tokio::join!(create, list);
        let entered = fail(created).map(|(stat, sequence)| Entered {
            name: format!("{prefix}{sequence}"),
            czxid: (!stat.is_invalid()).then_some(stat.czxid),
        });
        (entered, fail(listed))
    }

    async fn list(&self, path: &str) -> Result<Vec<String>, Failure> {
        fail(self.client()?.list_children(path).await)
    }

    async fn sync(&self, path: &str) -> Result<(), Failure> {
        fail(self.client()?.sync(path).await)
    }

    async fn get(&self, path: &str) -> Result<Option<Node>, Failure> {
        let found = none_if_missing(fail(self.client()?.get_data(path).await))?;
        Ok(found.map(|(data, stat)| Node { data, czxid: stat.czxid, owner: stat.ephemeral_owner }))
    }

    async fn watch(&self, path: &str) -> Result<Option<Watch>, Failure> {
        // As Curator does: a watch by reading the data leaves nothing behind on a missing node.
        let client = self.client()?;
        let found = none_if_missing(fail(client.get_and_watch_data(path).await))?;
        Ok(found.map(|(_, _, watcher)| watch(watcher)))
    }

    #[cfg(feature = "mutants")]
    async fn watch_children(&self, path: &str) -> Result<Option<Watch>, Failure> {
        let client = self.client()?;
        let found = none_if_missing(fail(client.list_and_watch_children(path).await))?;
        Ok(found.map(|(_, watcher)| watch(watcher)))
    }

    async fn check(&self, paths: &[&str]) -> Result<Checked, Failure> {
        let client = self.client()?;
        let mut transaction = client.new_multi_writer();
        for path in paths {
            fail(transaction.add_check_version(path, ANY_VERSION))?;
        }
        match transaction.commit().await {
            Ok(_) => Ok(Checked::All),
            Err(zk::MultiWriteError::OperationFailed { index, source: zk::Error::NoNode }) => {
                Ok(Checked::Missing(index))
            }
            Err(error) => Err(failure(&error.into())),
        }
    }

    async fn sync_and_list(
        &self,
        path: &str,
    ) -> (Result<(), Failure>, Result<Vec<String>, Failure>) {
        let client = match self.client() {
            Ok(client) => client,
            Err(failure) => return (Err(failure.clone()), Err(failure)),
        };
        // Both are sent by the calls themselves, in this order.
        let (sync, list) = (client.sync(path), client.list_children(path));
        let (synced, listed) = tokio::join!(sync, list);
        (fail(synced), fail(listed))
    }

    async fn delete(&self, path: &str) -> Result<(), Failure> {
        fail(self.client()?.delete(path, None).await)
    }

    async fn close(&self) {
        drop(self.client.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.finished.cancelled().await;
    }
}

/// A check with this version asks for existence alone.
const ANY_VERSION: i32 = -1;

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
