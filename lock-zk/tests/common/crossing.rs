//! A link that leads a session that is resumed to another server than a new one, refuses a `sync`, shows
//! what a server would show that is behind, answers as an old one, and holds up one of several requests that were sent
//! together.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The numbers of a `sync` and of a read among ZooKeeper's requests.
const SYNC: i32 = 9;
const READ: i32 = 4;
/// Those of a look whether a node exists, of a list of its children, and of several reads.
pub(crate) const EXISTS: i32 = 3;
pub(crate) const LIST: i32 = 12;
pub(crate) const READS: i32 = 22;
/// The end of the path of the base of the fences.
const BASE: &[u8] = b"/%fence";
/// What stands in the place of a request's number where a server reports a change.
const EVENT: i32 = -1;
/// What a server answers to a request that has waited too long in it (`ThrottledOp`).
const THROTTLED: i32 = -127;
/// What it answers to a request that it does not know.
const UNKNOWN: i32 = -6;

pub(crate) struct Crossing {
    address: SocketAddr,
    plan: Arc<Mutex<Plan>>,
    acceptor: JoinHandle<()>,
}

struct Plan {
    /// The server of new sessions.
    new: SocketAddr,
    /// The server of those that are resumed.
    resumed: SocketAddr,
    /// How many more of the next `sync`s are refused.
    refused: usize,
    /// The last answer to a read of the base of the fences.
    base: Vec<u8>,
    /// Until the next `sync` of the base, that is the answer to all further ones.
    is_behind: bool,
    /// The server is older than the request for several reads, and has been sent it so many times.
    refused_reads: Option<usize>,
    /// The next request to hold up.
    holds: Option<Hold>,
    /// Cuts the present connections.
    cut: CancellationToken,
}

/// A request to be held up: the next one of this kind after `passing` others.
struct Hold {
    kind: i32,
    passing: usize,
    arrived: oneshot::Sender<()>,
    goes_on: oneshot::Receiver<()>,
}

impl Plan {
    /// What holds up this request, if anything does.
    fn hold_of(&mut self, kind: i32) -> Option<Hold> {
        let hold = self.holds.as_mut().filter(|hold| hold.kind == kind)?;
        if hold.passing > 0 {
            hold.passing -= 1;
            return None;
        }
        self.holds.take()
    }
}

/// A request that is held up until this is dropped.
pub(crate) struct Held {
    arrived: oneshot::Receiver<()>,
    _goes_on: oneshot::Sender<()>,
}

impl Held {
    /// Waits until it has come.
    pub(crate) async fn arrived(&mut self) {
        (&mut self.arrived).await.unwrap();
    }
}

impl Crossing {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plan = Plan {
            new: server,
            resumed: server,
            refused: 0,
            base: Vec::new(),
            is_behind: false,
            refused_reads: None,
            holds: None,
            cut: CancellationToken::new(),
        };
        let plan = Arc::new(Mutex::new(plan));
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&plan)));
        Self { address, plan, acceptor }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the present connections. Their sessions are resumed at this server, and it refuses this
    /// many `sync`s.
    pub(crate) fn cut(&self, resumed: SocketAddr, refused: usize) {
        let mut plan = self.plan.lock().unwrap();
        (plan.resumed, plan.refused) = (resumed, refused);
        std::mem::take(&mut plan.cut).cancel();
    }

    /// Until the base of the fences is asked for by a `sync`, it is shown as it was when last read.
    pub(crate) fn fall_behind(&self) {
        self.plan.lock().unwrap().is_behind = true;
    }

    /// Holds up the next request of this kind after `passing` others, and what is sent after it. It has arrived when what
    /// was sent before it was answered.
    pub(crate) fn hold(&self, kind: i32, passing: usize) -> Held {
        let ((coming, arrived), (going_on, goes_on)) = (oneshot::channel(), oneshot::channel());
        self.plan.lock().unwrap().holds = Some(Hold { kind, passing, arrived: coming, goes_on });
        Held { arrived, _goes_on: going_on }
    }

    /// From now on the server does not know the request for several reads: it refuses that at once, and closes the
    /// connection.
    pub(crate) fn grow_old(&self) {
        self.plan.lock().unwrap().refused_reads = Some(0);
    }

    /// How many requests for several reads were refused.
    pub(crate) fn refused_reads(&self) -> usize {
        self.plan.lock().unwrap().refused_reads.unwrap()
    }

    /// How many `sync`s are still to be refused.
    pub(crate) fn to_refuse(&self) -> usize {
        self.plan.lock().unwrap().refused
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.plan.lock().unwrap().cut.cancel();
    }
}

