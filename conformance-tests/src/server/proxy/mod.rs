//! A TCP proxy that injects faults into one link.

mod carry;
mod http2;
mod rules;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use async_trait::async_trait;

use self::rules::{Next, Rules};
use self::wire::Wire;
use super::Port;
use crate::{Fault, Faults, Unavailable};

/// A TCP proxy that disturbs one link: it loses, delays and holds up requests and replies, falls
/// silent, cuts connections and refuses new ones. Dropping it ends it, and its connections.
///
/// It knows nothing about the protocol. Whatever one `read` of the proxy returns counts as one request
/// or one reply: over loopback that is what the other side wrote at once. A client that pipelines
/// several requests in one write has made one request in this sense, and a pushed message counts as
/// a reply. So a harness makes the connection, and logs in, before a case gets the client: the fault
/// that a case arranges is meant for a request of the lock.
pub struct Proxy {
    address: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    wire: Wire,
    acceptor: JoinHandle<()>,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Orderly, with a FIN in both directions.
    Fin,
    /// With a reset: data in flight is lost.
    Reset,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut(Cut::Reset);
    }
}

impl Proxy {
    /// Starts a proxy to `upstream` on a free loopback port and the current Tokio runtime. The server
    /// need not be running yet.
    ///
    /// # Errors
    ///
    /// [`Unavailable::broken`] if there is no free port.
    pub async fn start(upstream: SocketAddr) -> Result<Self, Unavailable> {
        Self::open(upstream, false).await
    }

    /// As [`start`](Self::start), for HTTP/2 without TLS: only data that carries (a part of) a
    /// message counts as a request or a reply. Other data, such as a ping and its answer, passes
    /// without being counted.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_http2(upstream: SocketAddr) -> Result<Self, Unavailable> {
        Self::open(upstream, true).await
    }

    async fn open(upstream: SocketAddr, http2: bool) -> Result<Self, Unavailable> {
        let port = Port::reserve()?;
        let address = port.address();
        let no_port = |error| Unavailable::broken(format!("no port for a proxy: {error}"));
        let listener = carry::listen(address).await.map_err(no_port)?;
        let rules = Arc::new(watch::Sender::new(Rules { http2, ..Rules::default() }));
        let wire = Wire::default();
        let accept = carry::accept(port, listener, upstream, Arc::clone(&rules), wire.clone());
        let acceptor = tokio::spawn(accept);
        Ok(Self { address, rules, wire, acceptor })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets everything pass again, and forgets all plans. Stalled data is delivered.
    pub fn pass(&self) {
        self.rules.send_modify(|rules| {
            *rules = Rules {
                http2: rules.http2,
                cuts: rules.cuts,
                requests: rules.requests,
                struck: rules.struck,
                replies: rules.replies,
                connections: rules.connections,
                ..Rules::default()
            };
        });
    }

    /// Cuts all connections. New ones are accepted.
    pub fn cut(&self, how: Cut) {
        self.rules.send_modify(|rules| {
            rules.cuts += 1;
            rules.reset = how == Cut::Reset;
        });
    }

    /// Whether new connections are refused, as by a machine on which no server runs.
    pub fn refuse_new(&self, refuse: bool) {
        self.rules.send_modify(|rules| rules.refuse = refuse);
    }

    /// Nothing passes in either direction; connections stay open.
    pub fn stall(&self) {
        self.rules.send_modify(|rules| (rules.stall_requests, rules.stall_replies) = (true, true));
    }

    /// As [`stall`](Self::stall), for the present connections only: new ones work, as after a
    /// firewall has forgotten the old ones.
    pub fn stall_present(&self) {
        self.rules.send_modify(|rules| rules.stall_up_to = rules.connections);
    }

    /// Requests pass, replies do not.
    pub fn stall_replies(&self) {
        self.rules.send_modify(|rules| (rules.stall_requests, rules.stall_replies) = (false, true));
    }

    /// Every request and every reply takes `delay`, more or less by up to `jitter`. Their order is
    /// kept.
    pub fn delay(&self, delay: Duration, jitter: Duration) {
        self.rules.send_modify(|rules| (rules.delay, rules.jitter) = (delay, jitter));
    }

    /// Cuts the connection that carries the `k`-th request from now (1 is the next one) right after
    /// the request has been delivered: the server acts, and its reply is lost.
    pub fn cut_after_request(&self, k: u64) {
        self.rules.send_modify(|rules| rules.cut_after_request = Some(rules.requests + k));
    }

    /// Cuts the connection on which the `k`-th reply from now arrives, instead of delivering it.
    pub fn cut_before_reply(&self, k: u64) {
        self.rules.send_modify(|rules| rules.cut_before_reply = Some(rules.replies + k));
    }

    /// How many requests have come from clients so far.
    pub fn requests(&self) -> u64 {
        self.rules.borrow().requests
    }

    /// How many replies have come from the server so far.
    pub fn replies(&self) -> u64 {
        self.rules.borrow().replies
    }

    /// How many connections there have been so far.
    pub fn connections(&self) -> u64 {
        self.rules.borrow().connections
    }

    fn plan(&self, next: Next) {
        self.rules.send_modify(|rules| rules.next.push_back(Some(next)));
    }
}

