//! The clocks of the machine.

use std::fmt::Debug;
use std::path::Path;

use lock_core::{Error, Result};

use crate::sqlite::filesystem::Mounts;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The same, as seen from the root of `proc`.
const BOOT_ID_IN_PROC: &str = "/sys/kernel/random/boot_id";

/// What the statements bind. Injected, so that tests can restart the machine and set its clock.
pub(crate) trait MachineClocks: Debug + Send + Sync + 'static {
    /// The id of the machine's current boot.
    fn boot_id(&self) -> &str;
    /// `CLOCK_BOOTTIME` in µs.
    fn boot_us(&self) -> i64;
    /// The wall clock in µs since 1970. Used for fencing tokens, which rise without it too, and to
    /// tell whether a lease was granted before this boot.
    fn wall_us(&self) -> i64;
    /// What the wall clock, as set now, showed when the machine was started, or a moment later: the
    /// clock it was set from at boot counts whole seconds, so it may have been up to one second
    /// behind.
    fn booted_us(&self) -> i64 {
        self.wall_us().saturating_sub(self.boot_us()).saturating_add(1_000_000)
    }
}

/// The real clocks.
#[derive(Debug)]
pub(crate) struct SystemClocks {
    boot_id: String,
    namespace_us: i64,
}

impl SystemClocks {
    /// Reads the values that do not change while this process runs.
    pub(crate) fn new() -> Result<Self> {
        let boot_id = std::fs::read_to_string(BOOT_ID).map_err(unknown_boot)?;
        let boot_id = boot_id.trim().to_owned();
        if boot_id.is_empty() {
            return Err(unknown_boot(std::io::ErrorKind::UnexpectedEof.into()));
        }
        if !is_the_kernels(&Mounts::read().map_err(unknown_boot)?) {
            return Err(Error::unsupported(format!(
                "something is mounted over {BOOT_ID}, as LXC and systemd-nspawn do, so each container would take itself for a separate machine, and the others' live locks for leftovers of an earlier boot: unmount it in every container that uses this file, or use a store with a server"
            )));
        }
        Ok(Self { boot_id, namespace_us: namespace_offset()? })
    }
}

impl MachineClocks for SystemClocks {
    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn boot_us(&self) -> i64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        time.tv_sec
            .saturating_mul(1_000_000)
            .saturating_add(time.tv_nsec / 1000)
            .saturating_sub(self.namespace_us)
    }

    fn wall_us(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// How far the boot-time clock of this time namespace is ahead of the machine's, in µs
/// (time_namespaces(7)). Containers on one file must agree on the time.
fn namespace_offset() -> Result<i64> {
    let link = |name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let (own, children) = (link("time"), link("time_for_children"));
    if own != children {
        // The file below describes the children's namespace.
        return Err(Error::unsupported(
            "this process has made a time namespace for its children, so its own clock cannot be compared with other processes' clocks: open the store before `unshare`, or in the child",
        ));
    }
    match std::fs::read_to_string("/proc/self/timens_offsets") {
        Ok(text) => boottime_offset(&text).ok_or_else(|| {
            Error::unsupported("the offsets of this process's time namespace in /proc/self/timens_offsets cannot be read")
        }),
        // A kernel without time namespaces.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::unsupported(
            "the offsets of this process's time namespace are not readable",
        )
        .with_source(error)),
    }
}

fn boottime_offset(text: &str) -> Option<i64> {
    let mut fields =
        text.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let seconds: i64 = fields.next()?.parse().ok()?;
    let nanos: i64 = fields.next()?.parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(nanos / 1000)
}

/// Whether the boot id comes from the kernel: part of a `proc` file system, in its proper place.
/// Docker mounts `/proc/sys` on itself, which changes nothing.
fn is_the_kernels(mounts: &Mounts) -> bool {
    let path = Path::new(BOOT_ID);
    let Some(mount) = mounts.of(path) else { return false };
    let inside = path.strip_prefix(&mount.point).map(|rest| mount.root.join(rest));
    mount.kind == "proc" && inside.ok().as_deref() == Some(Path::new(BOOT_ID_IN_PROC))
}

fn unknown_boot(error: std::io::Error) -> Error {
    Error::unsupported(format!(
        "{BOOT_ID} or /proc/self/mountinfo cannot be read, so a restart of the machine could not be detected: mount /proc"
    ))
    .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::filesystem::mounts_tests::mounts;

    #[test]
    fn a_boot_id_that_is_not_the_kernels_is_seen() {
        let plain = "27 1 254:0 / / rw - ext4 /dev/vda rw\n22 27 0:21 / /proc rw - proc proc rw\n";
        let is_the_kernels = |more: &str| is_the_kernels(&mounts(&format!("{plain}{more}")));
        for fine in [
            "",
            // Docker and runc; a read-only bind mount in a systemd unit.
            "30 22 0:21 /sys /proc/sys ro,nosuid - proc proc rw\n",
            "30 22 0:21 /sys/kernel /proc/sys/kernel ro - proc proc rw\n",
            // LXCFS, and paths that are masked.
            "31 22 0:60 /proc/uptime /proc/uptime rw - fuse.lxcfs lxcfs rw\n32 22 0:6 /null /proc/kcore rw - devtmpfs none rw\n",
            // Covered by a new /proc, as `unshare --mount-proc` makes one.
            "33 22 0:61 /.lxc-boot-id /proc/sys/kernel/random/boot_id ro - tmpfs none rw\n34 22 0:62 / /proc rw - proc proc rw\n",
        ] {
            assert!(is_the_kernels(fine), "{fine}");
        }
        for other in [
            // LXC and LXD.
            "33 22 0:61 /.lxc-boot-id /proc/sys/kernel/random/boot_id ro,nosuid,nodev,noexec - tmpfs none rw,size=492k\n",
            // systemd-nspawn, which first mounts /proc/sys on itself.
            "30 22 0:21 /sys /proc/sys ro - proc proc rw\n36 30 0:24 /.#proc-sys-kernel-random-boot-id0af8//deleted /proc/sys/kernel/random/boot_id ro - tmpfs tmpfs rw,mode=755\n",
            "37 22 0:61 / /proc/sys/kernel/random rw - tmpfs none rw\n",
            "38 22 0:21 /sys/kernel/random/uuid /proc/sys/kernel/random/boot_id rw - proc proc rw\n",
            "39 22 0:63 / /proc rw - tmpfs none rw\n",
        ] {
            assert!(!is_the_kernels(other), "{other}");
        }
        // A file in a jail without /proc.
        assert!(!super::is_the_kernels(&mounts("")));
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        assert_eq!(boottime_offset("monotonic  0 0\nboottime  0 0\n"), Some(0));
        assert_eq!(boottime_offset("monotonic  7 0\nboottime  86400 5000\n"), Some(86_400_000_005));
        assert_eq!(boottime_offset("boottime  -2 500000000\n"), Some(-1_500_000));
        assert_eq!(boottime_offset("monotonic 0 0\n"), None);
        assert_eq!(boottime_offset("boottime x y\n"), None);
    }

    #[test]
    fn the_boot_clock_runs() {
        let time = SystemClocks::new().unwrap();
        let before = time.boot_us();
        assert!(before > 0 && time.boot_us() >= before);
        assert!(time.wall_us() > 1_600_000_000_000_000);
    }
}
