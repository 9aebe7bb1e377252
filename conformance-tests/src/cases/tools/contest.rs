//! Contenders of several clients for locks of one kind, while the clients meet faults, and what all of them saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{ErrorKind, Locks};
use tokio::task::JoinSet;

use super::kinds::{Kind, Taken};
use super::{answered, has_struck, soon, within};
use crate::Fault;
use crate::context::history::HoldRecord;
use crate::context::seed::Seeded;
use crate::context::{Cx, Link};
use crate::runner::check::{Check, Stop, ensure};

/// All holds, by what was held.
pub(crate) type Holds = BTreeMap<String, Vec<HoldRecord>>;

/// How many contenders each client has.
const TASKS: u64 = 2;
/// So many more locks each client gets when the faults are over. With two, one contest in thirty saw no writer beside
/// a reader that had looked at an old copy.
const AT_LAST: usize = 20;

/// What the contenders of one client share with the case.
#[derive(Debug, Default)]
struct Sign {
    is_over: AtomicBool,
    /// Keep what you have for as long as you believe in it.
    keeps: AtomicBool,
    /// How many of them hold a lock, and how many locks they have had.
    holding: AtomicUsize,
    had: AtomicUsize,
}

struct Contender {
    cx: Cx,
    kind: Kind,
    client: u32,
    locks: Locks,
    sign: Arc<Sign>,
    chance: Seeded,
    holds: Arc<Mutex<Holds>>,
}

/// A hold from its grant to its end, which it tells however it ends.
struct Hold {
    cx: Cx,
    sign: Arc<Sign>,
    holds: Arc<Mutex<Holds>>,
    taken: Option<Box<dyn Taken>>,
    record: HoldRecord,
    fences: Vec<(String, u64)>,
    /// When its holder last believed in it.
    believed: u64,
}

impl Hold {
    /// Whether its holder believes in it.
    fn is_believed(&mut self) -> bool {
        let Some(taken) = &self.taken else { return false };
        let asked = self.cx.now().as_nanos();
        if taken.tokens().is_ok() {
            self.believed = asked;
            return true;
        }
        self.record.lost.get_or_insert(self.cx.now().as_nanos());
        false
    }

    /// It is not the end that was promised which counts, if its holder has believed for longer.
    fn ends(&mut self, taken: &dyn Taken) {
        self.record.valid_until = taken.valid_until().as_nanos().max(self.believed);
        // One that is being released is not kept any more.
        self.sign.holding.fetch_sub(1, SeqCst);
    }

    async fn release(mut self) {
        let Some(taken) = self.taken.take() else { return };
        self.ends(&*taken);
        self.record.release_invoked = Some(self.cx.now().as_nanos());
        // Without an answer, it is repeated in the background.
        let _ = taken.release().await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.ends(&*taken);
            self.record.lost.get_or_insert(self.cx.now().as_nanos());
        }
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, fence) in &self.fences {
            let record = HoldRecord { fence: *fence, ..self.record.clone() };
            holds.entry(part.clone()).or_default().push(record);
        }
    }
}

impl Contender {
    async fn run(mut self) -> Check {
        let limit = self.cx.ttl() * 2;
        let mut nth = self.chance.next_u64() % 3;
        while !self.sign.is_over.load(SeqCst) {
            let invoked = self.cx.now().as_nanos();
            nth += 1;
            match self.kind.take(&self.locks, (self.client, nth), limit).await {
                Ok(taken) => self.hold(taken, invoked).await,
                Err(error) if may_happen(&error) => {}
                Err(error) => {
                    return Err(Stop::failed(format_args!("a contender was told: {error}")));
                }
            }
            self.rest(20).await;
        }
        Ok(())
    }

    async fn hold(&mut self, taken: Box<dyn Taken>, invoked: u64) {
        let granted = self.cx.now().as_nanos();
        let Ok(tokens) = taken.tokens() else { return };
        let until = taken.valid_until().as_nanos();
        self.sign.holding.fetch_add(1, SeqCst);
        self.sign.had.fetch_add(1, SeqCst);
        let mut hold = Hold {
            cx: self.cx.clone(),
            sign: Arc::clone(&self.sign),
            holds: Arc::clone(&self.holds),
            taken: Some(taken),
            record: HoldRecord::new(self.client, invoked, granted, 0, until),
            fences: tokens.into_iter().map(|(part, token)| (part, token.get())).collect(),
            believed: granted,
        };
        self.rest(20).await;
        while hold.is_believed() && self.sign.keeps.load(SeqCst) {
            self.rest(80).await;
        }
        if self.chance.below(4) > 0 {
            hold.release().await;
        }
    }

    /// For up to a ttl divided by that.
    async fn rest(&mut self, part: u32) {
        let longest = u64::try_from((self.cx.ttl() / part).as_micros()).unwrap_or(u64::MAX);
        self.cx.sleep(Duration::from_micros(self.chance.below(longest.max(1)))).await;
    }
}

/// What a contender may be told while there are faults.
fn may_happen(error: &lock_core::Error) -> bool {
    error.kind() == ErrorKind::NotAcquired || error.is_retryable() || error.lost_reason().is_some()
}

/// A client and its contenders.
struct Client {
    link: Link,
    sign: Arc<Sign>,
    tasks: JoinSet<Check>,
}

impl Client {
    /// Waits until one of its contenders has a lock, and keeps it.
    async fn keeps(&self, cx: &Cx) -> Check {
        self.sign.keeps.store(true, SeqCst);
        let holds = async {
            while self.sign.holding.load(SeqCst) == 0 {
                cx.sleep(cx.ttl() / 200).await;
            }
        };
        soon(cx, patience(cx), "a contender gets a lock", holds).await
    }

