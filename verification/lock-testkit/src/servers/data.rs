//! The folders of servers, and their initial data.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use conformance_tests::Unavailable;
use rustix::process::geteuid;
use tempfile::TempDir;

use super::process::{failed, not_installed};

/// A folder in memory, where the machine has one: the tests are about locks and not about the disk.
const IN_MEMORY: &str = "/dev/shm";

/// A folder that is removed with its value.
pub(super) fn folder(prefix: &str) -> Result<TempDir, Unavailable> {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    folder.map_err(|error| failed("no temporary folder", error))
}

/// The user a server runs as if we are root, since it refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Servant {
    user: u32,
    group: u32,
}

impl Servant {
    /// The first of `names` that this machine has; none unless we are root.
    pub(super) fn find(names: &[&str], package: &str) -> Result<Option<Self>, Unavailable> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").map_err(|e| failed("/etc/passwd", e))?;
        let ids = |name: &&str| {
            users.lines().find_map(|line| {
                let fields: Vec<_> = line.split(':').collect();
                (fields.first() == Some(name)).then_some(())?;
                Some(Self {
                    user: fields.get(2)?.parse().ok()?,
                    group: fields.get(3)?.parse().ok()?,
                })
            })
        };
        let servant = names.iter().find_map(ids);
        servant.map(Some).ok_or_else(|| not_installed(&format!("the user {}", names[0]), package))
    }

    /// A command that runs as this user.
    pub(super) fn command(this: Option<Self>, program: &Path) -> Command {
        let Some(Self { user, group }) = this else { return Command::new(program) };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
        command.args(["--clear-groups", "--"]).arg(program);
        command
    }

    /// Gives a file or a folder to this user.
    pub(super) fn give(this: Option<Self>, path: &Path) -> Result<(), Unavailable> {
        let Some(Self { user, group }) = this else { return Ok(()) };
        let given = chown(path, Some(user), Some(group));
        given.map_err(|error| failed(&path.display().to_string(), error))
    }

    /// A folder in memory for a server that runs as this user, with a short path: a socket's has at most
    /// 107 bytes.
    pub(super) fn folder(this: Option<Self>, prefix: &str) -> Result<TempDir, Unavailable> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        let folder = match Path::new(IN_MEMORY).is_dir() {
            true => builder.tempdir_in(IN_MEMORY),
            false => builder.tempdir(),
        };
        let folder = folder.map_err(|error| failed("no temporary folder", error))?;
        Self::give(this, folder.path())?;
        Ok(folder)
    }
}

/// The data folder of a new server, which is made once for each `name` and user of this machine,
/// and kept: making it takes longer than everything else. `name` contains the version; `make` is
/// given the path.
pub(super) fn template(
    name: &str,
    servant: Option<Servant>,
    make: impl FnOnce(&Path) -> Result<(), Unavailable>,
) -> Result<PathBuf, Unavailable> {
    // One at a time; another process may make one at the same time, and the first one is used.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let me = geteuid().as_raw();
    let ready = std::env::temp_dir().join(format!("distlock-{name}-{me}"));
    if let Ok(found) = std::fs::symlink_metadata(&ready) {
        // Another user could have put it there.
        let owners = [me, servant.map_or(me, |servant| servant.user)];
        if !found.is_dir() || !owners.contains(&found.uid()) {
            return Err(Unavailable::broken(format!("{} is not ours: remove it", ready.display())));
        }
        return Ok(ready);
    }
    let making = folder(name)?;
    Servant::give(servant, making.path())?;
    let data = making.path().join("data");
    make(&data)?;
    match std::fs::rename(&data, &ready) {
        Ok(()) => Ok(ready),
        // Another process was faster.
        Err(_) if ready.is_dir() => Ok(ready),
        Err(error) => Err(failed("the prepared data folder", error)),
    }
}

/// Copies a folder with its owners.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), Unavailable> {
    output(Command::new("cp").arg("-a").arg(from).arg(to), "coreutils").map(drop)
}

/// The output of a command, if it succeeded.
pub(super) fn output(command: &mut Command, package: &str) -> Result<String, Unavailable> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => not_installed(&program, package),
        _ => failed(&program, error),
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(failed(&program, format!("{}: {text} {}", output.status, errors.trim())))
        }
    }
}
