//! What is mounted where, as `/proc/self/mountinfo` tells it (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const MOUNTS: &str = "/proc/self/mountinfo";

/// The mounts that this process sees.
#[derive(Debug)]
pub(super) struct Mounts(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    parent: u64,
    /// The folder, or the file, of the file system that is shown at `point`.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    /// The type of the file system.
    pub(super) kind: String,
}

impl Mounts {
    pub(super) fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&std::fs::read(MOUNTS)?))
    }

    fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(mount).collect())
    }

    /// The mount through which an absolute path without symbolic links leads: the one that the kernel
    /// uses, however many lie below it. `None` for a path in a root that was not mounted in full, as
    /// after chroot(2).
    pub(super) fn of(&self, path: &Path) -> Option<&Mount> {
        let mut places: Vec<_> = path.ancestors().collect();
        places.reverse();
        let mut found: Option<&Mount> = None;
        for place in places {
            // Of mounts on the same place, each is the child of the one that it covers.
            while let Some(next) = self.0.iter().find(|mount| {
                mount.point == place && self.lies_on(mount, found.map(|found| found.id))
            }) {
                found = Some(next);
            }
        }
        found
    }

    fn lies_on(&self, mount: &Mount, below: Option<u64>) -> bool {
        match below {
            Some(below) => mount.parent == below && mount.id != below,
            None => self.0.iter().all(|other| other.id != mount.parent || other.id == mount.id),
        }
    }
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda rw`, with any number of fields before
/// the dash.
fn mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let number = |at: usize| std::str::from_utf8(fields.get(at)?).ok()?.parse().ok();
    Some(Mount {
        id: number(0)?,
        parent: number(1)?,
        root: unescaped(fields.get(3)?),
        point: unescaped(fields.get(4)?),
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
    })
}

/// Blanks and backslashes are written as octal numbers.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, others)) = rest.split_first() {
        let code = others.get(..3).filter(|_| first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &others[3..];
            }
            None => {
                path.push(first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Texts as real systems give them.
#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn mounts(text: &str) -> Mounts {
        Mounts::parse(text.as_bytes())
    }

    const HOST: &str = "\
22 27 0:21 / /proc rw,relatime shared:12 - proc proc rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=24684096k
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/a\\040b\\134c rw - nfs4 server:/export rw
41 27 254:0 /srv/locks /data rw shared:1 - ext4 /dev/vda rw
42 41 0:51 / /data/in rw - fuse.sshfs me@host:/ rw
";

    fn kind(mounts: &Mounts, path: &str) -> Option<String> {
        mounts.of(Path::new(path)).map(|mount| mount.kind.clone())
    }

    #[test]
    fn a_path_leads_through_the_nearest_mount() {
        let mounts = mounts(HOST);
        for (path, wanted) in [
            ("/", "ext4"),
            ("/var/lib/locks.db", "ext4"),
            ("/mnt/a b\\c/locks.db", "nfs4"),
            ("/mnt/a b\\cd/locks.db", "ext4"),
            ("/data/locks.db", "ext4"),
            ("/data/in/x", "fuse.sshfs"),
            ("/data/inner/x", "ext4"),
            ("/proc/sys/kernel/random/boot_id", "proc"),
        ] {
            assert_eq!(kind(&mounts, path).as_deref(), Some(wanted), "{path}");
        }
        let data = mounts.of(Path::new("/data/x")).unwrap();
        assert_eq!((data.root.as_path(), data.id), (Path::new("/srv/locks"), 41));
    }

    #[test]
    fn what_is_covered_does_not_count() {
        // A sandbox has mounted its own /data over the one above, and a root over the root.
        let data = format!("{HOST}50 41 0:60 / /data rw - tmpfs none rw\n");
        assert_eq!(kind(&mounts(&data), "/data/in/x").as_deref(), Some("tmpfs"));
        let root = format!("{data}51 27 0:61 / / rw - overlay overlay rw\n");
        assert_eq!(kind(&mounts(&root), "/data/in/x").as_deref(), Some("overlay"));
    }

    #[test]
    fn a_root_that_is_not_listed() {
        let mounts = mounts("22 99 0:21 / /proc rw - proc proc rw\nnonsense\n\n");
        assert_eq!(kind(&mounts, "/proc/x").as_deref(), Some("proc"));
        assert_eq!(kind(&mounts, "/x"), None);
    }

    #[test]
    fn this_machine() {
        assert_eq!(kind(&Mounts::read().unwrap(), "/proc/self").as_deref(), Some("proc"));
    }
}
