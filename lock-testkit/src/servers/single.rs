//! A server that is one process.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use conformance_tests::Unavailable;
use lock_core::async_trait;
use rustix::process::Signal;

use super::contract::Servers;
use super::daemon::{Daemon, until_started};
use super::process::{free_port, url_from};

/// What is different from one kind of server to the other. A value is the folder of one server.
pub trait Kind: fmt::Debug + Sized + Send + Sync + 'static {
    /// The program.
    const PROGRAM: &'static str;
    /// The package of Debian that has it.
    const PACKAGE: &'static str;
    /// The variable that names a server to use in place of a local program.
    const URL: &'static str;
    /// How long it may take to start.
    const START_LIMIT: Duration;
    /// What makes it end in order, without waiting for its clients.
    const STOP: Signal;
    /// What ends it with its value, if it must not be killed.
    const END: Option<Signal> = None;

    /// A folder with all that a server needs.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not installed.
    fn prepare() -> Result<Self, Unavailable>;

    /// The folder, in which the server's log is.
    fn folder(&self) -> &Path;

    /// The URL of a server of the test's own.
    fn url(address: SocketAddr) -> String;

    /// One more setting, as the command line has it.
    fn option(name: &str, value: &str) -> Vec<String>;

    /// Starts it.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn command(&self, port: u16) -> Result<Command, Unavailable>;

    /// Whether the server with this process id answers.
    fn answers(&self, address: SocketAddr, id: u32) -> bool;

    /// Removes what a killed server has left outside of its folder.
    fn clean_up(&self) {}
}

/// A server of the test's own, or the one that [`Kind::URL`] names.
///
/// Its own server hands what it acknowledges to the operating system before: a kill and a restart lose
/// nothing of that.
pub struct Server<K: Kind> {
    own: Option<Own<K>>,
    url: String,
}

struct Own<K: Kind> {
    port: u16,
    options: Vec<String>,
    /// Ends before its folder goes, or it would write into it again.
    daemon: Daemon,
    kind: K,
}

/// Settings of a server of one's own.
#[derive(Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder<K> {
    options: Vec<String>,
    kind: PhantomData<K>,
}

impl<K: Kind> Builder<K> {
    /// One more setting of the server, by its name.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend(K::option(name, value));
        self
    }

    /// Starts the server and waits until it answers. Never the one of [`Kind::URL`], whose settings are
    /// not ours.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not installed, with the package that has it;
    /// [`Unavailable::broken`] if it does not start, with what it has logged.
    pub async fn start(self) -> Result<Server<K>, Unavailable> {
        until_started(|| Self::start_once(&self.options)).await
    }

    async fn start_once(options: &[String]) -> Result<Server<K>, Unavailable> {
        let (port, kind) = (free_port()?, K::prepare()?);
        let daemon = Daemon::new(K::PROGRAM, K::PACKAGE, kind.folder().join("log"));
        let own = Own { port, options: options.to_vec(), daemon, kind };
        own.start().await?;
        Ok(Server { url: K::url(own.address()), own: Some(own) })
    }
}

impl<K: Kind> Server<K> {
    /// The server that [`Kind::URL`] names, else one of the test's own.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start() -> Result<Self, Unavailable> {
        match url_from(K::URL) {
            Some(url) => Ok(Self { own: None, url }),
            None => Self::builder().start().await,
        }
    }

    /// A server of the test's own with settings.
    pub fn builder() -> Builder<K> {
        Builder { options: Vec::new(), kind: PhantomData }
    }

    /// The URL of the server of the test's own, or what the variable says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the test may stop and restart it.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Where the server of the test's own listens.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own.
    pub fn address(&self) -> Result<SocketAddr, Unavailable> {
        Ok(self.own()?.address())
    }

    /// The process id of the server.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if it is not the test's own; [`Unavailable::broken`] if it has ended.
    pub fn pid(&self) -> Result<u32, Unavailable> {
        self.own()?.daemon.id()
    }

    /// The processor time that the server and its children have used since they were started.
    ///
    /// # Errors
    ///
    /// As [`pid`](Self::pid).
    pub fn cpu_time(&self) -> Result<Duration, Unavailable> {
        self.own()?.daemon.cpu_time()
    }

    /// Freezes the server and its children (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// As [`pid`](Self::pid).
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?.daemon.freeze()
    }

    /// Ends [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`pid`](Self::pid).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.own()?.daemon.thaw()
    }

    /// Kills the server and its children (SIGKILL). Nothing listens on its port until it is restarted.
    ///
    /// # Errors
    ///
    /// As [`address`](Self::address).
    pub fn kill(&self) -> Result<(), Unavailable> {
        self.own()?.daemon.kill();
        Ok(())
    }

    /// Stops the server in order, without waiting for its clients.
    ///
    /// # Errors
    ///
    /// As [`address`](Self::address).
    pub fn stop(&self) -> Result<(), Unavailable> {
        self.own()?.daemon.end_by(K::STOP)
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
    /// The URL may have a password, so only a server of the test's own is named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::PROGRAM).field("port", &self.own.as_ref().map(|own| own.port)).finish()
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
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    async fn start(&self) -> Result<(), Unavailable> {
        let mut command = self.kind.command(self.port)?;
        command.args(&self.options);
        self.daemon.spawn(command)?;
        self.daemon.ready(K::START_LIMIT, |id| self.kind.answers(self.address(), id)).await
    }
}

impl<K: Kind> Drop for Own<K> {
    fn drop(&mut self) {
        if let Some(signal) = K::END {
            // One that cannot be asked is killed below.
            let _ = self.daemon.end_by(signal);
        }
        self.daemon.kill();
        self.kind.clean_up();
    }
}
