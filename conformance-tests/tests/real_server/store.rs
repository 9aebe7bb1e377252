//! A complete small store on a server: Redis, without a driver.

use std::time::Duration;

use lock_core::{
    Attempt, Binding, Busy, Bytes, Capabilities, Claim, ClaimRequest, Error, ErrorKind,
    FencingToken, LockBackend, LockKey, Released, Renewal, Result, Wake, async_trait,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The server does not run anything else while it runs a script, so each script is one atomic step.
/// The hold is a hash that expires; the fence is a number beside it that does not, so it rises
/// across releases (C9). An owner that repeats its call finds its own hold (C2), and ends its lease no
/// sooner: the call may be late, and the bearer of a lease token may have a longer ttl (C17).
const ACQUIRE: &str = "
    local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then
        redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', redis.call('INCR', KEYS[2]))
    elseif owner ~= ARGV[1] then
        return 0
    end
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return tonumber(redis.call('HGET', KEYS[1], 'fence'))";

/// The other scripts begin with a question: is this the owner's hold (C7), and does it have this fence,
/// if the claim comes from a lease token, which its bearer can edit (C14)?
const MINE: &str = "
    local hold = redis.call('HMGET', KEYS[1], 'owner', 'fence')
    if hold[1] ~= ARGV[1] or (ARGV[3] ~= '' and ARGV[3] ~= hold[2]) then
        return 0
    end";
const RENEW: &str = "
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return tonumber(ARGV[2])";
const CHECK: &str = "return redis.call('PTTL', KEYS[1])";
const RELEASE: &str = "return redis.call('DEL', KEYS[1])";

/// A client of the store: the address of the server.
#[derive(Debug)]
pub(crate) struct ByHand(pub(crate) String);

/// The key of a hold. Different locks have different keys, whatever is in their names (C11).
pub(crate) fn hold(key: &LockKey) -> String {
    format!("lock:{}", key.encode())
}

#[async_trait]
impl LockBackend for ByHand {
    fn name(&self) -> &'static str {
        "redis-by-hand"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Poll);
        can.detachable = true;
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(ByHandClaim { server: self.0.clone(), request }))
    }

    async fn ping(&self) -> Result<()> {
        ask(&self.0, &["EXISTS", "lock"]).await.map(drop)
    }
}

/// One contender. All that it knows about itself is in the request.
#[derive(Debug)]
struct ByHandClaim {
    server: String,
    request: ClaimRequest,
}

impl ByHandClaim {
    /// Runs a script, which answers with a number.
    async fn run(&self, script: &str) -> Result<u64> {
        let ClaimRequest { key, owner, ttl, call_timeout, resume, .. } = &self.request;
        let (hold, fence) = (hold(key), format!("fence:{}", key.encode()));
        let (owner, ttl) = (owner.to_hex(), ttl.as_millis().to_string());
        let resumed = resume.as_ref().map_or(String::new(), |resume| resume.fence.to_string());
        let command = ["EVAL", script, "2", &hold, &fence, &owner, &ttl, &resumed];
        // C12: each call ends in time, with an answer or an error.
        let answer = timeout(*call_timeout, ask(&self.server, &command)).await;
        answer.unwrap_or_else(|late| Err(unknown(ErrorKind::NoAnswer, late.to_string())))
    }

    /// Runs a script that answers how long the hold has left if it is still this owner's.
    async fn if_mine(&self, script: &str) -> Result<Renewal> {
        Ok(match self.run(&format!("{MINE} {script}")).await? {
            // C6: this is an answer of the server, not a failure to get one.
            0 => Renewal::Lost,
            left => Renewal::Alive { valid_for: Some(Duration::from_millis(left)) },
        })
    }
}

#[async_trait]
impl Claim for ByHandClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        Ok(match self.run(ACQUIRE).await? {
            0 => Attempt::Busy(Busy::default()),
            // C4: the server counts from its step, which is after the start of this call.
            fence => Attempt::Granted {
                token: FencingToken::new(fence)?,
                valid_for: Some(self.request.ttl),
            },
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.if_mine(RENEW).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.if_mine(CHECK).await
    }

    async fn release(&mut self) -> Result<Released> {
        Ok(match self.run(&format!("{MINE} {RELEASE}")).await? {
            0 => Released::AlreadyGone,
            _ => Released::Freed,
        })
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Ok(Bytes::new()) // Owner and fence travel anyway; this store needs nothing else.
    }
}

/// Sends a command, and returns its answer, which must be a number. Each has a connection of its own, so
/// nobody reads the late answer to another one.
pub(crate) async fn ask(server: &str, command: &[&str]) -> Result<u64> {
    // A command as Redis reads it.
    let parts = command.iter().map(|part| format!("${}\r\n{part}\r\n", part.len()));
    let request = format!("*{}\r\n{}", parts.len(), parts.collect::<String>());
    let exchange = async {
        let mut link = BufReader::new(TcpStream::connect(server).await?);
        link.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        link.read_line(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer =
        exchange.await.map_err(|error| unknown(ErrorKind::Unavailable, error.to_string()))?;
    // Without its end of line, it was cut off.
    let number = answer.strip_prefix(':').and_then(|number| number.strip_suffix("\r\n"));
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| unknown(ErrorKind::Unavailable, format!("not a number: {answer:?}")))
}

/// The server may have done it, or may do it later.
fn unknown(kind: ErrorKind, why: String) -> Error {
    Error::new(kind, why).with_unknown_effect()
}
