//! Servers of ill will.

mod manner;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance_tests::Unavailable;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use manner::Answer;
pub use manner::Manner;

/// How much a flood offers a client, over all connections.
pub const FLOOD: u64 = 32 << 20;
/// The pause between two bytes that drip.
const DRIP: Duration = Duration::from_millis(20);

/// A server that is an honest one's relay until it [`turns`](Self::turn): from then on it treats all its
/// connections, those that exist included, in its own manner. Dropping it ends it.
#[derive(Debug)]
pub struct Turncoat {
    address: SocketAddr,
    state: Arc<State>,
    acceptor: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// `None` while it is honest.
    manner: watch::Sender<Option<Manner>>,
    /// What is left of the flood.
    left: AtomicU64,
    /// Connections, and what was read from them at once, since it turned.
    asked: AtomicU64,
}

impl Turncoat {
    /// In front of `upstream`, on a free loopback port.
    pub async fn start(upstream: SocketAddr) -> Result<Self, Unavailable> {
        let no_port = |error| Unavailable::broken(format!("no port for a turncoat: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let manner = watch::Sender::new(None);
        let state =
            Arc::new(State { upstream, manner, left: AtomicU64::new(0), asked: AtomicU64::new(0) });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, acceptor })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on it is hostile.
    pub fn turn(&self, manner: Manner) {
        self.state.left.store(FLOOD, Relaxed);
        self.state.asked.store(0, Relaxed);
        self.state.manner.send_replace(Some(manner));
    }

    /// From now on it is honest again, on new connections; the hostile ones end.
    pub fn repent(&self) {
        self.state.manner.send_replace(None);
    }

    /// How many connections and requests it has seen since it turned. What is read at once is one
    /// request.
    pub fn asked(&self) -> u64 {
        self.state.asked.load(Relaxed)
    }

    /// How much of the present flood the clients have taken.
    pub fn flooded(&self) -> u64 {
        FLOOD - self.state.left.load(Relaxed)
    }
}

impl Drop for Turncoat {
    fn drop(&mut self) {
        self.acceptor.abort();
        // Ends the connections.
        self.repent();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // How a connection ends says nothing: either side may have closed it.
            let _ = serve(client, &state).await;
        });
    }
}

async fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    let mut manners = state.manner.subscribe();
    if manners.borrow_and_update().is_none() {
        let mut server = TcpStream::connect(state.upstream).await?;
        client.set_nodelay(true)?;
        tokio::select! {
            // First: what is sent after the turn must not reach the server.
            biased;
            turned = manners.wait_for(Option::is_some) => drop(turned),
            ended = copy_bidirectional(&mut client, &mut server) => return ended.map(drop),
        }
    }
    let Some(manner) = manners.borrow_and_update().clone() else { return Ok(()) };
    state.asked.fetch_add(1, Relaxed);
    let (requests, answers) = client.into_split();
    tokio::select! {
        ended = treat(&manner, Requests { from: requests, asked: &state.asked }, answers, &state.left) => ended,
        _ = manners.changed() => Ok(()),
    }
}

async fn treat(
    manner: &Manner,
    mut requests: Requests<'_>,
    mut answers: OwnedWriteHalf,
    left: &AtomicU64,
) -> io::Result<()> {
    match &manner.answer {
        Answer::End => Ok(()),
        Answer::Nothing => {
            while requests.next().await? {}
            Ok(())
        }
        Answer::Each(text) => loop {
            answers.write_all(text).await?;
            if !requests.next().await? {
                return Ok(());
            }
        },
        Answer::Drip(text) => {
            for byte in text.iter().cycle() {
                answers.write_all(&[*byte]).await?;
                tokio::time::sleep(DRIP).await;
            }
            Ok(())
        }
        Answer::Flood { head, then } => {
            answers.write_all(head).await?;
            let length = then.len() as u64;
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(length)).is_ok() {
                answers.write_all(then).await?;
            }
            // It stays open, as if there were more.
            while requests.next().await? {}
            Ok(())
        }
    }
}

/// What a client sends.
struct Requests<'a> {
    from: OwnedReadHalf,
    asked: &'a AtomicU64,
}

impl Requests<'_> {
    /// Whether there is another one, which nobody reads.
    async fn next(&mut self) -> io::Result<bool> {
        let length = self.from.read(&mut [0; 16 * 1024]).await?;
        self.asked.fetch_add(u64::from(length > 0), Relaxed);
        Ok(length > 0)
    }
}