    /// Its process ends in the middle of a hold.
    async fn ends(mut self, cx: &Cx) -> Check {
        self.keeps(cx).await?;
        self.link.inject(Fault::Partition).await?;
        self.tasks.shutdown().await;
        Ok(())
    }

    /// It is cut off in the middle of a hold, for longer than a lease.
    async fn cut_off(&self, cx: &Cx) -> Check {
        self.keeps(cx).await?;
        self.link.inject(Fault::Partition).await?;
        cx.sleep(cx.ttl() * 3 / 2).await;
        self.sign.keeps.store(false, SeqCst);
        self.link.inject(Fault::Heal).await
    }
}

/// Within this time each contender gets a lock, on a store that is not fair and a machine that is busy, too.
fn patience(cx: &Cx) -> Duration {
    Duration::from_secs(60) + cx.over()
}

/// The clients of a contest: answers of the first are lost, those of the second are late, the last is gone while it has a
/// lock, and then the third is cut off for longer than a lease while it has one.
pub(crate) struct Contest {
    cx: Cx,
    kind: Kind,
    clients: Vec<Client>,
    holds: Arc<Mutex<Holds>>,
}

impl Contest {
    pub(crate) async fn start(cx: &Cx, kind: Kind, mut chance: Seeded) -> Check<Self> {
        let (mut clients, holds) = (Vec::new(), Arc::default());
        for number in 0..4 {
            let (link, sign) = (cx.link().await?, Arc::<Sign>::default());
            let (locks, mut tasks) = (cx.locks_on(&link.backend), JoinSet::new());
            for _ in 0..TASKS {
                let contender = Contender {
                    cx: cx.clone(),
                    kind,
                    client: number,
                    locks: locks.clone(),
                    sign: Arc::clone(&sign),
                    chance: Seeded::from(chance.next_u64()),
                    holds: Arc::clone(&holds),
                };
                tasks.spawn(contender.run());
            }
            clients.push(Client { link, sign, tasks });
        }
        Ok(Self { cx: cx.clone(), kind, clients, holds })
    }

    /// Lets the faults strike; then everybody who is left gets a lock, and at last nobody has one.
    pub(crate) async fn judged(mut self) -> Check<Holds> {
        let Some(last) = self.clients.pop() else {
            return Err(Stop::hindered("a contest without clients"));
        };
        let cx = self.cx.clone();
        let (lost, late) = (&self.clients[0].link, &self.clients[1].link);
        let long = cx.ttl() * 5 / 4;
        let losses = [Fault::LoseNextReply, Fault::LoseNextRequest, Fault::LoseNextReply];
        let delays = [
            Fault::DelayNextReply(long),
            Fault::HoldNextRequest(cx.ttl() / 2),
            Fault::DelayNextReply(long),
        ];
        tokio::try_join!(disturb(&cx, lost, losses), disturb(&cx, late, delays), last.ends(&cx))?;
        // By itself: others must be able to take what ends too early.
        self.clients[2].cut_off(&cx).await?;
        self.everybody_has_more().await?;
        self.ends().await?;
        Ok(std::mem::take(&mut *self.holds()))
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until each client has got locks after the faults, and all that there is to judge was held.
    async fn everybody_has_more(&self) -> Check {
        let signs = || self.clients.iter().map(|client| &client.sign);
        let enough: Vec<_> = signs().map(|sign| sign.had.load(SeqCst) + AT_LAST).collect();
        let is_enough = || {
            signs().zip(&enough).all(|(sign, enough)| sign.had.load(SeqCst) >= *enough)
                && self.kind.parts().iter().all(|part| self.holds().contains_key(*part))
        };
        let all = async {
            while !is_enough() {
                self.cx.sleep(self.cx.ttl() / 50).await;
            }
        };
        soon(&self.cx, patience(&self.cx), "every client gets locks after the faults", all).await
    }

    /// Everything that there is can be had by one that comes last.
    async fn ends(&mut self) -> Check {
        let cx = &self.cx;
        for client in &mut self.clients {
            client.sign.is_over.store(true, SeqCst);
            while let Some(ended) =
                soon(cx, patience(cx), "a contender ends", client.tasks.join_next()).await?
            {
                ended??;
            }
        }
        let locks = cx.locks().await?;
        let what = "all locks are free when all contenders have ended";
        let take = answered(cx, patience(cx), async || self.kind.take_all(&locks).await);
        let all = soon(cx, patience(cx), what, take).await??;
        ensure!(all.iter().all(|taken| taken.tokens().is_ok()), "a lock was lost at once");
        for taken in all {
            // Without an answer, it is repeated in the background.
            let _ = taken.release().await;
        }
        Ok(())
    }
}

/// Lets each of these faults strike, one after the other.
async fn disturb(cx: &Cx, link: &Link, faults: [Fault; 3]) -> Check {
    for fault in faults {
        cx.sleep(cx.ttl() / 8).await;
        let before = link.struck();
        // One for a reply that has not come goes with its connection: then it is arranged once more.
        let strikes = async {
            loop {
                link.inject_after(0, fault).await?;
                if within(cx, cx.ttl() * 4, has_struck(cx, link, before)).await.is_some() {
                    return Check::Ok(());
                }
            }
        };
        match within(cx, patience(cx), strikes).await {
            Some(struck) => struck?,
            None => return Err(Stop::hindered(format_args!("{fault:?} has not struck"))),
        }
    }
    Ok(())
}
