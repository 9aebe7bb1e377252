//! What hostile servers do, in the language of each store.

use std::sync::Arc;

use crate::networked::Networked;

/// How a hostile server treats its clients.
#[derive(Clone, Debug)]
pub struct Manner {
    /// For messages.
    pub name: &'static str,
    pub(super) answer: Answer,
}

/// What a hostile server sends.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    End,
    Nothing,
    /// This at once, and again for each request.
    Each(Arc<[u8]>),
    /// This for ever, a byte at a time.
    Drip(Arc<[u8]>),
    /// `head`, and then `then` again and again, as fast as it is taken.
    Flood {
        head: Arc<[u8]>,
        then: Arc<[u8]>,
    },
}

/// In a text of the server that an error may show.
const SHOUT: &str = "\x1b[2Jnobody\r\nis here";
/// Longer than any error ought to be.
const SHOUTS: usize = 4_000;

impl Manner {
    /// All manners of a hostile server for clients of `store`.
    pub fn all(store: Networked) -> Vec<Self> {
        let mut all = vec![
            Self::closing(),
            Self::silent(),
            Self::each("talks HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
            Self::noisy(),
            Self::new("drips noise", Answer::Drip(noise().into())),
            Self::new("drips an answer", Answer::Drip(polite(store).into())),
            Self::flood("floods with zeros", b"", &[0]),
        ];
        all.extend(match store {
            Networked::Redis | Networked::Redlock => resp(),
            Networked::Etcd => http2(),
            Networked::ZooKeeper => jute(),
            Networked::Postgres => postgres(),
            Networked::MariaDb => mysql(),
        });
        all
    }

    /// It closes each connection.
    pub fn closing() -> Self {
        Self::new("closes", Answer::End)
    }

    /// It reads, and says nothing.
    pub fn silent() -> Self {
        Self::new("says nothing", Answer::Nothing)
    }

    /// It answers what no server answers.
    pub fn noisy() -> Self {
        Self::each("sends noise", &noise())
    }

    fn new(name: &'static str, answer: Answer) -> Self {
        Self { name, answer }
    }

    fn each(name: &'static str, text: &[u8]) -> Self {
        Self::new(name, Answer::Each(text.into()))
    }

    fn flood(name: &'static str, head: &[u8], then: &[u8]) -> Self {
        let then = then.repeat((64 * 1024 / then.len()).max(1));
        Self::new(name, Answer::Flood { head: head.into(), then: then.into() })
    }
}

/// The same in every run.
fn noise() -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..256).flat_map(next).collect()
}

/// How an answer may begin.
fn polite(store: Networked) -> Vec<u8> {
    match store {
        Networked::Redis | Networked::Redlock => b"$100000\r\n".to_vec(),
        // The settings of HTTP/2, of which there are none, and their confirmation.
        Networked::Etcd => [frame(4, 0, 0, b""), frame(4, 1, 0, b"")].concat(),
        Networked::ZooKeeper => b"\0\0\0\x25\0\0\0\0".to_vec(),
        Networked::Postgres => b"R\0\0\0\x08\0\0\0\0".to_vec(),
        Networked::MariaDb => b"\x4a\0\0\0\x0a5.5.5-10".to_vec(),
    }
}

fn resp() -> Vec<Manner> {
    let shout = format!("-ERR {}\r\n", SHOUT.replace("\r\n", " ").repeat(SHOUTS));
    vec![
        Manner::each("shouts", shout.as_bytes()),
        Manner::each("counts below zero", b"$-7\r\n*-7\r\n%-1\r\n"),
        Manner::each("promises a long list", b"*2147483647\r\n"),
        Manner::each("promises a long text", b"$9223372036854775807\r\n"),
        Manner::flood("floods with a text", b"$500000000\r\n", b"x"),
        Manner::flood("floods with a line", b"+", b"x"),
        Manner::flood("floods with a list", b"*2000000000\r\n", b":1\r\n"),
        Manner::flood("nests lists", b"", b"*1\r\n"),
        Manner::flood("floods with answers", b"", b"+OK\r\n"),
        Manner::flood("floods with pushes", b"", b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"),
    ]
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

fn http2() -> Vec<Manner> {
    let hello = [frame(4, 0, 0, b""), frame(4, 1, 0, b"")].concat();
    // Status 200, and the content type of gRPC.
    let headers = frame(1, 4, 1, b"\x88\x0f\x10\x10application/grpc");
    let grpc = [&hello[..], &headers].concat();
    // A message of 2 GiB, as its head says.
    let long = [&grpc[..], &frame(0, 0, 1, b"\0\x7f\xff\xff\xff")].concat();
    let field = [&b"\0\x7f\x80\x01"[..], &[b'x'; 255], &b"\x01y"[..]].concat();
    let endless = [&hello[..], &frame(1, 0, 1, &field)].concat();
    vec![
        Manner::flood("floods with a message", &long, &frame(0, 0, 1, &[0; 16_000])),
        Manner::flood("floods with header fields", &endless, &frame(9, 0, 1, &field)),
        Manner::flood("floods with settings", &hello, &frame(4, 0, 0, b"")),
        Manner::flood("floods with pings", &hello, &frame(6, 0, 0, &[0; 8])),
        Manner::flood("floods with resets", &hello, &frame(3, 0, 1, &[0; 4])),
    ]
}

fn jute() -> Vec<Manner> {
    vec![
        Manner::each("counts below zero", b"\xff\xff\xff\xff"),
        Manner::each("promises a long answer", b"\x7f\xff\xff\xff"),
        Manner::flood("floods with an answer", b"\x7f\xff\xff\xff", b"x"),
        Manner::flood("floods with answers", b"", &[&b"\0\0\0\x10"[..], &[0xff; 16]].concat()),
    ]
}

fn postgres() -> Vec<Manner> {
    let shout = SHOUT.repeat(SHOUTS);
    let body = [&b"SERROR\0C42501\0M"[..], shout.as_bytes(), b"\0\0"].concat();
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    vec![
        Manner::each("shouts", &[&b"E"[..], &length, &body].concat()),
        Manner::each("counts below zero", b"R\xff\xff\xff\xff"),
        Manner::each("counts too little", b"R\0\0\0\0R\0\0\0\x03"),
        Manner::each("promises a long answer", b"R\x7f\xff\xff\xff"),
        Manner::flood("floods with an answer", b"D\x7f\xff\xff\xff", b"x"),
        Manner::flood("floods with notices", b"", b"N\0\0\0\x05\0"),
        Manner::flood("floods with rows", b"", b"D\0\0\0\x06\0\0"),
        Manner::flood("floods with pushes", b"", b"A\0\0\0\x0a\0\0\0\0a\0b\0"),
    ]
}

fn mysql() -> Vec<Manner> {
    let shout = SHOUT.repeat(SHOUTS);
    let body = [&b"\xff\x15\x04#28000"[..], shout.as_bytes()].concat();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
    // A packet of the greatest length says that the next one belongs to it.
    let part = [&b"\xff\xff\xff\0"[..], &vec![b'x'; 0xff_ffff]].concat();
    vec![
        Manner::each("shouts", &[&length[..3], b"\0", &body].concat()),
        Manner::each("sends an empty packet", b"\0\0\0\0"),
        Manner::each("promises a long answer", b"\xff\xff\xff\0\x0a"),
        Manner::flood("floods with an answer", b"", &part),
        Manner::flood("floods with answers", b"", b"\x07\0\0\x01\0\0\0\x02\0\0\0"),
    ]
}
