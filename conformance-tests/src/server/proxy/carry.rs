//! The connections of a proxy, and the bytes on them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::http2;
use super::rules::{Direction, Line, Rules};
use super::wire::Wire;
use crate::server::Port;

/// How often a port is tried that seems to be in use, and the pause in between: a process that is being
/// started has a copy of each socket of this one, also of those that were just closed, until its
/// program runs.
const TRIES: (u32, Duration) = (100, Duration::from_millis(10));

pub(super) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (tries, pause) = TRIES;
    for _ in 1..tries {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tokio::time::sleep(pause).await;
            }
            other => return other,
        }
    }
    TcpListener::bind(address).await
}

pub(super) async fn accept(
    port: Port,
    mut listener: TcpListener,
    upstream: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    wire: Wire,
) {
    let mut changes = rules.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = changes.wait_for(|rules| rules.refuse) => {}
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    let line = Line::new(Arc::clone(&rules), wire.clone());
                    tokio::spawn(serve(client, upstream, line));
                }
                continue;
            }
        }
        drop(listener);
        let _ = changes.wait_for(|rules| !rules.refuse).await;
        // Without its port the proxy is of no use: whoever connects is refused.
        let Ok(again) = listen(port.address()).await else { return };
        listener = again;
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, line: Line) {
    // A stalled link does not even reach the server.
    let server = tokio::select! {
        () = line.cut() => return,
        server = async {
            line.open(Direction::Requests).await;
            TcpStream::connect(upstream).await
        } => server,
    };
    let Ok(server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::join!(
        carry(&line, Direction::Requests, client_read, server_write),
        carry(&line, Direction::Replies, server_read, client_write),
    );
}

/// A piece in flight, and when it arrives.
struct Piece {
    bytes: Vec<u8>,
    due: Instant,
    cut: bool,
}

/// Carries one direction. Data that has been read is delivered even if the sender has closed since,
/// as on a real network; a cut ends it at once.
async fn carry(line: &Line, direction: Direction, from: OwnedReadHalf, to: OwnedWriteHalf) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let both = async {
        tokio::join!(read(line, direction, &from, sender), write(line, direction, &to, receiver));
    };
    tokio::select! {
        biased;
        () = line.cut() => {
            if line.rules.borrow().reset || *line.ended.borrow() {
                let _ = from.as_ref().set_zero_linger();
            }
        }
        () = both => {}
    }
}

async fn read(
    line: &Line,
    direction: Direction,
    from: &OwnedReadHalf,
    to: mpsc::UnboundedSender<Piece>,
) {
    let mut last = Instant::now();
    let mut buffer = vec![0; 64 * 1024];
    let mut frames = line.rules.borrow().http2.then(|| match direction {
        Direction::Requests => http2::Frames::of_client(),
        Direction::Replies => http2::Frames::of_server(),
    });
    loop {
        if from.readable().await.is_err() {
            return;
        }
        let length = match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let counts = frames.as_mut().is_none_or(|frames| frames.carry_a_message(&buffer[..length]));
        let verdict = if counts { line.judge(direction) } else { line.let_pass() };
        line.wire.note(line.number, direction, &buffer[..length], verdict);
        last = last.max(Instant::now() + verdict.delay);
        let bytes = if verdict.lose { Vec::new() } else { buffer[..length].to_vec() };
        if to.send(Piece { bytes, due: last, cut: verdict.cut }).is_err() {
            return;
        }
    }
}

async fn write(
    line: &Line,
    direction: Direction,
    to: &OwnedWriteHalf,
    mut pieces: mpsc::UnboundedReceiver<Piece>,
) {
    let mut to = Writer(to);
    while let Some(piece) = pieces.recv().await {
        tokio::time::sleep_until(piece.due).await;
        line.open(direction).await;
        if !piece.bytes.is_empty() && to.all(&piece.bytes).await.is_err() {
            return;
        }
        if piece.cut {
            line.ended.send_replace(true);
            return;
        }
    }
}

/// Writes through a shared half, so that the other one can still set socket options.
struct Writer<'a>(&'a OwnedWriteHalf);

impl Writer<'_> {
    async fn all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
