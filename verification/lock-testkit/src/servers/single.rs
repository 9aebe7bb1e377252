//! A server that is one process.

use std::ffi::OsString;
use std::fmt;
use std::future::ready;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::Servers;
use conformance_tests::server::{Port, Process};
use lock_core::async_trait;
use rustix::process::Signal;

use super::process::{START_LIMIT, cpu_time, from_package, url_from};

/// What differs between kinds of servers. A value is the folder of one server.
pub trait Kind: fmt::Debug + Sized + Send + Sync + 'static {
    /// The program.
    const PROGRAM: &'static str;
    /// The Debian package that contains it.
    const PACKAGE: &'static str;
    /// The variable that names a server to use instead of a local program.
    const URL: &'static str;
    /// The signal for an orderly shutdown, without waiting for its clients.
    const STOP: Signal;
    /// The signal that ends it when its value is dropped, if it must not be killed.
    const END: Option<Signal> = None;

    /// A folder with everything a server needs.
    fn prepare() -> Result<Self, Unavailable>;

    /// The folder, in which the server's log is.
    fn folder(&self) -> &Path;

    /// The URL of the test's own server.
    fn url(address: SocketAddr) -> String;

    /// One more setting, as on the command line.
    fn option(name: &str, value: &str) -> Vec<String>;

    /// Starts it.
    fn command(&self, port: u16) -> Result<Command, Unavailable>;

    /// Whether the server with this process id answers.
    fn answers(&self, address: SocketAddr, id: u32) -> bool;

    /// Removes what a killed server has left outside its folder.
    fn clean_up(&self) {}
}

/// The test's own server, or the one that [`Kind::URL`] names.
///
/// The test's own server hands data to the operating system before acknowledging it: a kill and a
/// restart lose nothing acknowledged.
pub struct Server<K: Kind> {
    own: Option<Own<K>>,
    url: String,
}

struct Own<K: Kind> {
    options: Vec<String>,
    variables: Vec<(String, OsString)>,
    /// Dropped before its folder is removed, or it would write into it again.
    process: Process,
    kind: K,
    port: Port,
}

/// Settings for the test's own server.
#[derive(Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder<K> {
    options: Vec<String>,
    variables: Vec<(String, OsString)>,
    kind: PhantomData<K>,
}

impl<K: Kind> Builder<K> {
    /// One more setting of the server, by its name.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend(K::option(name, value));
        self
    }

    /// A variable in the environment of the server.
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Starts the server and waits until it answers. Never uses the one of [`Kind::URL`], whose
    /// settings are not ours.
    pub async fn start(self) -> Result<Server<K>, Unavailable> {
        self.start_in(K::prepare()?).await
    }

    /// The same in a folder that has been prepared.
    pub(super) async fn start_in(self, kind: K) -> Result<Server<K>, Unavailable> {
        let port = Port::reserve()?;
        let process = from_package(K::PROGRAM, K::PACKAGE, kind.folder().join("log"));
        let Self { options, variables, .. } = self;
        let own = Own { options, variables, process, kind, port };
        own.start().await?;
        Ok(Server { url: K::url(own.address()), own: Some(own) })
    }
}

impl<K: Kind> Server<K> {
    /// The server that [`Kind::URL`] names, or else the test's own.
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(K::URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// The test's own server, with settings.
    pub fn builder() -> Builder<K> {
        Builder { options: Vec::new(), variables: Vec::new(), kind: PhantomData }
    }

    /// The URL of the test's own server, or the value of the variable.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Where the test's own server listens.
    pub fn address(&self) -> Result<SocketAddr, Unavailable> {
        Ok(self.own()?.address())
    }

    /// The process id of the server.
    pub fn pid(&self) -> Result<u32, Unavailable> {
        self.own()?.process.id()
    }

    /// The processor time that the server and its children have used since they were started.
    pub fn cpu_time(&self) -> Result<Duration, Unavailable> {
        cpu_time(&self.own()?.process)
    }

    /// Freezes the server and its children (SIGSTOP): connections stay open, nothing is answered.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?.process.freeze()
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?.process.thaw()
    }

    /// Kills the server and its children (SIGKILL). Nothing listens on its port until it is restarted.
    pub fn kill(&self) -> Result<(), Unavailable> {
        self.own()?.process.kill();
        Ok(())
    }

    /// Shuts the server down in an orderly way, without waiting for its clients.
    pub fn stop(&self) -> Result<(), Unavailable> {
        self.own()?.process.end_by(K::STOP.as_raw())
    }

    /// Kills the server if it runs, and starts it again on the same port with its data.
    pub(super) async fn start_again(&self) -> Result<(), Unavailable> {
        self.kill()?;
        self.own()?.start().await
    }

    /// The folder of the server.
    pub(super) fn kind(&self) -> Result<&K, Unavailable> {
        Ok(&self.own()?.kind)
    }

    fn own(&self) -> Result<&Own<K>, Unavailable> {
        self.own.as_ref().ok_or_else(|| {
            Unavailable::missing(format!("the server of {} is not ours to disturb", K::URL))
        })
    }
}

impl<K: Kind> fmt::Debug for Server<K> {
    /// The URL may contain a password, so only the test's own server is named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::PROGRAM)
            .field("port", &self.own.as_ref().map(|own| own.port.number()))
            .finish()
    }
}

#[async_trait]
impl<K: Kind> Servers for Server<K> {
    fn foreign(&self) -> Option<&str> {
        self.own.is_none().then_some(&self.url)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.own.iter().map(Own::address).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        Self::freeze(self)
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        Self::thaw(self)
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.start_again().await
    }
}

impl<K: Kind> Own<K> {
    fn address(&self) -> SocketAddr {
        self.port.address()
    }

    async fn start(&self) -> Result<(), Unavailable> {
        let mut command = self.kind.command(self.port.number())?;
        command.args(&self.options);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        self.process.spawn(&mut command)?;
        let answers = |id| ready(self.kind.answers(self.address(), id));
        self.process.ready(START_LIMIT, answers).await
    }
}

impl<K: Kind> Drop for Own<K> {
    fn drop(&mut self) {
        if let Some(signal) = K::END {
            // A server that cannot be asked is killed below.
            let _ = self.process.end_by(signal.as_raw());
        }
        self.process.kill();
        self.kind.clean_up();
    }
}
