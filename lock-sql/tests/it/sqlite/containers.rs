//! Containers on one file: this program starts itself in mount namespaces, as a container runtime
//! would.
//!
//! Needs the right to make one: root, or user namespaces for everybody.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lock_core::Locks;
use tempfile::TempDir;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A container, ended with the test.
struct Container {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Container {
    /// `mounts`: what its runtime does, in the words of a shell, before the program begins.
    fn start(mounts: &str, file: &Path) -> Self {
        let mut command = Command::new("unshare");
        // Nobody else must see the mounts.
        command.args(["--mount", "--propagation", "private"]);
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-ec", &format!("{mounts}\nexec \"$@\""), "sh"]);
        command.arg(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "sqlite::containers::case_in_a_container",
            "--ignored",
            "--nocapture",
        ]);
        command.env("LOCK_SQL_URL", format!("sqlite://{}", file.display()));
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` is not installed: apt-get install util-linux");
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// What became of its try to get the lock: `HELD`, `BUSY`, or `REFUSED` and why.
    fn answer(&mut self) -> String {
        for line in &mut self.lines {
            if let Some((_, answer)) = line.unwrap().split_once("ANSWER ") {
                return answer.to_owned();
            }
        }
        panic!("the container did not start: its mounts may not be allowed here (see above)");
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[tokio::test]
#[ignore = "a part of the other tests, run by them in a container"]
async fn case_in_a_container() {
    let url = std::env::var("LOCK_SQL_URL").expect("started by another test");
    let attempt = async {
        let locks = Locks::new(lock_sql::connect(&url).await?);
        locks.named("x")?.try_acquire().await
    };
    let held = attempt.await;
    match &held {
        Ok(Some(_)) => println!("\nANSWER HELD"),
        Ok(None) => println!("\nANSWER BUSY"),
        Err(error) => println!("\nANSWER REFUSED {error}"),
    }
    // Until it is killed, or forgotten.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// LXC and systemd-nspawn do this.
#[test]
fn a_container_with_a_boot_id_of_its_own_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    let ids = ["0a4e3b6e-53f8-4b0e-9d9d-111111111111", "0a4e3b6e-53f8-4b0e-9d9d-222222222222"];
    let mut containers = ids.map(|id| {
        let own = folder.path().join(id);
        fs::write(&own, format!("{id}\n")).unwrap();
        let mount = format!("mount --bind '{}' {BOOT_ID}", own.display());
        Container::start(&mount, &file)
    });
    let answers = containers.each_mut().map(Container::answer);
    for answer in &answers {
        assert!(answer.starts_with("REFUSED") && answer.contains(BOOT_ID), "{answers:?}");
    }
    assert!(!file.exists(), "before anything was made");
}

/// Docker makes `/proc/sys` read-only by a mount of it on itself; an image has its own root.
#[test]
fn containers_with_the_kernels_boot_id_share_a_file() {
    let folder = TempDir::new().unwrap();
    let other_place = TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    let mut one = Container::start(read_only, &file);
    assert_eq!(one.answer(), "HELD");
    let elsewhere = format!(
        "{read_only}\nmount --bind '{}' '{}'",
        folder.path().display(),
        other_place.path().display()
    );
    let mut two = Container::start(&elsewhere, &other_place.path().join("locks.db"));
    assert_eq!(two.answer(), "BUSY");
}

/// The containers get the file alone, without its folder: each has its own log next to it,
/// and sees nothing of what the other one commits.
#[test]
fn a_file_that_is_mounted_without_its_folder_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    fs::write(&file, "").unwrap();
    let mut containers = ["one", "two"].map(|name| {
        let place = folder.path().join(name).join("locks.db");
        fs::create_dir(place.parent().unwrap()).unwrap();
        fs::write(&place, "").unwrap();
        let mount = format!("mount --bind '{}' '{}'", file.display(), place.display());
        Container::start(&mount, &place)
    });
    let answers = containers.each_mut().map(Container::answer);
    for answer in &answers {
        assert!(answer.starts_with("REFUSED") && answer.contains("folder"), "{answers:?}");
    }
}

#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let folder = TempDir::new().unwrap();
    let names = ["one", "two"].map(|name| folder.path().join(name));
    fs::write(&names[0], "").unwrap();
    fs::hard_link(&names[0], &names[1]).unwrap();
    for name in &names {
        let error = lock_sql::connect(&format!("sqlite://{}", name.display())).await;
        let error = error.expect_err("each name has its own log").to_string();
        assert!(error.contains("2 names"), "{error}");
    }
    fs::remove_file(&names[1]).unwrap();
    lock_sql::connect(&format!("sqlite://{}", names[0].display())).await.unwrap();
    // A symbolic link is no second name.
    std::os::unix::fs::symlink(&names[0], &names[1]).unwrap();
    lock_sql::connect(&format!("sqlite://{}", names[1].display())).await.unwrap();
}
