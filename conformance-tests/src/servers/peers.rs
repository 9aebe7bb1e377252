//! Links between the members of a cluster, which can be cut off one by one.
//!
//! Every member announces a forwarder as its address. Who connects is found by the process that owns
//! the other end of the connection, since both directions of a cut-off member have to be cut.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Unavailable;

/// The forwarder in front of one member.
#[derive(Debug)]
pub(super) struct PeerLink {
    address: SocketAddr,
    acceptor: JoinHandle<()>,
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

    fn member_of(&self, port: u16) -> Option<usize> {
        let members = self.members.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let socket = socket_of(port)?;
        members.iter().find(|(pid, _)| owns(*pid, &socket)).map(|(_, member)| *member)
    }
}

/// The name of the socket whose local port is `port`, as `/proc/<pid>/fd` shows it.
fn socket_of(port: u16) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let matches = u16::from_str_radix(local, 16).ok()? == port && *fields.get(9)? != "0";
        matches.then(|| format!("socket:[{}]", fields[9]))
    })
}

fn owns(pid: u32, socket: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| {
        std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket)
    })
}

impl PeerLink {
    pub(super) async fn start(
        peers: &Arc<Peers>,
        member: usize,
        upstream: SocketAddr,
    ) -> Result<Self, Unavailable> {
        let broken = |error: std::io::Error| Unavailable::broken(format!("no peer link: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        let acceptor = tokio::spawn(accept(listener, Arc::clone(peers), member, upstream));
        Ok(Self { address, acceptor })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn accept(listener: TcpListener, peers: Arc<Peers>, member: usize, upstream: SocketAddr) {
    loop {
        let Ok((client, from)) = listener.accept().await else { continue };
        let peers = Arc::clone(&peers);
        tokio::spawn(async move {
            // Whoever is not found has gone already.
            let Some(source) = peers.member_of(from.port()) else { return };
            let mut cut_off = peers.cut_off.subscribe();
            let is_cut = |cut: &HashSet<usize>| cut.contains(&source) || cut.contains(&member);
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
