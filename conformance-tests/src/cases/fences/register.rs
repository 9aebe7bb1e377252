//! S7: a register that checks the fence loses no update, whatever happens to the holds.
//!
//! Each contender takes the lock, reads a set from the register, pauses, and writes the set with
//! one more element. During the pause the hold may be taken away, or end. The same is done with a
//! register that ignores the fence, and with one that checks it on writes only: both must lose
//! updates, or else nothing was put to the test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Binding, LockGuard, Locks};

use crate::Unavailable;
use crate::cases::tools::within;
use crate::context::Cx;
use crate::context::register::{Compares, Register};
use crate::context::seed::Seeded;
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure_exactly, fail};

cases! {
    s07_a_guarded_register_loses_no_update []
        "a register that checks the fence on every access keeps every update that it has acknowledged, in the order of the fences, though holds end or are taken away between read and write"
        guards [Token/Secure/Forced, Token/Secure/Expiry];
}

/// What happens to a hold between its read and its write.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    /// It is taken away, and the contender goes on when another has read.
    TakenBeforeARead,
    /// It is taken away, and the contender goes on when another has written.
    TakenBeforeAWrite,
    /// It is not renewed, and ends, and the contender goes on when another has read.
    Paused,
}

const CONTENDERS: usize = 3;
/// The elements that each contender adds.
const EACH: usize = 4;

/// What each contender meets with each of its elements. The harmful events are the same in number in
/// every contest. Who meets them, and when, follows from the seed; but the first one is met by a
/// contender whose rivals go on undisturbed.
fn schedule(cx: &Cx, seeded: &mut Seeded) -> Vec<Vec<Event>> {
    let last = match cx.capabilities().binding {
        Binding::Lease => Event::Paused,
        _ => Event::TakenBeforeARead,
    };
    let mut events = vec![Event::TakenBeforeARead, Event::TakenBeforeARead, last];
    events.extend([Event::TakenBeforeAWrite; 3]);
    events.resize(CONTENDERS * (EACH - 1), Event::Nothing);
    for at in (1..events.len()).rev() {
        let other = usize::try_from(seeded.below(at as u64 + 1)).unwrap_or(0);
        events.swap(at, other);
    }
    let firsts = [Event::TakenBeforeARead, Event::Nothing, Event::Nothing];
    let rest = events.chunks(EACH - 1);
    firsts.iter().zip(rest).map(|(first, rest)| [&[*first], rest].concat()).collect()
}

/// One contender: its elements, and what it meets with each.
struct Contender {
    cx: Cx,
    locks: Locks,
    register: Arc<Mutex<Register>>,
    nth: usize,
}