#[async_trait]
impl Faults for Proxy {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        match fault {
            Fault::LoseNextRequest => self.plan(Next::LoseRequest),
            Fault::LoseNextReply => self.plan(Next::LoseReply),
            Fault::DelayNextReply(delay) => self.plan(Next::DelayReply(delay)),
            Fault::HoldNextRequest(delay) => self.plan(Next::HoldRequest(delay)),
            Fault::SkipRequests(requests) => {
                let skipped = (0..requests).map(|_| None);
                self.rules.send_modify(|rules| rules.next.extend(skipped));
            }
            Fault::Partition => self.stall(),
            Fault::Refuse => {
                self.refuse_new(true);
                self.cut(Cut::Reset);
            }
            Fault::Heal => self.pass(),
        }
        Ok(())
    }

    fn requests(&self) -> Option<u64> {
        Some(Self::requests(self))
    }

    fn struck(&self) -> Option<u64> {
        Some(self.rules.borrow().struck)
    }

    fn connections(&self) -> Option<u64> {
        Some(Self::connections(self))
    }

    fn last_messages(&self) -> Vec<String> {
        self.wire.told()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers every byte with the same byte.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_all(b"x").await?;
        let mut answer = [0; 1];
        let limit = Duration::from_millis(300);
        match tokio::time::timeout(limit, stream.read_exact(&mut answer)).await {
            Ok(read) => read.map(|_| answer[0]),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn kind(answer: io::Result<u8>) -> Option<io::ErrorKind> {
        answer.err().map(|error| error.kind())
    }

    #[tokio::test]
    async fn each_disturbance_does_what_it_says() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let connect = async || TcpStream::connect(proxy.address()).await.unwrap();
        let mut stream = connect().await;
        assert_eq!(ask(&mut stream).await.unwrap(), b'x');
        assert_eq!((proxy.requests(), proxy.replies()), (1, 1));

        proxy.stall();
        assert_eq!(kind(ask(&mut stream).await), Some(io::ErrorKind::TimedOut));
        assert_eq!(proxy.replies(), 1, "the server was reached");
        proxy.pass();
        assert_eq!(ask(&mut stream).await.unwrap(), b'x', "what was stalled is delivered");

        let mut stream = connect().await;
        ask(&mut stream).await.unwrap();
        let before = proxy.replies();
        proxy.stall_replies();
        assert_eq!(kind(ask(&mut stream).await), Some(io::ErrorKind::TimedOut));
        assert_eq!(proxy.replies(), before + 1, "the request passed");
        proxy.pass();

        let mut old = connect().await;
        ask(&mut old).await.unwrap();
        proxy.stall_present();
        assert_eq!(kind(ask(&mut old).await), Some(io::ErrorKind::TimedOut));
        assert_eq!(ask(&mut connect().await).await.unwrap(), b'x', "new connections work");
        proxy.pass();
        // The late answer on the old connection would count as the next reply.
        proxy.cut(Cut::Reset);
        tokio::time::sleep(Duration::from_millis(100)).await;

        let mut stream = connect().await;
        proxy.cut_before_reply(2);
        ask(&mut stream).await.unwrap();
        let before = proxy.replies();
        assert!(ask(&mut stream).await.is_err());
        assert_eq!(proxy.replies(), before + 1, "the server has answered");

        let mut stream = connect().await;
        proxy.cut_after_request(1);
        assert!(ask(&mut stream).await.is_err());

        let mut stream = connect().await;
        proxy.inject(Fault::LoseNextRequest).await.unwrap();
        let before = proxy.replies();
        assert!(ask(&mut stream).await.is_err());
        assert_eq!(proxy.replies(), before, "the server has seen nothing");

        let mut stream = connect().await;
        proxy.delay(Duration::from_millis(40), Duration::ZERO);
        let start = Instant::now();
        ask(&mut stream).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(79), "{:?}", start.elapsed());
        proxy.pass();

        for how in [Cut::Fin, Cut::Reset] {
            let mut stream = connect().await;
            ask(&mut stream).await.unwrap();
            proxy.cut(how);
            assert!(ask(&mut stream).await.is_err());
        }
        proxy.refuse_new(true);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        proxy.pass();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(ask(&mut connect().await).await.unwrap(), b'x', "it is up again");
    }

    #[tokio::test]
    async fn a_fault_can_be_meant_for_a_later_request() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.inject(Fault::SkipRequests(2)).await.unwrap();
        proxy.inject(Fault::LoseNextReply).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&mut stream).await.unwrap(), b'x');
        }
        assert_eq!(proxy.struck(), Some(0));
        assert!(ask(&mut stream).await.is_err());
        assert_eq!((Faults::requests(&proxy), proxy.struck()), (Some(3), Some(1)));
        let told = proxy.last_messages();
        assert!(told[0].ends_with(", connection 1, request of 1 bytes: x"), "{told:?}");
        assert!(told.iter().any(|line| line.contains("reply of 1 bytes, lost")), "{told:?}");
    }

    #[tokio::test]
    async fn two_faults_befall_two_requests() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        for _ in 0..2 {
            proxy.inject(Fault::LoseNextReply).await.unwrap();
        }
        for _ in 0..2 {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            assert!(ask(&mut stream).await.is_err());
        }
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!((ask(&mut stream).await.unwrap(), proxy.struck()), (b'x', Some(2)));
    }

    /// A held request arrives even though its sender has given up.
    #[tokio::test]
    async fn a_held_request_arrives_after_its_sender_has_gone() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream).await.unwrap();
        proxy.inject(Fault::HoldNextRequest(Duration::from_millis(200))).await.unwrap();
        stream.write_all(b"late").await.unwrap();
        drop(stream);
        let before = proxy.replies();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(proxy.replies(), before);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(proxy.replies(), before + 1, "it was answered, with no one to receive it");
    }
}
