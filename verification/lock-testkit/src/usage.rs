//! What a process has used, from the counters of the kernel. Linux only.

use std::time::Duration;

/// The processor time of a process so far, with that of its children that have ended; `None` if there is no
/// such process.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain blanks and brackets; fields 14 to 17 count ticks, of which every Linux has 100 a
    // second (proc(5)).
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u64 = fields.map(|field| field.parse::<u64>().ok()).sum::<Option<_>>()?;
    Some(Duration::from_millis(ticks * 10))
}

/// The resident memory of a process, in bytes; `None` if there is no such process.
pub fn resident(pid: u32) -> Option<u64> {
    bytes(pid, "VmRSS:")
}

/// The resident memory of a process that it has asked for, in bytes, without its program and other files; `None` if
/// there is no such process.
pub fn allocated(pid: u32) -> Option<u64> {
    bytes(pid, "RssAnon:")
}

fn bytes(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time(pid).is_some() && cpu_time(0).is_none());
        let (resident, allocated) = (resident(pid).unwrap(), allocated(pid).unwrap());
        assert!(resident > allocated && allocated > 100_000, "{allocated} of {resident}");
        assert!(super::resident(0).is_none() && super::allocated(0).is_none());
    }
}
