//! A proxy that sends plain reads to another server, as Pgpool and others can.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Speaks the simple protocol, without a password.
pub(crate) struct Splitter {
    pub(crate) address: SocketAddr,
    /// How many reads the standby has answered.
    pub(crate) reads: Arc<AtomicUsize>,
}

impl Splitter {
    pub(crate) async fn start(primary: SocketAddr, standby: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reads = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&reads);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (primary, standby) =
                    (TcpStream::connect(primary).await, TcpStream::connect(standby).await);
                tokio::spawn(split(
                    client,
                    primary.unwrap(),
                    standby.unwrap(),
                    Arc::clone(&counted),
                ));
            }
        });
        Self { address, reads }
    }
}

/// Ends with the client.
async fn split(
    mut client: TcpStream,
    mut primary: TcpStream,
    mut standby: TcpStream,
    reads: Arc<AtomicUsize>,
) -> Option<()> {
    let mut size = [0; 4];
    client.read_exact(&mut size).await.ok()?;
    let mut start = vec![0; usize::try_from(u32::from_be_bytes(size)).ok()? - 4];
    client.read_exact(&mut start).await.ok()?;
    for server in [&mut primary, &mut standby] {
        server.write_all(&size).await.ok()?;
        server.write_all(&start).await.ok()?;
    }
    let _ = answer(&mut standby).await?;
    client.write_all(&answer(&mut primary).await?).await.ok()?;
    loop {
        let (kind, message) = message(&mut client).await?;
        if kind != b'Q' {
            return None;
        }
        let text = String::from_utf8_lossy(&message[5..message.len() - 1]).into_owned();
        // Without the settings that go ahead.
        let text = text.rsplit_once("'1s'; ").map_or(&*text, |(_, text)| text);
        let is_read = text.starts_with("SELECT") && !text.contains(" FOR ");
        let server = if is_read { &mut standby } else { &mut primary };
        reads.fetch_add(usize::from(is_read), SeqCst);
        server.write_all(&message).await.ok()?;
        client.write_all(&answer(server).await?).await.ok()?;
    }
}

/// One message: its kind, and all of it.
async fn message(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut whole = vec![0; 5];
    stream.read_exact(&mut whole).await.ok()?;
    let size = u32::from_be_bytes([whole[1], whole[2], whole[3], whole[4]]);
    whole.resize(usize::try_from(size).ok()? + 1, 0);
    stream.read_exact(&mut whole[5..]).await.ok()?;
    Some((whole[0], whole))
}

/// All up to "ready for the next query".
async fn answer(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (kind, message) = message(stream).await?;
        all.extend(message);
        if kind == b'Z' {
            return Some(all);
        }
    }
}
