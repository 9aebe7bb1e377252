//! Child processes of a test: the same executable, whose test `child` does what it is told.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

const ORDER: &str = "LOCK_REDIS_TEST_ORDER";

/// What the test `child` is to do; `None` in a process that is no child. Its lines that begin with an
/// `@` are for the parent.
pub(crate) fn order() -> Option<String> {
    std::env::var(ORDER).ok()
}

/// Processes that end with this value, or when they see the end of their input.
pub(crate) struct Children {
    children: Vec<Child>,
    /// What they say, each with its number. It ends when all have ended.
    pub(crate) lines: mpsc::Receiver<(usize, String)>,
}

impl Children {
    pub(crate) fn start(count: usize, order: &str) -> Self {
        let (sender, lines) = mpsc::channel();
        let children = (0..count).map(|number| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
                .env(ORDER, order)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    // The test runner may have begun the line.
                    if let Some((_, said)) = line.split_once('@') {
                        let _ = sender.send((number, said.to_owned()));
                    }
                }
            });
            child
        });
        Self { children: children.collect(), lines }
    }

    pub(crate) fn signal(&self, number: usize, signal: &str) {
        let process = self.children[number].id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
