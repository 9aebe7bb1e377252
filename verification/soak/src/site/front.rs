//! An address that is moved from one server to another, as at a fail-over.

use std::net::SocketAddr;

use conformance_tests::Unavailable;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug)]
pub(super) struct Front {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    acceptor: JoinHandle<()>,
}

impl Front {
    pub(super) async fn start(target: SocketAddr) -> Result<Self, Unavailable> {
        let broken =
            |error: std::io::Error| Unavailable::broken(format!("no port for a front: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        let target = watch::Sender::new(target);
        let acceptor = tokio::spawn(accept(listener, target.clone()));
        Ok(Self { address, target, acceptor })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections; new ones reach this server.
    pub(super) fn move_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn accept(listener: TcpListener, target: watch::Sender<SocketAddr>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut target = target.subscribe();
        tokio::spawn(async move {
            let upstream = *target.borrow_and_update();
            let carry = async {
                if let Ok(mut server) = TcpStream::connect(upstream).await {
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            };
            tokio::select! {
                () = carry => {}
                _ = target.changed() => {}
            }
        });
    }
}
