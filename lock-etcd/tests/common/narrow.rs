//! A link that lets through only the begin of what a server says.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Of what the server says on each connection, only so much passes. The rest waits.
#[derive(Debug)]
pub(crate) struct Narrow {
    address: SocketAddr,
    limit: watch::Sender<usize>,
    acceptor: JoinHandle<()>,
}

impl Drop for Narrow {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Narrow {
    /// Everything passes at first.
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limit = watch::Sender::new(usize::MAX);
        let limits = limit.subscribe();
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, upstream, limits.clone()));
            }
        });
        Self { address, limit, acceptor }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes pass on each connection, counted from its begin.
    pub(crate) fn pass_only(&self, bytes: usize) {
        self.limit.send_replace(bytes);
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, limit: watch::Receiver<usize>) {
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    // The end of either is the end of the link.
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = carry(from_server, to_client, limit) => {}
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut limit: watch::Receiver<usize>,
) -> std::io::Result<()> {
    let (mut passed, mut buffer) = (0, [0; 4096]);
    loop {
        let open = limit.wait_for(|limit| *limit > passed).await.map(|limit| *limit - passed);
        let Ok(open) = open else { return Ok(()) };
        let most = open.min(buffer.len());
        let length = from.read(&mut buffer[..most]).await?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
        passed += length;
    }
}
