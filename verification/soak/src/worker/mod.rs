//! A process with contenders.

mod contender;
mod kinds;
mod post;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use conformance_tests::shared::Seeded;
use distlock::clock::{Clock, SystemClock};
use distlock::{Held, LeaseToken, Locks, LostReason, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::contender::Contender;
use self::post::Post;
use crate::protocol::{Brief, Ended, Lost, Order, Say};
use crate::pulse::Pulse;

/// Set for a worker, and only for a worker: its [`Brief`].
pub(crate) const BRIEF: &str = "DISTLOCK_SOAK_WORKER";

/// The number of the contender for other kinds of lock, behind all visitors.
const OF_KINDS: u64 = (1 << 16) - 1;

/// By how much a worker gives way to the servers.
const NICE: i32 = 5;

/// How long a worker that is to end waits for its contenders: longer than a waiter takes to look again whose push is lost.
const LAST_TURNS: Duration = Duration::from_secs(20);
/// And then for its client.
const PATIENCE: Duration = Duration::from_secs(8);

/// Reasons that no store has: a lease was not renewed, and a lock of a set ended with another one.
const NOT_RENEWED: &str = "NotRenewed";
const WITH_ANOTHER: &str = "WithAnother";

/// As a reason is told to the soak.
fn written(reason: Option<LostReason>) -> String {
    reason.map_or_else(String::new, |reason| format!("{reason:?}"))
}

/// What the contenders of a worker share.
#[derive(Debug)]
struct Shared {
    brief: Brief,
    locks: Locks,
    post: Post,
    pulse: Arc<Pulse>,
    clock: SystemClock,
    finishing: AtomicBool,
    /// After how many polls the next acquisition kills the process; 0 if none does.
    deadly: AtomicUsize,
    /// Until when a hold is to stop the process.
    halt_before: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Lets go of a hold, and makes sure that this is heard before the store can hear of it.
    async fn releasing(&self, ended: &mut Ended) {
        let at = self.now();
        ended.release_invoked = Some(at);
        self.post.say(Say::Releasing { hold: ended.hold, at });
        self.post.flush().await;
    }

    /// A loss that is reported now. A lease that is not renewed ends as its holder has asked for.
    fn lost(&self, held: &Held, renews: bool) -> Lost {
        let reason = match held.lost().reason() {
            Some(LostReason::Expired) if !renews => NOT_RENEWED.to_owned(),
            reason => written(reason),
        };
        self.lost_for(reason, held.valid_until().as_nanos())
    }

    fn lost_for(&self, reason: String, valid_until: u64) -> Lost {
        let at = self.now();
        Lost { at, reason, stalled: self.pulse.stalled_since(valid_until, at) }
    }
}

/// Runs until it is told to finish, or until nobody listens any more.
pub(crate) fn run(brief: &str) -> ExitCode {
    let brief: Brief = match serde_json::from_str(brief) {
        Ok(brief) => brief,
        Err(error) => {
            eprintln!("{BRIEF} is no brief: {error}");
            return ExitCode::FAILURE;
        }
    };
    // The contenders take all the time that there is. Servers that wait for it elect no leader for minutes, and the
    // faults are to be those of the deck.
    if let Err(error) = rustix::process::nice(NICE) {
        eprintln!("a worker is as urgent as the servers: {error}");
    }
    let (post, orders) = Post::open();
    let (told, before) = (post.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        told.say(Say::Panicked(panic.to_string()));
        before(panic);
    }));
    // One thread, so that a starved runtime is starved as a whole.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("a worker has no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        let contended = contend(brief, post.clone(), orders).await;
        if let Err(error) = &contended {
            post.say(Say::Failed(error.to_string()));
        }
        post.flush().await;
        if contended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    })
}

async fn contend(
    brief: Brief,
    post: Post,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> Result<()> {
    let locks = distlock::builder(&*brief.url)
        .default_ttl(brief.ttl)
        .unavailable_after(Duration::from_secs(2))
        .connect()
        .await?;
    post.say(Say::Ready);
    let shared = Arc::new(Shared {
        pulse: Pulse::start(SystemClock::default()),
        clock: SystemClock::default(),
        finishing: AtomicBool::new(false),
        deadly: AtomicUsize::new(0),
        halt_before: AtomicU64::new(0),
        brief,
        locks,
        post: post.clone(),
    });
    let mut seeds = Seeded::from(shared.brief.seed);
    let mut contenders = JoinSet::new();
    for nth in 0..shared.brief.contenders {
        let seeded = Seeded::from(seeds.next_u64());
        contenders.spawn(Contender::new(Arc::clone(&shared), nth, seeded).run());
    }
    let seeded = Seeded::from(seeds.next_u64());
    contenders.spawn(Contender::new(Arc::clone(&shared), OF_KINDS, seeded).run_kinds());
    let mut visitors = shared.brief.contenders;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Answer { request, answer } => post.answered(request, answer),
            Order::Attach { hold, name, token } => {
                visitors += 1;
                let seeded = Seeded::from(seeds.next_u64());
                let mut visitor = Contender::new(Arc::clone(&shared), visitors, seeded);
                contenders.spawn(async move {
                    if let Ok(token) = token.parse::<LeaseToken>() {
                        visitor.take_over(hold, name, &token).await;
                    }
                });
            }
            Order::Starve(limit) => starve(limit),
            Order::Halt { before } => shared.halt_before.store(before, Relaxed),
            Order::Die { polls } => shared.deadly.store(polls.max(1), Relaxed),
            Order::Finish => break,
        }
    }
    finish(&shared, contenders, orders).await;
    Ok(())
}

/// Lets the contenders end what they do, and closes the client.
async fn finish(
    shared: &Shared,
    mut contenders: JoinSet<()>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    shared.finishing.store(true, Relaxed);
    let ended = async { while contenders.join_next().await.is_some() {} };
    let answers = async {
        while let Some(order) = orders.recv().await {
            if let Order::Answer { request, answer } = order {
                shared.post.answered(request, answer);
            }
        }
    };
    let is_late = tokio::select! {
        () = ended => false,
        () = answers => false,
        () = shared.clock.sleep(LAST_TURNS) => true,
    };
    if is_late {
        shared.post.say(Say::Waiting(contenders.len()));
    }
    contenders.shutdown().await;
    let closed = shared.locks.close(PATIENCE).await;
    shared.post.say(Say::Closed(closed.map_err(|error| error.to_string())));
}

#[allow(clippy::disallowed_methods, reason = "to block the only thread is the purpose")]
fn starve(limit: Duration) {
    std::thread::sleep(limit);
}
