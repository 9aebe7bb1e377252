//! The rights that the guide lists for users who share a file: they are enough, and each of them is needed.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_core::Locks;
use tempfile::TempDir;
use tokio::time::Instant;

/// What an administrator enters.
const RIGHTS: &str = include_str!("../../docs/guide/rights/sqlite.txt");
const FOLDER: &str = "/var/lib/locks";
/// A group that the machine need not know, and two users who are in it besides their own.
const GROUP: &str = "64099";
const USERS: [&str; 2] = ["64001", "64002"];
/// The variable that names the file, for another process of this program.
const FILE: &str = "LOCK_SQL_RIGHTS_FILE";

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A folder that every user may enter, with a copy of this program, and below it what the commands make.
fn prepared(commands: &str) -> TempDir {
    let place = TempDir::new().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), place.path().join("program")).unwrap();
    let group = if is_root() {
        GROUP.to_owned()
    } else {
        fs::metadata(place.path()).unwrap().gid().to_string()
    };
    let own = place.path().join("locks");
    let commands: String = commands
        .lines()
        // The users and their group are numbers here, and made by nobody.
        .filter(|line| line.starts_with("install "))
        .map(|line| line.replace("-g locks", &format!("-g {group}")) + "\n")
        .collect();
    let commands = commands.replace(FOLDER, own.to_str().unwrap());
    let done = Command::new("sh").args(["-e", "-c", &commands]).status().unwrap();
    assert!(done.success(), "{commands}");
    if !is_root() {
        // The only user is the owner.
        for path in [own.join("app.db"), own] {
            let group = (fs::metadata(&path).unwrap().mode() >> 3) & 0o7;
            fs::set_permissions(path, Permissions::from_mode(group << 6)).unwrap();
        }
    }
    place
}

/// The name by which a user opens the file.
#[derive(Clone, Copy, Debug)]
enum Name {
    Own,
    /// A symbolic link in a folder with this mode.
    Link(u32),
}

impl Name {
    fn path(self, place: &Path) -> PathBuf {
        let own = place.join("locks/app.db");
        let Self::Link(mode) = self else { return own };
        let folder = place.join("links");
        fs::create_dir(&folder).unwrap();
        let link = folder.join("app.db");
        symlink(own, &link).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
        link
    }
}

/// This program as that user.
fn start(place: &Path, user: &str) -> Child {
    start_with(place, user, &Name::Own.path(place))
}

fn start_with(place: &Path, user: &str, file: &Path) -> Child {
    let program = place.join("program");
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--groups", GROUP, "--"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command.args(["--exact", "a_user", "--ignored", "--nocapture"]);
    command.env(FILE, file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What it said, and whether it could lock.
fn ended(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("1 passed") || said.contains("1 failed"), "{said}");
    (output.status.success(), said)
}

#[tokio::test]
#[ignore = "a part of the other tests, run by them as another user"]
async fn a_user() {
    let file = std::env::var(FILE).unwrap();
    let opened = lock_sql::connect(&format!("sqlite://{file}")).await;
    let locks = Locks::new(opened.unwrap_or_else(|error| panic!("{:?}: {error}", error.kind())));
    for _ in 0..20 {
        let lock = locks.named("x").unwrap();
        let guard = lock.acquire_timeout(Duration::from_secs(60)).await.unwrap();
        guard.renew().await.unwrap();
        assert_eq!(locks.list("").await.unwrap().len(), 1);
        guard.release().await.unwrap();
    }
    // The file stays open until the test says otherwise.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn the_listed_rights_are_enough_for_users_of_a_group() {
    let place = prepared(RIGHTS);
    for child in USERS.map(|user| start(place.path(), user)) {
        let (could, said) = ended(child);
        assert!(could, "{said}");
    }
}

/// SQLite creates the files next to the database with the rights that the umask leaves, and gives them
/// those of the database a moment later.
#[tokio::test]
async fn a_file_that_another_user_is_creating_is_waited_for() {
    // Also where this user may not write to the folder of the link.
    for (end, name) in [("-wal", Name::Own), ("-shm", Name::Own), ("-wal", Name::Link(0o555))] {
        let place = prepared(RIGHTS);
        let file = place.path().join(format!("locks/app.db{end}"));
        fs::write(&file, "").unwrap();
        let (readable, whole) = if is_root() { (0o640, 0o660) } else { (0o400, 0o600) };
        fs::set_permissions(&file, Permissions::from_mode(readable)).unwrap();
        let child = start_with(place.path(), USERS[0], &name.path(place.path()));
        tokio::time::sleep(Duration::from_millis(500)).await;
        fs::set_permissions(&file, Permissions::from_mode(whole)).unwrap();
        let (could, said) = ended(child);
        assert!(could, "{end} {name:?}: {said}");
    }
}

/// The files that SQLite keeps next to the database get the group of the folder, and not that of the first user.
#[tokio::test]
async fn the_group_of_the_folder_is_needed_too() {
    if !is_root() {
        // One user has one group.
        return;
    }
    let place = prepared(&RIGHTS.replace("-m 2730", "-m 0730"));
    let first = start(place.path(), USERS[0]);
    let begun = Instant::now();
    while !place.path().join("locks/app.db-shm").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the file is not opened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Whatever is allowed where a link is.
    for name in [Name::Own, Name::Link(0o777)] {
        let file = name.path(place.path());
        let (could, said) = ended(start_with(place.path(), USERS[1], &file));
        assert!(!could && said.contains("Denied: ") && said.contains("chmod g+s"), "{said}");
    }
    let (could, said) = ended(first);
    assert!(could, "{said}");
}

#[test]
fn each_missing_right_is_an_error_that_names_it() {
    for (right, less) in [
        ("write the folder", "-m 2710"),
        ("enter the folder", "-m 2720"),
        ("write the file", "-m 0640"),
        ("read the file", "-m 0620"),
    ] {
        let whole = if less.starts_with("-m 2") { "-m 2730" } else { "-m 0660" };
        assert_eq!(RIGHTS.matches(whole).count(), 1);
        let place = prepared(&RIGHTS.replace(whole, less));
        let (could, said) = ended(start(place.path(), USERS[0]));
        assert!(!could, "it can lock without the right to {right}: {said}");
        let clear = ["Denied: ", "right", place.path().join("locks").to_str().unwrap()]
            .iter()
            .all(|word| said.contains(word));
        assert!(clear, "without the right to {right}: {said}");
        println!("without the right to {right}: {said}");
    }
}
