//! What SQLite's result codes mean to a lock.

use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind};

/// Why a statement was not executed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Somebody else was writing, or opening the file for the first time. Nothing was done, and the
    /// same statement may succeed at once.
    Contended,
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

// https://www.sqlite.org/rescode.html; the low byte is the primary code.
const ERROR: i32 = 1;
const PERM: i32 = 3;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const SCHEMA: i32 = 17;
const CONSTRAINT: i32 = 19;
const AUTH: i32 = 23;
const NOTADB: i32 = 26;
/// A STRICT table refused a value: the fence has become a floating-point number.
const CONSTRAINT_DATATYPE: i32 = 3091;

/// The database as errors name it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) may_create: bool,
}

impl Place {
    pub(super) fn endpoint(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn failure(&self, error: sqlx::Error) -> Failure {
        let code = extended_code(&error);
        // PROTOCOL: too many others were starting to read the log. SCHEMA: the table was changed
        // while the statement was prepared.
        match code.map(|code| code & 0xff) {
            Some(BUSY | LOCKED | PROTOCOL | SCHEMA) => Failure::Contended,
            _ => Failure::Failed(self.describe(code, error)),
        }
    }

    fn describe(&self, code: Option<i32>, error: sqlx::Error) -> Error {
        let at = self.endpoint();
        let Some(code) = code else {
            return match error {
                // The thread of the connection has ended, perhaps with our statement done.
                sqlx::Error::WorkerCrashed => {
                    Error::new(ErrorKind::Unavailable, format!("the connection to {at} has ended"))
                        .with_unknown_effect()
                }
                sqlx::Error::Io(_) => {
                    Error::new(ErrorKind::Unavailable, format!("no connection to {at} can be made"))
                        .with_source(error)
                }
                _ => Error::new(ErrorKind::Store, format!("{at} answered something unexpected"))
                    .with_unknown_effect()
                    .with_source(error),
            };
        };
        let described = match code & 0xff {
            READONLY | PERM | AUTH => self.denied(),
            CANTOPEN => self.cannot_open(),
            FULL => Error::new(
                ErrorKind::Unavailable,
                format!("the disk of {at} is full: free some space; no lock can be taken or renewed until then"),
            ),
            NOMEM => Error::new(ErrorKind::Unavailable, format!("no memory is left to use {at}")),
            IOERR => Error::new(ErrorKind::Unavailable, format!("reading or writing {at} failed"))
                .with_unknown_effect(),
            NOTADB => Error::new(
                ErrorKind::Store,
                format!("{at} is not an SQLite database (or is encrypted): name another file"),
            ),
            CORRUPT => Error::new(
                ErrorKind::Store,
                format!("{at} is damaged: stop its users, move it away with its -wal and -shm files, and start again"),
            ),
            CONSTRAINT if code == CONSTRAINT_DATATYPE => Error::new(
                ErrorKind::Store,
                format!("the fencing tokens of this lock in {at} are used up (2^63-1 was stored): something else writes to the lock table"),
            ),
            CONSTRAINT => Error::new(
                ErrorKind::Store,
                format!("{at} refused the write: a constraint or trigger was added to the lock table"),
            ),
            // The connection is opened anew by the next call, which looks for the table again.
            ERROR => Error::new(
                ErrorKind::Store,
                format!("{at} refused the statement: the lock table was dropped or changed while it was in use"),
            )
            .with_retryable(true),
            _ => Error::new(ErrorKind::Store, format!("{at} refused the statement"))
                .with_unknown_effect(),
        };
        described.with_source(error)
    }

    fn denied(&self) -> Error {
        Error::new(
            ErrorKind::Denied,
            format!(
                "{} is read-only for this process: taking a lock writes to the file, and to two files beside it: give the right to write the file and its folder",
                self.endpoint()
            ),
        )
    }

    /// SQLite says only that it cannot open the file: look why.
    fn cannot_open(&self) -> Error {
        let at = self.endpoint();
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        match (std::fs::metadata(&self.path), std::fs::metadata(folder)) {
            (Ok(file), _) if file.is_dir() => {
                Error::config(format!("{at} is a directory: name a file in it"))
            }
            (Err(file), _) if file.kind() == std::io::ErrorKind::PermissionDenied => Error::new(
                ErrorKind::Denied,
                format!("{at} lies in a folder that this process may not enter: give it the right"),
            ),
            (_, Err(missing)) if missing.kind() == std::io::ErrorKind::NotFound => {
                Error::config(format!(
                    "the folder {} does not exist: create it, or correct the path",
                    folder.display()
                ))
            }
            (_, Ok(parent)) if !parent.is_dir() => {
                Error::config(format!("{} is not a folder: correct the path", folder.display()))
            }
            (Err(file), _) if file.kind() == std::io::ErrorKind::NotADirectory => Error::config(
                format!("{at} goes through something that is not a folder: correct the path"),
            ),
            (Err(file), Ok(_))
                if file.kind() == std::io::ErrorKind::NotFound && !self.may_create =>
            {
                Error::config(format!(
                    "{at} does not exist, and may not be created here (mode=rw, or a pool): create it, or use mode=rwc"
                ))
            }
            _ if !writable(&self.path) || !writable(folder) => self.denied(),
            _ => Error::new(
                ErrorKind::Unavailable,
                format!("{at} cannot be opened: perhaps this process has too many open files"),
            ),
        }
    }
}

/// Whether this process may write `path`, as far as the system tells without opening it. Opening
/// and closing the file would drop the locks that SQLite holds on it (fcntl(2)).
fn writable(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    match access(path, Access::WRITE_OK) {
        Ok(()) => true,
        Err(error) => error == rustix::io::Errno::NOENT,
    }
}

pub(super) fn extended_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}
