//! Checks that SQLite's locks work where a file is, and keeps the file private.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lock_core::{Error, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat, statfs};

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

/// Folders whose old files are removed: by systemd-tmpfiles(8) and its likes, which take what nobody has
/// written for some days, and by systemd-logind(8) at a user's last logout.
const CLEANED: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];

/// The folder that is [cleaned](CLEANED) and has this file in it.
pub(super) fn cleaned(real: &Path) -> Option<&'static str> {
    CLEANED.iter().copied().find(|folder| real.starts_with(folder))
}

/// What is known about a file system.
#[derive(Debug, PartialEq, Eq)]
enum FileSystemVerdict {
    Local,
    /// Several machines may have it.
    Shared(String),
    /// Only the program behind it can tell.
    Unclear(String),
}

/// `kind`: the type of the mount, if it is listed.
fn judge(number: i64, kind: Option<&str>) -> FileSystemVerdict {
    if let Some((_, name)) = SHARED.iter().find(|(known, _)| *known == number) {
        return FileSystemVerdict::Shared((*name).to_owned());
    }
    match kind {
        _ if number != FUSE => FileSystemVerdict::Local,
        // On a block device of this machine.
        Some("fuseblk") => FileSystemVerdict::Local,
        Some(kind) if SHARED_BY_FUSE.contains(&kind) => FileSystemVerdict::Shared(kind.to_owned()),
        kind => FileSystemVerdict::Unclear(kind.unwrap_or("fuse").to_owned()),
    }
}

/// Refuses a file whose users would not see each other's locks, wherever symbolic links and mounts
/// lead. `warn`: log a warning if it cannot be told, or if the file may be removed while it is in use.
pub(super) fn check(path: &Path, warn: bool) -> Result<()> {
    let Some(real) = resolved(path) else {
        // SQLite says what is wrong with this path.
        return Ok(());
    };
    let shown = path.display();
    if let Some(folder) = cleaned(&real).filter(|_| warn) {
        tracing::warn!(target: "distlock", path = %shown, "files in {folder} are removed by programs that clean up, also while they are in use: locks may be lost then. Use another folder, such as /var/lib/…");
    }
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
        FileSystemVerdict::Local => {}
        FileSystemVerdict::Shared(name) => {
            return Err(Error::config(format!(
                "{shown} is on a file system that other machines may use too ({name}): SQLite's locks hold on one machine only: use a local disk, or a store with a server"
            )));
        }
        FileSystemVerdict::Unclear(name) if warn => {
            tracing::warn!(target: "distlock", path = %shown, kind = name, "this file system is provided by a program (FUSE): the locks hold only if no other machine uses it");
        }
        FileSystemVerdict::Unclear(_) => {}
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
pub(super) fn resolved(path: &Path) -> Option<PathBuf> {
    let path = followed(path)?;
    let real = path.canonicalize().ok();
    real.or_else(|| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?)))
}

/// Where the symbolic links of this name lead, whether or not anything is there. SQLite keeps its other files there.
pub(super) fn followed(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    // As many links in a row as the kernel follows.
    for _ in 0..40 {
        match path.read_link() {
            Ok(target) => path = path.parent()?.join(target),
            Err(_) => return Some(path),
        }
    }
    None
}

// The files that a connection has open: the database, and the two that SQLite keeps next to it.
//
// A connection goes on with a file that was removed, and no other client sees what it writes there. If
// it is the index of the log (`-shm`), which all connections of a process to one file share, two
// processes even lock different files, and write to the same place of the log.
/// What this process has open.
const OPEN: &str = "/proc/self/fd";

/// The device and the number of a file. A file that is open keeps its number, so no other one gets it.
type FileId = (u64, u64);

/// Those of one connection.
#[derive(Debug)]
pub(super) struct OpenFiles(Vec<(PathBuf, FileId)>);

impl OpenFiles {
    /// The files that a connection has just opened. `None` if this process does not have those open
    /// that are in their places: they were removed or replaced meanwhile, or an older connection of
    /// this process keeps a removed index in use.
    ///
    /// `real`: where `path` leads to; SQLite puts the other files there.
    pub(super) fn opened(path: &Path, real: &Path, has_log: bool) -> Option<Self> {
        let mut paths = vec![path.to_owned()];
        if has_log {
            paths.extend(["-wal", "-shm"].map(|end| beside(real, end)));
        }
        let files: Option<Vec<_>> =
            paths.into_iter().map(|path| Some((id(std::fs::metadata(&path))?, path))).collect();
        let files = files?;
        let open = open_now(real.file_name()?);
        let files = files.into_iter().map(|(id, path)| open.contains(&id).then_some((path, id)));
        files.collect::<Option<_>>().map(Self)
    }

