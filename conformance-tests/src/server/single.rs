//! A server that is one program on one port.

use std::fmt;
use std::future;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::{Port, Process};
use crate::Unavailable;

/// How long the server may take until it accepts connections.
const START_LIMIT: Duration = Duration::from_secs(60);

type Serves = dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync;

/// One server program in a temporary folder. Dropping it kills the program and removes the folder.
pub struct Server {
    // Dropped in this order: the folder and the port of a running server must not be given away.
    process: Process,
    command: Mutex<Command>,
    folder: TempDir,
    port: Port,
    limit: Duration,
    serves: Box<Serves>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, folder, port, .. } = self;
        f.debug_struct("Server")
            .field("process", process)
            .field("folder", folder)
            .field("port", port)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts `command` in a new temporary folder, which is its working directory, and waits for at most a
    /// minute until it accepts connections on `port`. What it prints goes to [`log`](Self::log).
    ///
    /// # Errors
    ///
    /// As [`start_until`](Self::start_until).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the program.
    pub async fn start(command: Command, port: Port) -> Result<Self, Unavailable> {
        let look = Duration::from_millis(200);
        let accepts =
            move |address| future::ready(TcpStream::connect_timeout(&address, look).is_ok());
        Self::start_until(command, port, START_LIMIT, accepts).await
    }

    /// As [`start`](Self::start), and waits for at most `limit` until `serves`, which gets its address, says that it is
    /// ready, as it does after a [restart](Self::restart): for a server that accepts connections before it answers.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if the program is not installed; [`Unavailable::broken`], with the
    /// server's log, if it ends, or is not ready in time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the program.
    pub async fn start_until<F: Future<Output = bool> + Send + 'static>(
        mut command: Command,
        port: Port,
        limit: Duration,
        serves: impl Fn(SocketAddr) -> F + Send + Sync + 'static,
    ) -> Result<Self, Unavailable> {
        let program = command.get_program().to_string_lossy().into_owned();
        let folder = tempfile::Builder::new().prefix("server").tempdir();
        let folder = folder
            .map_err(|error| Unavailable::broken(format!("no folder for {program}: {error}")))?;
        command.current_dir(folder.path());
        let remedy = "install it, or name its path";
        let process = Process::new(program, remedy, folder.path().join("log"));
        let (command, serves) =
            (Mutex::new(command), Box::new(move |at| Box::pin(serves(at)) as _));
        let server = Self { process, command, folder, port, limit, serves };
        server.run().await?;
        Ok(server)
    }

    /// Starts the program; one that runs is killed first.
    async fn run(&self) -> Result<(), Unavailable> {
        self.process.spawn(&mut self.command.lock().unwrap_or_else(PoisonError::into_inner))?;
        self.process.ready(self.limit, |_| (self.serves)(self.address())).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its process id, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id().ok()
    }

    /// How often a restart has killed it.
    pub(crate) fn kills(&self) -> u64 {
        self.process.kills()
    }

    /// Its working directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has printed since its first start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Freezes it (SIGSTOP): its connections stay open, and nothing is answered.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.process.freeze()
    }

    /// Ends [`freeze`](Self::freeze) (SIGCONT).
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.process.thaw()
    }

    /// Kills it without warning (SIGKILL) and starts it again: the same command, on the same port
    /// and in the same folder.
    ///
    /// # Errors
    ///
    /// As [`start_until`](Self::start_until).
    ///
    /// # Cancel safety
    ///
    /// Once it is dropped the server may be down: restart it again.
    pub async fn restart(&self) -> Result<(), Unavailable> {
        self.run().await
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::*;

    /// Set for the programs that these tests start: this executable again, with one ignored test.
    const PORT: &str = "LOCK_TEST_PROGRAM_PORT";

    fn this_executable(test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        command.args([&name, "--exact", "--ignored", "--nocapture"]);
        command
    }

    /// A server that counts its starts in a file and tells each client how many there were.
    #[test]
    #[ignore = "a program that other tests start"]
    fn program() {
        let Ok(port) = std::env::var(PORT) else { return };
        let starts = std::fs::read_to_string("starts").map_or(0, |text| text.parse().unwrap());
        std::fs::write("starts", (starts + 1).to_string()).unwrap();
        println!("start {}", starts + 1);
        let listener = std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
        for client in listener.incoming() {
            // Those that only look whether it accepts have gone.
            let _ = client.unwrap().write_all(format!("{}\n", starts + 1).as_bytes());
        }
    }

    /// A test that is killed while its server is frozen.
    #[tokio::test]
    #[ignore = "a program that another test starts"]
    async fn killed_test() {
        if std::env::var(PORT).is_ok() {
            // It ignores Ctrl-C, as some servers do.
            let mut deaf = Command::new("sh");
            deaf.args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\""]);
            let program = this_executable("program");
            deaf.arg(program.get_program()).args(program.get_args());
            let server = start(deaf).await;
            server.freeze().unwrap();
            println!("@{}", server.process.id().unwrap());
            future::pending::<()>().await;
        }
    }

    async fn start(mut command: Command) -> Server {
        let port = Port::reserve().unwrap();
        command.env(PORT, port.to_string());
        Server::start(command, port).await.unwrap()
    }

    fn ask(server: &Server) -> std::io::Result<String> {
        let stream = TcpStream::connect(server.address())?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    }

    async fn is_gone(id: u32) -> bool {
        for _ in 0..400 {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
            // A zombie does not count.
            if stat.map_or(true, |stat| stat.contains(") Z ")) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[tokio::test]
    async fn a_server_freezes_restarts_with_its_data_and_leaves_nothing() {
        let server = start(this_executable("program")).await;
        assert_eq!(ask(&server).unwrap(), "1\n");
        server.freeze().unwrap();
        assert!(ask(&server).is_err(), "a frozen server has answered");
        server.thaw().unwrap();
        assert_eq!(ask(&server).unwrap(), "1\n");
        let first = server.process.id().unwrap();
        server.freeze().unwrap();
        server.restart().await.unwrap();
        assert_eq!(ask(&server).unwrap(), "2\n");
        assert!(is_gone(first).await, "the process before the restart is still there");
        assert!(server.log().contains("start 1\n") && server.log().contains("start 2\n"));
        let (folder, second) = (server.folder().to_owned(), server.process.id().unwrap());
        drop(server);
        assert!(is_gone(second).await && !folder.exists());
    }

    /// By SIGKILL to the test, or by SIGINT to its whole group, as with Ctrl-C at a terminal.
    #[tokio::test]
    async fn a_server_does_not_outlive_a_killed_test() {
        for signal in [Signal::KILL, Signal::INT] {
            let mut command = this_executable("killed_test");
            let command = command.env(PORT, "0").stdout(Stdio::piped()).process_group(0);
            let mut test = command.spawn().unwrap();
            let mut lines = BufReader::new(test.stdout.take().unwrap()).lines();
            let id = lines.find_map(|line| line.unwrap().split_once('@')?.1.parse().ok());
            let pid = Pid::from_child(&test);
            match signal {
                Signal::INT => kill_process_group(pid, signal).unwrap(),
                _ => kill_process(pid, signal).unwrap(),
            }
            test.wait().unwrap();
            let id = id.expect("the test has started a server");
            assert!(is_gone(id).await, "the server {id} has outlived its test after {signal:?}");
        }
    }

    #[tokio::test]
    async fn a_server_does_not_outlive_a_panic() {
        let server = start(this_executable("program")).await;
        let id = server.process.id().unwrap();
        let panicked = tokio::spawn(async move {
            let _server = server;
            panic!("on purpose");
        });
        assert!(panicked.await.is_err());
        assert!(is_gone(id).await);
    }

    #[tokio::test]
    async fn a_server_is_ready_when_its_harness_says_so() {
        let start = async |ready_after: usize, limit| {
            let looks = Arc::new(AtomicUsize::new(0));
            let serves = move |address| {
                let (looks, is_ready) =
                    (Arc::clone(&looks), looks.fetch_add(1, Relaxed) >= ready_after);
                async move {
                    // One that gets no answer does not keep the others waiting.
                    if !is_ready && looks.load(Relaxed) == 1 {
                        future::pending::<()>().await;
                    }
                    is_ready && tokio::net::TcpStream::connect(address).await.is_ok()
                }
            };
            let mut command = this_executable("program");
            let port = Port::reserve().unwrap();
            command.env(PORT, port.to_string());
            Server::start_until(command, port, limit, serves).await
        };
        let server = start(2, START_LIMIT).await.unwrap();
        assert_eq!(ask(&server).unwrap(), "1\n");
        server.restart().await.unwrap();
        assert_eq!(ask(&server).unwrap(), "2\n");
        let error = start(usize::MAX, Duration::from_millis(300)).await.unwrap_err();
        assert!(error.reason().contains(" does not serve within 300ms"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_does_not_start_says_why() {
        let missing = Command::new("a-server-that-is-not-there");
        let error = Server::start(missing, Port::reserve().unwrap()).await.unwrap_err();
        assert!(!error.is_broken());
        let text = "a-server-that-is-not-there is not installed: install it, or name its path";
        assert_eq!(error.reason(), text);
        let mut ends = Command::new("sh");
        ends.args(["-c", "echo no such option; exit 3"]);
        let error = Server::start(ends, Port::reserve().unwrap()).await.unwrap_err();
        let text = "sh ended at once: exit status: 3; its log begins and ends with: no such option";
        assert_eq!(error.reason(), text);
        let error = Server::start(Command::new("false"), Port::reserve().unwrap()).await;
        let text = "false ended at once: exit status: 1; its log is empty";
        assert_eq!(error.unwrap_err().reason(), text);
    }

    /// Its process id may belong to another process by now.
    #[tokio::test]
    async fn a_process_that_has_ended_is_sent_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::new("true", "install it", folder.path().join("log"));
        process.spawn(&mut Command::new("true")).unwrap();
        while process.ended().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for error in [process.freeze().unwrap_err(), process.id().unwrap_err()] {
            assert!(error.reason().contains("has ended: exit status: 0"), "{error}");
        }
    }
}
