//! A plain connection to a Redis server.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;

use lock_testkit::servers::RedisServer;

pub(crate) struct Plain {
    connection: TcpStream,
    answers: Lines<BufReader<TcpStream>>,
}

impl Plain {
    pub(crate) fn connect(server: &RedisServer) -> Self {
        let connection =
            TcpStream::connect(server.address().expect("an address")).expect("a server");
        let answers = BufReader::new(connection.try_clone().expect("a socket")).lines();
        Self { connection, answers }
    }

    /// The answer to a command, of one line or one text.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.connection, "{command}\r").expect("it is sent");
        let first = self.line();
        assert!(!first.starts_with('-'), "{command}: {first}");
        if first.starts_with('$') && first != "$-1" { self.line() } else { first }
    }

    fn line(&mut self) -> String {
        self.answers.next().expect("an answer").expect("a line")
    }
}

/// A field of `INFO`, asked over a connection of its own.
pub(crate) fn info(server: &RedisServer, field: &str) -> String {
    let mut connection =
        TcpStream::connect(server.address().expect("an address")).expect("a server");
    connection.write_all(b"INFO\r\nQUIT\r\n").expect("it is sent");
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("an answer");
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find_map(|(name, value)| (name == field).then(|| value.to_owned())).unwrap_or_default()
}