    /// Whether they are still in their places.
    pub(super) fn are_current(&self) -> bool {
        self.0.iter().all(|(path, file)| id(std::fs::metadata(path)) == Some(*file))
    }
}

/// One of the files that SQLite keeps next to a database.
pub(super) fn beside(real: &Path, end: &str) -> PathBuf {
    let mut path = real.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn id(file: std::io::Result<Metadata>) -> Option<FileId> {
    file.ok().map(|file| (file.dev(), file.ino()))
}

/// The files that this process has open under a name that begins so. No other is looked at: it might
/// be on a file system that does not answer.
fn open_now(name: &OsStr) -> HashSet<FileId> {
    let begins_so = |path: &Path| {
        let found = path.file_name().map(OsStr::as_encoded_bytes);
        found.is_some_and(|found| found.starts_with(name.as_encoded_bytes()))
    };
    let all = std::fs::read_dir(OPEN).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|entry| entry.read_link().is_ok_and(|path| begins_so(&path)))
        .filter_map(|entry| id(std::fs::metadata(entry)))
        .collect()
}

// What is mounted where, as `/proc/self/mountinfo` tells it (proc_pid_mountinfo(5)).
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn file_systems_of_several_machines_are_known() {
        let shared = |name: &str| FileSystemVerdict::Shared(name.to_owned());
        assert_eq!(judge(0xef53, Some("ext4")), FileSystemVerdict::Local);
        assert_eq!(judge(0xef53, None), FileSystemVerdict::Local);
        assert_eq!(judge(0x6969, Some("nfs4")), shared("NFS"));
        assert_eq!(judge(0x6969, None), shared("NFS"));
        assert_eq!(judge(0x0116_1970, Some("gfs2")), shared("GFS2"));
        assert_eq!(judge(0x4750_4653, Some("gpfs")), shared("GPFS"));
        assert_eq!(judge(0x786f_4256, Some("vboxsf")), shared("vboxsf"));
        assert_eq!(judge(FUSE, Some("fuse.sshfs")), shared("fuse.sshfs"));
        assert_eq!(judge(FUSE, Some("virtiofs")), shared("virtiofs"));
        assert_eq!(judge(FUSE, Some("fuseblk")), FileSystemVerdict::Local);
        let unclear = |name: &str| FileSystemVerdict::Unclear(name.to_owned());
        assert_eq!(judge(FUSE, Some("fuse.fuse-overlayfs")), unclear("fuse.fuse-overlayfs"));
        assert_eq!(judge(FUSE, None), unclear("fuse"));
    }

    #[test]
    fn folders_that_are_cleaned_are_known() {
        for (path, folder) in [
            ("/tmp/locks.db", Some("/tmp")),
            ("/var/tmp/a/locks.db", Some("/var/tmp")),
            ("/dev/shm/locks.db", Some("/dev/shm")),
            ("/tmpfiles/locks.db", None),
            ("/var/lib/tmp/locks.db", None),
        ] {
            assert_eq!(cleaned(Path::new(path)), folder, "{path}");
        }
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

#[cfg(test)]
mod open_files_tests {
    use std::fs::File;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn only_what_is_open_and_in_its_place_counts() {
        let folder = TempDir::new().unwrap();
        let at = folder.path().canonicalize().unwrap().join("locks.db");
        let opened = |has_log| OpenFiles::opened(&at, &at, has_log);
        assert!(opened(false).is_none(), "no file");
        std::fs::write(&at, "").unwrap();
        assert!(opened(false).is_none(), "not open");
        let _open = File::open(&at).unwrap();
        let files = opened(false).unwrap();
        assert!(files.are_current() && opened(true).is_none(), "no log");
        let _log = File::create(beside(&at, "-wal")).unwrap();
        let _index = File::create(beside(&at, "-shm")).unwrap();
        let with_log = opened(true).unwrap();
        // As if it had been replaced between the opening and the look.
        std::fs::remove_file(beside(&at, "-shm")).unwrap();
        std::fs::write(beside(&at, "-shm"), "").unwrap();
        assert!(opened(true).is_none() && opened(false).is_some(), "another index");
        assert!(files.are_current() && !with_log.are_current());
        std::fs::rename(&at, folder.path().join("elsewhere")).unwrap();
        assert!(!files.are_current());
    }
}

/// Texts as real systems give them.
#[cfg(test)]
pub(super) mod mounts_tests {
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
