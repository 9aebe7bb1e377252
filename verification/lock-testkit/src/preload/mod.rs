//! Libraries that stand in front of the C library of a program, by LD_PRELOAD: what a kernel can do to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance_tests::Unavailable;
use tempfile::TempDir;

use crate::servers::{Builder, Kind};

/// Compiles a library from the text of its one file, into this folder.
///
/// # Errors
///
/// If there is no compiler, or the text is wrong.
pub fn library(folder: &Path, name: &str, source: &str) -> Result<PathBuf, Unavailable> {
    let failed = |error: std::io::Error| Unavailable::broken(format!("{name}: {error}"));
    let (text, library) =
        (folder.join(name).with_extension("c"), folder.join(name).with_extension("so"));
    fs::write(&text, source).map_err(failed)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&library).arg(&text);
    match compiler.output() {
        Ok(output) if output.status.success() => Ok(library),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(Unavailable::broken(format!("{name} cannot be compiled: {errors}")))
        }
        Err(_) => Err(Unavailable::missing("cc is not installed: apt-get install gcc libc6-dev")),
    }
}

/// A folder in which servers can read that run as users of their own.
///
/// # Errors
///
/// If it cannot be made.
pub fn readable_folder() -> Result<TempDir, Unavailable> {
    let made = TempDir::new().and_then(|folder| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map(|()| folder)
    });
    made.map_err(|error| Unavailable::broken(format!("no folder: {error}")))
}

/// A disk that can be full, for servers that write to it.
#[derive(Debug)]
pub struct FullDisk {
    folder: TempDir,
    library: PathBuf,
}

impl FullDisk {
    /// One that has room.
    ///
    /// # Errors
    ///
    /// Those of [`readable_folder`] and [`library`].
    pub fn new() -> Result<Self, Unavailable> {
        let folder = readable_folder()?;
        let library = library(folder.path(), "full_disk", include_str!("full_disk.c"))?;
        Ok(Self { folder, library })
    }

    /// The server writes to this disk.
    pub fn below<K: Kind>(&self, server: Builder<K>) -> Builder<K> {
        server.variable("LD_PRELOAD", &self.library).variable("DISTLOCK_FULL", self.flag())
    }

    /// Whether it is full from now on.
    ///
    /// # Panics
    ///
    /// If that cannot be told to the servers.
    pub fn set_full(&self, is_full: bool) {
        match is_full {
            true => fs::write(self.flag(), "").expect("a folder of this test"),
            false => fs::remove_file(self.flag()).expect("it was full"),
        }
    }

    fn flag(&self) -> PathBuf {
        self.folder.path().join("full")
    }
}
