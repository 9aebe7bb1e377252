//! Gives the suite clients of a server that somebody else runs.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use conformance_tests::{Client, Harness, Store, Unavailable};
use distlock::backend::{LockBackend, LockLayer, async_trait};
use distlock::{Error, ErrorKind, Result};

/// A server named by a URL.
#[derive(Clone)]
pub(super) struct Server {
    url: Arc<str>,
    backend: &'static str,
    /// Before the names of all locks, as the URL says.
    prefix: Arc<str>,
}

impl Server {
    pub(super) fn new(url: String, backend: &'static str, prefix: &str) -> Self {
        Self { url: url.into(), backend, prefix: prefix.into() }
    }

    pub(super) fn backend(&self) -> &'static str {
        self.backend
    }
}

/// Without the URL, which may contain a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("backend", &self.backend).finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for Server {
    fn name(&self) -> &str {
        self.backend
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let prefix = format!("{}{}", self.prefix, crate::store::Store::new_name("conformance")?);
        Ok(Box::new(Room { server: self.clone(), prefix }))
    }
}

/// The locks of one case, apart from all others by their prefix.
#[derive(Debug)]
struct Room {
    server: Server,
    prefix: String,
}

#[async_trait]
impl Store for Room {
    async fn client(&self) -> Result<Client> {
        let kept = Kept::default();
        let builder = distlock::builder(&*self.server.url).layer(kept.clone());
        let _locks = builder.connect().await?;
        let backend = kept.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let missing = || Error::new(ErrorKind::Internal, "the builder used no layer");
        Ok(Client::from_arc(backend.ok_or_else(missing)?))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }
}

/// Keeps the backend that a builder has connected.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<Arc<dyn LockBackend>>>>);

impl LockLayer for Kept {
    fn layer(&self, inner: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&inner));
        inner
    }
}
