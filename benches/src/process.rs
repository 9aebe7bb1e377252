//! What the kernel counts: time, processors, memory and connections. Linux only.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Done;

/// Nanoseconds on a clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The processor time of a process so far, by its id.
pub(crate) fn cpu(process: u32) -> Done<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program may contain blanks; fields 14 and 15 count ticks, of which Linux has
    // 100 a second (proc(5)).
    let (_, fields) = stat.rsplit_once(')').ok_or("no times")?;
    let ticks: Result<Vec<u64>, _> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect();
    Ok(Duration::from_millis(ticks?.iter().sum::<u64>() * 10))
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> Done<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
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
    fn this_process_uses_time_and_memory() {
        let before = now();
        assert!(resident().unwrap() > 100_000.0);
        assert!(cpu(std::process::id()).is_ok() && cpu(0).is_err());
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