impl Contender {
    fn register(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds each element, as often as it takes.
    async fn run(self, events: Vec<Event>) -> Check {
        for (at, event) in events.into_iter().enumerate() {
            let added = self.nth * EACH + at;
            let mut event = event;
            while !self.add(added, event).await? {
                // Whoever was refused begins again, this time in peace.
                event = Event::Nothing;
            }
        }
        Ok(())
    }

    /// Whether the register has acknowledged the element.
    async fn add(&self, added: usize, event: Event) -> Check<bool> {
        let guard = self.acquire().await?;
        // As a paused process would, it goes on with the token that it has read.
        let Ok(fence) = guard.token() else { return Ok(false) };
        let Some(read) = self.register().read(fence) else { return Ok(false) };
        self.meet(event, &guard).await?;
        let written = self.register().write(fence, read, added as u64);
        // The hold may be gone, which is what the register is for.
        let _ = guard.release().await;
        Ok(written)
    }

    /// Tries until the lock is free: a queue would make everybody wait for the one that pauses.
    async fn acquire(&self) -> Check<LockGuard> {
        let lock = self.locks.named("lock")?.no_renew();
        let limit = self.cx.over() * 6 + Duration::from_secs(5);
        let tries = async {
            loop {
                if let Some(guard) = lock.try_acquire().await? {
                    return Check::Ok(guard);
                }
                self.cx.sleep(Duration::from_millis(10)).await;
            }
        };
        match within(&self.cx, limit, tries).await {
            Some(guard) => guard,
            None => fail!("contender {} did not get the lock within {limit:?}", self.nth),
        }
    }

    async fn meet(&self, event: Event, guard: &LockGuard) -> Check {
        let (reads, writes) = self.progress();
        match event {
            Event::Nothing => {
                self.cx.sleep(Duration::from_millis(20)).await;
                return Ok(());
            }
            Event::Paused => self.cx.sleep(guard.remaining()).await,
            _ => self.cx.store().break_hold(guard.key()).await?,
        }
        let waits = async {
            loop {
                let now = self.progress();
                let goes_on = match event {
                    Event::TakenBeforeAWrite => now.1 > writes,
                    _ => now.0 > reads,
                };
                if goes_on {
                    return;
                }
                self.cx.sleep(Duration::from_millis(4)).await;
            }
        };
        // The others may be done: then nobody is met.
        let _ = within(&self.cx, self.cx.lapse() + self.cx.ttl() / 4, waits).await;
        Ok(())
    }

    /// How many reads and writes there have been.
    fn progress(&self) -> (u64, usize) {
        let register = self.register();
        (register.reads(), register.acknowledged())
    }
}

/// The register at the end.
async fn contest(
    cx: &Cx,
    clients: &[Locks],
    compares: Compares,
    mut seeded: Seeded,
) -> Check<Register> {
    let register = Arc::new(Mutex::new(Register::new(compares)));
    let mut contenders = tokio::task::JoinSet::new();
    for ((nth, locks), events) in clients.iter().enumerate().zip(schedule(cx, &mut seeded)) {
        let (cx, locks, register) = (cx.clone(), locks.clone(), Arc::clone(&register));
        contenders.spawn(Contender { cx, locks, register, nth }.run(events));
    }
    while let Some(done) = contenders.join_next().await {
        done??;
    }
    let Some(register) = Arc::into_inner(register) else {
        return Err(Stop::hindered("a contender still has the register"));
    };
    let register = register.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(register)
}

async fn s07_a_guarded_register_loses_no_update(cx: Cx) -> Check {
    let mut clients = Vec::new();
    for _ in 0..CONTENDERS {
        clients.push(cx.locks().await?);
    }
    can_break(&cx, &clients[0]).await?;
    let seeded = Seeded::announced("s07_a_guarded_register_loses_no_update");
    for control in [Compares::Never, Compares::OnWrite] {
        if !loses(&cx, &clients, control, &seeded).await? {
            return Err(Stop::hindered(format_args!(
                "a register that compares the fence {control:?} has lost no update either, so the holds were not disturbed enough"
            )));
        }
    }
    let register = contest(&cx, &clients, Compares::Always, seeded).await?;
    let lost = register.lost();
    ensure_exactly!(lost.is_empty(), "acknowledged, and lost {lost:?}: {register:?}");
    ensure_exactly!(
        register.fences().is_sorted_by(|one, next| one < next)
            && register.acknowledged() == CONTENDERS * EACH,
        "the fences of the writes, one for each hold, do not rise: {register:?}"
    );
    Ok(())
}

/// Whether a control loses an update, as it must. It gets more than one chance, since a busy machine
/// may run the contenders one after the other.
async fn loses(cx: &Cx, clients: &[Locks], control: Compares, seeded: &Seeded) -> Check<bool> {
    let mut seeded = seeded.clone();
    for _ in 0..3 {
        if !contest(cx, clients, control, seeded.clone()).await?.lost().is_empty() {
            return Ok(true);
        }
        seeded = Seeded::from(seeded.next_u64());
    }
    Ok(false)
}

/// Whether a hold can be taken away at all. If not, the case does not apply.
async fn can_break(cx: &Cx, locks: &Locks) -> Check {
    let guard = crate::cases::tools::take(cx, locks, "probe").await?;
    let broken: Result<(), Unavailable> = cx.store().break_hold(guard.key()).await;
    let _ = guard.release().await;
    Ok(broken?)
}
