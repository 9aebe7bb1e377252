//! The port of a proxy.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A free port on loopback that nobody else gets as long as this lives, whether or not anybody
/// listens on it: a connection to it is refused in between.
pub(super) struct Port {
    _reserved: TcpSocket,
    address: SocketAddr,
}

impl Port {
    pub(super) fn take() -> io::Result<Self> {
        let reserved = shared((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = reserved.local_addr()?;
        Ok(Self { _reserved: reserved, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        shared(self.address)?.listen(BACKLOG)
    }
}

/// A socket that shares its port with others of this user. The system gives no such port to anybody
/// who asks for any.
fn shared(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}
