//! Ports for servers.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::Unavailable;

/// Below the ports that Linux, macOS and Windows give to outgoing connections, one of which could
/// otherwise take the port of a server that is being restarted.
const NUMBERS: Range<u32> = 20_000..32_000;

/// A loopback port for a server, which no other value of this type has: in this process, and in all
/// others on the machine.
///
/// The port itself is not open. Its reservation is the port after it, which this process listens on
/// as long as the value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: TcpListener,
}

impl Port {
    /// Reserves a port on which nothing listens.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if all are taken.
    pub fn reserve() -> Result<Self, Unavailable> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pairs = (NUMBERS.end - NUMBERS.start) / 2;
        // Processes begin at different places, and a port that was given up rests before it is used again.
        let start = std::process::id().wrapping_mul(619);
        (0..pairs)
            .find_map(|_| {
                let pair = start.wrapping_add(NEXT.fetch_add(1, Relaxed)) % pairs;
                Self::try_reserve(u16::try_from(NUMBERS.start + 2 * pair).ok()?)
            })
            .ok_or_else(|| Unavailable::broken(format!("no loopback port of {NUMBERS:?} is free")))
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let reservation = TcpListener::bind((Ipv4Addr::LOCALHOST, number + 1)).ok()?;
        // A server that asked nobody may be there. To listen for a moment would not do: a process that is
        // being started at this moment has a copy of each socket until its program runs.
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, number));
        server.is_err().then_some(Self { number, _reservation: reservation })
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on 127.0.0.1.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// Shows the number.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_nothing_listens_on_it() {
        let ports: Vec<_> = (0..100).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        assert!(TcpStream::connect(ports[0].address()).is_err());
    }

    /// Another process has the same means as this one to see that a port is taken.
    #[test]
    fn a_reserved_port_and_one_with_a_server_are_passed_over() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        assert!(Port::try_reserve(number).is_none(), "it is reserved");
        let server = TcpListener::bind(port.address()).unwrap();
        drop(port);
        assert!(Port::try_reserve(number).is_none(), "a server listens there");
        drop(server);
        assert!(Port::try_reserve(number).is_some());
    }
}