async fn accept(listener: TcpListener, plan: Arc<Mutex<Plan>>) {
    while let Ok((client, _)) = listener.accept().await {
        let plan = Arc::clone(&plan);
        let cut = plan.lock().unwrap().cut.clone();
        tokio::spawn(cut.run_until_cancelled_owned(async move { carry(client, &plan).await }));
    }
}

/// Each request and each reply begins with its length. The first of a connection is the handshake;
/// others have a number of their own.
async fn carry(client: TcpStream, plan: &Mutex<Plan>) -> io::Result<()> {
    let (refused, read) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
    let unanswered = AtomicUsize::new(0);
    let (mut from_client, mut to_client) = client.into_split();
    let handshake = frame(&mut from_client).await?;
    let server = {
        let plan = plan.lock().unwrap();
        // The number of the session; a new one has none yet.
        if handshake[16..24] == [0; 8] { plan.new } else { plan.resumed }
    };
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    send(&mut to_server, &handshake).await?;
    let requests = async {
        loop {
            let request = frame(&mut from_client).await?;
            if number(&request, 4) == READS
                && let Some(refused) = &mut plan.lock().unwrap().refused_reads
            {
                *refused += 1;
                return io::Result::Ok(request);
            }
            let hold = plan.lock().unwrap().hold_of(number(&request, 4));
            if let Some(hold) = hold {
                // The server has done what was asked before.
                while unanswered.load(Ordering::Relaxed) > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let _ = hold.arrived.send(());
                let _ = hold.goes_on.await;
            }
            if number(&request, 4) == SYNC {
                let mut plan = plan.lock().unwrap();
                // Not one that keeps a session of whatever client comes this way.
                plan.is_behind &= !request.ends_with(BASE);
                if plan.refused > 0 {
                    plan.refused -= 1;
                    refused.lock().unwrap().insert(number(&request, 0));
                }
            } else if number(&request, 4) == READ
                && request.strip_suffix(&[0]).is_some_and(|it| it.ends_with(BASE))
            {
                read.lock().unwrap().insert(number(&request, 0));
            }
            unanswered.fetch_add(1, Ordering::Relaxed);
            send(&mut to_server, &request).await?;
        }
    };
    let replies = async {
        let handshake = frame(&mut from_server).await?;
        send(&mut to_client, &handshake).await?;
        loop {
            let mut reply = frame(&mut from_server).await?;
            if number(&reply, 0) != EVENT {
                unanswered.fetch_sub(1, Ordering::Relaxed);
            }
            if refused.lock().unwrap().remove(&number(&reply, 0)) {
                reply[12..16].copy_from_slice(&THROTTLED.to_be_bytes());
            }
            if read.lock().unwrap().remove(&number(&reply, 0)) {
                let mut plan = plan.lock().unwrap();
                if plan.is_behind {
                    // After the number of the request.
                    reply.splice(4.., plan.base[4..].iter().copied());
                }
                plan.base = reply.clone();
            }
            send(&mut to_client, &reply).await?;
        }
    };
    let unknown = tokio::select! { asked = requests => asked?, ended = replies => return ended };
    // Ahead of the answers to what was asked before.
    let refusal = [&unknown[..4], &[0; 8], &UNKNOWN.to_be_bytes()].concat();
    send(&mut to_client, &refusal).await
}

async fn frame(from: &mut tcp::OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; usize::try_from(from.read_u32().await?).unwrap()];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn send(to: &mut tcp::OwnedWriteHalf, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
    to.write_all(&[&length, frame].concat()).await
}

fn number(frame: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}
