//! What the kernel counts, besides what `lock_testkit::usage` reads: time and connections. Linux only.

use std::net::SocketAddr;

use rustix::time::{ClockId, clock_gettime};

use crate::Done;

/// Nanoseconds on a clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The established connections to these servers.
pub(crate) fn connections(servers: &[SocketAddr]) -> Done<usize> {
    let ports: Vec<_> = servers.iter().map(|server| format!(":{:04X}", server.port())).collect();
    // Java listens on a socket of version 6 for both.
    let table =
        std::fs::read_to_string("/proc/net/tcp")? + &std::fs::read_to_string("/proc/net/tcp6")?;
    let established = table.lines().filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, local, _, state, ..] = fields[..] else { return false };
        state == "01" && ports.iter().any(|port| local.ends_with(port))
    });
    Ok(established.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on() {
        let before = now();
        assert!(now() > before);
    }

    #[test]
    fn a_connection_is_counted_at_the_side_of_the_server() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        assert_eq!(connections(&[address]).unwrap(), 0);
        let _client = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(connections(&[address]).unwrap(), 1);
    }
}
