//! A headless Chromium, driven by ChromeDriver (W3C WebDriver).

use std::process::Command;

use conformance_tests::server::{Port, Process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::programs::{SOON, until};
use crate::requests::{delete, get, post};

/// No sandbox, since the tests may run as root; and no talk with anyone but the page.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=560,540",
    "--hide-scrollbars",
];

/// The name of an element in an answer.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with some windows, of which one gets the commands.
pub(crate) struct Browser {
    session: String,
    _driver: Process,
    _port: Port,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let port = Port::reserve().expect("a free port");
        let remedy = "apt-get install chromium chromium-driver";
        let driver = Process::new("chromedriver", remedy, profile.path().join("chromedriver.log"));
        let mut command = Command::new("chromedriver");
        let started = driver.spawn(command.arg(format!("--port={port}")));
        started.unwrap_or_else(|why| panic!("{why}"));
        let address = port.address();
        until("chromedriver answers", SOON, || std::net::TcpStream::connect(address).is_ok());
        let folder = format!("--user-data-dir={}", profile.path().display());
        let arguments = [ARGUMENTS, &[&folder]].concat();
        let options = json!({"goog:chromeOptions": {"args": arguments}});
        let (status, answer) = post(
            &format!("http://{address}/session"),
            &json!({"capabilities": {"alwaysMatch": options}}),
        );
        assert_eq!(status, 200, "no browser: {answer}");
        let id = answer["value"]["sessionId"].as_str().expect("a session");
        let session = format!("http://{address}/session/{id}");
        Self { session, _driver: driver, _port: port, _profile: profile }
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        let (status, mut answer) = post(&format!("{}/{path}", self.session), body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer["value"].take()
    }

    /// Opens a new window, which gets the commands from now on.
    pub(crate) fn open(&self, url: &str) -> String {
        let window = self.command("window/new", &json!({"type": "window"}));
        let window = window["handle"].as_str().expect("a window").to_owned();
        self.switch_to(&window);
        self.command("url", &json!({"url": url}));
        window
    }

    pub(crate) fn switch_to(&self, window: &str) {
        self.command("window", &json!({"handle": window}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.command("window/rect", &json!({"width": width, "height": height}));
    }

    /// Closes the window that gets the commands.
    pub(crate) fn close(&self) {
        let (status, answer) = delete(&format!("{}/window", self.session));
        assert_eq!(status, 200, "{answer}");
    }

    /// Runs the body of a function in the page.
    pub(crate) fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": arguments}))
    }

    /// Waits until an element shows a text that contains `words`.
    pub(crate) fn shows(&self, id: &str, words: &str) {
        let script = "return document.getElementById(arguments[0]).textContent";
        until(&format!("#{id} shows {words:?}"), SOON, || {
            self.run(script, &[json!(id)]).as_str().is_some_and(|text| text.contains(words))
        });
    }

    pub(crate) fn click(&self, id: &str) {
        self.command(&format!("element/{}/click", self.element(id)), &json!({}));
    }

    pub(crate) fn type_into(&self, id: &str, text: &str) {
        self.command(&format!("element/{}/value", self.element(id)), &json!({"text": text}));
    }

    fn element(&self, id: &str) -> String {
        let found = json!({"using": "css selector", "value": format!("#{id}")});
        let found = self.command("element", &found);
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    /// A picture of the window that gets the commands: a PNG in base64.
    pub(crate) fn picture(&self) -> String {
        let (status, answer) = get(&format!("{}/screenshot", self.session));
        assert_eq!(status, 200, "{answer}");
        answer["value"].as_str().expect("a picture").to_owned()
    }
}

/// The browser first: it is a child of its driver.
impl Drop for Browser {
    fn drop(&mut self) {
        delete(&self.session);
    }
}
