//! Links between the members of a cluster, which can be cut off one by one, or be long.
//!
//! Every member announces a forwarder as its address. The connecting member is identified by the
//! process that owns the other end of the connection, since both directions of a cut-off member
//! have to be cut.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use conformance_tests::Unavailable;
use conformance_tests::server::Proxy;

/// The forwarders in front of the members. They have their own runtime: a test that blocks a shared
/// one would stop its cluster.
#[derive(Debug, Default)]
pub(super) struct PeerLinks {
    runtime: Option<Runtime>,
    can_be_cut: bool,
    far: Vec<Proxy>,
}

/// What all forwarders of a cluster know.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// The member of each process.
    pub(super) members: std::sync::Mutex<Vec<(u32, usize)>>,
    cut_off: watch::Sender<HashSet<usize>>,
}

impl Peers {
    pub(super) fn cut_off(&self, member: usize, cut: bool) {
        self.cut_off.send_modify(|members| {
            if cut {
                members.insert(member);
            } else {
                members.remove(&member);
            }
        });
    }

    fn member_of(&self, port: u16, listener: u16) -> Option<usize> {
        let members = self.members.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let socket = socket_of(port, listener)?;
        members.iter().find(|(pid, _)| owns(*pid, &socket)).map(|(_, member)| *member)
    }
}

/// The name of the socket from `port` to `listener`, as `/proc/<pid>/fd` shows it.
fn socket_of(port: u16, listener: u16) -> Option<String> {
    let ends_with = |field: Option<&&str>, port: u16| {
        let found = field.and_then(|field| field.rsplit_once(':'));
        found.and_then(|(_, found)| u16::from_str_radix(found, 16).ok()) == Some(port)
    };
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let matches = ends_with(fields.get(1), port)
            && ends_with(fields.get(2), listener)
            && *fields.get(9)? != "0";
        matches.then(|| format!("socket:[{}]", fields[9]))
    })
}

fn owns(pid: u32, socket: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| {
        std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket)
    })
}

impl PeerLinks {
    /// Starts one more forwarder, and returns where it listens.
    pub(super) fn add(
        &mut self,
        peers: &Arc<Peers>,
        member: usize,
        upstream: SocketAddr,
    ) -> Result<SocketAddr, Unavailable> {
        self.can_be_cut = true;
        let listening = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listening().map_err(broken)?;
        let runtime = self.runtime().map_err(broken)?;
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(broken)?;
        runtime.spawn(accept(listener, Arc::clone(peers), member, upstream));
        Ok(address)
    }

    /// The same, for a forwarder that takes `delay` for whatever it passes on, and cannot be cut.
    pub(super) async fn add_far(
        &mut self,
        upstream: SocketAddr,
        delay: Duration,
    ) -> Result<SocketAddr, Unavailable> {
        let starting = self.runtime().map_err(broken)?.spawn(Proxy::start(upstream));
        let proxy = starting.await.map_err(|error| broken(error.into()))??;
        proxy.delay(delay, Duration::ZERO);
        let address = proxy.address();
        self.far.push(proxy);
        Ok(address)
    }

    fn runtime(&mut self) -> std::io::Result<&Runtime> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
        };
        Ok(self.runtime.insert(runtime))
    }

    pub(super) fn can_be_cut(&self) -> bool {
        self.can_be_cut
    }
}

impl Drop for PeerLinks {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn broken(error: std::io::Error) -> Unavailable {
    Unavailable::broken(format!("no peer link: {error}"))
}

async fn accept(listener: TcpListener, peers: Arc<Peers>, member: usize, upstream: SocketAddr) {
    let Ok(address) = listener.local_addr() else { return };
    loop {
        let Ok((client, from)) = listener.accept().await else { continue };
        let peers = Arc::clone(&peers);
        tokio::spawn(async move {
            // Scanning /proc must not delay traffic between the other members.
            let known = Arc::clone(&peers);
            let find = move || known.member_of(from.port(), address.port());
            // A process that is not found has already ended.
            let Ok(Some(source)) = tokio::task::spawn_blocking(find).await else { return };
            let mut cut_off = peers.cut_off.subscribe();
            let is_cut = |cut: &HashSet<usize>| cut.contains(&source) || cut.contains(&member);
            if is_cut(&cut_off.borrow_and_update()) {
                // Silence, as with a pulled cable: a refused connection would be retried at once.
                let _ = cut_off.wait_for(|cut| !is_cut(cut)).await;
                return;
            }
            tokio::select! {
                biased;
                _ = cut_off.wait_for(is_cut) => {}
                () = forward(client, upstream) => {}
            }
        });
    }
}

async fn forward(mut client: TcpStream, upstream: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(upstream).await {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
