//! Checks that SQLite's locks work where a file is, and keeps the file private.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lock_core::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat, statfs};

use super::mounts::Mounts;

/// File systems that several machines share, by their statfs(2) number. SQLite's file locks and its
/// shared memory do not work across machines, and neither does a boot-time clock.
const SHARED: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    // Folders of the host in a virtual machine: VirtualBox, VMware, Parallels.
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    (0x7c7c_6673, "prl_fs"),
];
const FUSE: i64 = 0x6573_5546;
/// Programs behind FUSE that lead to other machines, by mount type.
const SHARED_BY_FUSE: &[&str] = &[
    "virtiofs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.cvmfs2",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.grpcfuse",
    "fuse.juicefs",
    "fuse.lizardfs",
    "fuse.mfs",
    "fuse.osxfs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "fuse.vmhgfs-fuse",
    "fuse.weed",
];

/// What is known about a file system.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Local,
    /// Several machines may have it.
    Shared(String),
    /// Only the program behind it can tell.
    Unclear(String),
}

/// `kind`: the type of the mount, if it is listed.
fn judge(number: i64, kind: Option<&str>) -> Verdict {
    if let Some((_, name)) = SHARED.iter().find(|(known, _)| *known == number) {
        return Verdict::Shared((*name).to_owned());
    }
    match kind {
        _ if number != FUSE => Verdict::Local,
        // On a block device of this machine.
        Some("fuseblk") => Verdict::Local,
        Some(kind) if SHARED_BY_FUSE.contains(&kind) => Verdict::Shared(kind.to_owned()),
        kind => Verdict::Unclear(kind.unwrap_or("fuse").to_owned()),
    }
}

/// Refuses a file whose users would not see each other's locks, wherever symbolic links and mounts
/// lead. `warn`: log a warning if it cannot be told.
pub(super) fn check(path: &Path, warn: bool) -> Result<()> {
    let Some(real) = resolved(path) else {
        // SQLite says what is wrong with this path.
        return Ok(());
    };
    let shown = path.display();
    let mounts = Mounts::read().map_err(|error| {
        Error::unsupported(format!(
            "cannot tell which file system {shown} is on: /proc/self/mountinfo is not readable; mount /proc"
        ))
        .with_source(error)
    })?;
    let mount = mounts.of(&real);
    // A file that does not exist yet will be where its folder is.
    let found = if real.exists() { Some(&*real) } else { real.parent() };
    match judge(found.map_or(0, number), mount.map(|mount| &*mount.kind)) {
        Verdict::Local => {}
        Verdict::Shared(name) => {
            return Err(Error::config(format!(
                "{shown} is on a file system that other machines may use too ({name}): SQLite's locks hold on one machine only: use a local disk, or a store with a server"
            )));
        }
        Verdict::Unclear(name) if warn => {
            tracing::warn!(target: "distlock", path = %shown, kind = name, "this file system is provided by a program (FUSE): the locks hold only if no other machine uses it");
        }
        Verdict::Unclear(_) => {}
    }
    if mount.is_some_and(|mount| mount.point == real) {
        return Err(Error::config(format!(
            "{shown} is mounted without its folder, so each container has its own log (-wal), and none sees what the others write: mount the folder"
        )));
    }
    let names = std::fs::metadata(&real).map_or(1, |file| file.nlink());
    if real.is_file() && names > 1 {
        return Err(Error::config(format!(
            "{shown} has {names} names (hard links), and SQLite keeps a separate log (-wal) for each, so users of one name do not see what users of another write: remove all names but one"
        )));
    }
    Ok(())
}

/// The number of the file system; 0 if it cannot be told.
fn number(path: &Path) -> i64 {
    let Ok(stat) = statfs(path) else { return 0 };
    #[allow(clippy::useless_conversion, reason = "the type differs between architectures")]
    let number = i64::try_from(stat.f_type).unwrap_or(0);
    // Only 32 bits matter; where the type is that narrow, the value may be negative.
    number & 0xffff_ffff
}

/// Creates an empty file that only its owner may use, if there is none. SQLite gives its log the
/// same mode, and takes an empty file for a new database. If creation fails, SQLite reports why.
///
/// Uses mknod(2), which creates a file without opening it: closing it would drop the locks that
/// another connection of this process may hold on it by then (fcntl(2)).
pub(super) fn create_private(path: &Path) {
    if let Some(real) = resolved(path) {
        let _ = mknodat(CWD, &real, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0);
    }
}

/// The path without symbolic links, even for a file that does not exist yet.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    // As many links in a row as the kernel follows.
    for _ in 0..40 {
        if let Ok(real) = path.canonicalize() {
            return Some(real);
        }
        match path.read_link() {
            Ok(target) => path = path.parent()?.join(target),
            Err(_) => return Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn file_systems_of_several_machines_are_known() {
        let shared = |name: &str| Verdict::Shared(name.to_owned());
        assert_eq!(judge(0xef53, Some("ext4")), Verdict::Local);
        assert_eq!(judge(0xef53, None), Verdict::Local);
        assert_eq!(judge(0x6969, Some("nfs4")), shared("NFS"));
        assert_eq!(judge(0x6969, None), shared("NFS"));
        assert_eq!(judge(0x0116_1970, Some("gfs2")), shared("GFS2"));
        assert_eq!(judge(0x4750_4653, Some("gpfs")), shared("GPFS"));
        assert_eq!(judge(0x786f_4256, Some("vboxsf")), shared("vboxsf"));
        assert_eq!(judge(FUSE, Some("fuse.sshfs")), shared("fuse.sshfs"));
        assert_eq!(judge(FUSE, Some("virtiofs")), shared("virtiofs"));
        assert_eq!(judge(FUSE, Some("fuseblk")), Verdict::Local);
        let unclear = |name: &str| Verdict::Unclear(name.to_owned());
        assert_eq!(judge(FUSE, Some("fuse.fuse-overlayfs")), unclear("fuse.fuse-overlayfs"));
        assert_eq!(judge(FUSE, None), unclear("fuse"));
    }

    #[test]
    fn links_are_followed_to_their_end() {
        let folder = TempDir::new().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("d")).unwrap();
        symlink("d", real.join("e")).unwrap();
        symlink("../d/new.db", real.join("d/one")).unwrap();
        symlink("e/one", real.join("two")).unwrap();
        assert_eq!(resolved(&real.join("two")).unwrap(), real.join("d/new.db"));
        assert_eq!(resolved(&real.join("e/x.db")).unwrap(), real.join("d/x.db"));
        assert_eq!(resolved(&real.join("no/x.db")), None);
        std::fs::write(real.join("d/new.db"), "").unwrap();
        assert_eq!(resolved(&real.join("two")).unwrap(), real.join("d/new.db"));
        symlink("round", real.join("round")).unwrap();
        assert_eq!(resolved(&real.join("round")), None);
    }
}
