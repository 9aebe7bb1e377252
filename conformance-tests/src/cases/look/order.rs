//! C18: what looks and grants show of each other, whatever happens at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{Attempt, LockBackend, LockKey, Seen};

use crate::cases::tools::looks::{Holding, labelled, look};
use crate::cases::tools::turns;
use crate::context::Cx;
use crate::context::history::{HoldRecord, LookRecord, check, check_looks};
use crate::context::seed::Seeded;
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly};

cases! {
    c18_of_two_that_take_and_look_one_sees_the_other [Look]
        "of a reader that takes a slot and then looks at the gate, and a writer that takes the gate and then looks at the slots, one sees the other"
        covers [Look/Open/Plain, Look/Open/OtherHolder];
    c18_each_look_is_of_a_moment_between_its_ends [Look]
        "while many tasks take locks and release them, each look shows a state that its locks have had since it began"
        covers [Look/Open/OtherHolder, Look/Open/OtherReleases, Look/Open/QueueBehind];
}

/// How many readers there are.
const READERS: usize = 3;

/// Takes the first of these locks, and then looks at the others; the hold, and what it has seen.
async fn takes_then_looks(
    cx: Cx,
    backend: Arc<dyn LockBackend>,
    own: LockKey,
    others: Vec<LockKey>,
    turns_before: u32,
) -> Check<(Holding, Vec<Seen>)> {
    turns(&cx, turns_before).await;
    let holding = Holding::take(&cx, &backend, &own, Some(own.name())).await?;
    let seen = look(&cx, &backend, &others).await?;
    Ok((holding, seen))
}

fn is_free(seen: &Seen) -> bool {
    matches!(seen, Seen::Free { .. })
}

async fn c18_of_two_that_take_and_look_one_sees_the_other(cx: Cx) -> Check {
    let mut chance = Seeded::announced("c18_of_two_that_take_and_look_one_sees_the_other");
    let mut clients = Vec::new();
    for _ in 0..=READERS {
        clients.push(cx.backend().await?);
    }
    let gate = cx.key("gate")?;
    let slots: Check<Vec<_>> = (0..READERS).map(|slot| cx.key(&format!("slot {slot}"))).collect();
    let slots = slots?;
    for round in 0..if cx.is_virtual() { 100 } else { 25 } {
        let mut tasks = Vec::new();
        for (nth, client) in clients.iter().enumerate() {
            let (own, others) = match slots.get(nth) {
                Some(slot) => (slot.clone(), vec![gate.clone()]),
                None => (gate.clone(), slots.clone()),
            };
            let later = u32::try_from(chance.below(4)).unwrap_or(0);
            let takes = takes_then_looks(cx.clone(), Arc::clone(client), own, others, later);
            tasks.push(tokio::spawn(takes));
        }
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await??);
        }
        let Some((writer, seen)) = done.pop() else { continue };
        for (slot, (reader, gate_seen)) in done.iter().enumerate() {
            if is_free(&seen[slot]) && is_free(&gate_seen[0]) {
                let told = format!(
                    "in round {round}, a reader with the token {} has seen {gate_seen:?}, and a writer with the token {} {:?}",
                    reader.fence, writer.fence, seen[slot]
                );
                return cx.not_alone_at(&gate, 1, told);
            }
            // Whoever is seen is the one of this round.
            if !is_free(&seen[slot]) {
                reader.is_shown_early(&cx, &seen[slot], &format!("in round {round}"))?;
            }
            if !is_free(&gate_seen[0]) {
                writer.is_shown_early(&cx, &gate_seen[0], &format!("in round {round}"))?;
            }
        }
        for (mut holding, _) in done.into_iter().chain([(writer, Vec::new())]) {
            holding.claim.release().await?;
        }
    }
    Ok(())
}

/// Numbers what happens, over all tasks: what ended before something else began has a smaller number.
#[derive(Clone, Debug, Default)]
struct Numbers(Arc<AtomicU64>);

impl Numbers {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// How many locks there are.
const LOCKS: usize = 3;

/// What one task has seen of each lock.
#[derive(Debug, Default)]
struct Records {
    holds: [Vec<HoldRecord>; LOCKS],
    looks: [Vec<LookRecord>; LOCKS],
}

/// One task, and what it works with.
#[derive(Debug)]
struct Worker {
    cx: Cx,
    backend: Arc<dyn LockBackend>,
    keys: Vec<LockKey>,
    numbers: Numbers,
    chance: Seeded,
}

impl Worker {
    async fn rest(&mut self) {
        let pause = Duration::from_micros(self.chance.below(4000));
        self.cx.sleep(pause).await;
    }

    /// Takes a lock as often as that, by a wait if somebody has it.
    async fn takes(mut self, client: u32, times: u32) -> Check<Records> {
        let mut records = Records::default();
        for _ in 0..times {
            let at = usize::try_from(self.chance.next_u64()).unwrap_or(0) % LOCKS;
            let label = client.to_string();
            let request = labelled(&self.cx, &self.keys[at], Some(&label))?.with_wait(true);
            let mut claim = self.backend.claim(request)?;
            let invoked = self.numbers.next();
            let token = loop {
                match claim.try_acquire().await? {
                    Attempt::Granted { token, .. } => break token,
                    _ => self.cx.sleep(Duration::from_millis(2)).await,
                }
            };
            let granted = self.numbers.next();
            self.rest().await;
            let mut hold = HoldRecord::new(client, invoked, granted, token.get(), u64::MAX);
            hold.release_invoked = Some(self.numbers.next());
            claim.release().await?;
            hold.released = Some(self.numbers.next());
            records.holds[at].push(hold);
            self.rest().await;
        }
        Ok(records)
    }

    /// Looks at all locks as often as that.
    async fn looks(mut self, times: u32) -> Check<Records> {
        let mut records = Records::default();
        for _ in 0..times {
            let begun = self.numbers.next();
            let seen = look(&self.cx, &self.backend, &self.keys).await?;
            let ended = self.numbers.next();
            for (looks, seen) in records.looks.iter_mut().zip(seen) {
                looks.push(LookRecord { begun, ended, seen });
            }
            self.rest().await;
        }
        Ok(records)
    }
}

async fn c18_each_look_is_of_a_moment_between_its_ends(cx: Cx) -> Check {
    let chance = Seeded::announced("c18_each_look_is_of_a_moment_between_its_ends");
    let keys: Check<Vec<_>> = (0..LOCKS).map(|lock| cx.key(&format!("lock {lock}"))).collect();
    let (keys, numbers, begun) = (keys?, Numbers::default(), cx.now());
    let (holds, looks) = if cx.is_virtual() { (60, 150) } else { (12, 30) };
    let mut tasks = Vec::new();
    for client in 0..4_u32 {
        let backend = cx.backend().await?;
        let worker = |part: u64| Worker {
            cx: cx.clone(),
            backend: Arc::clone(&backend),
            keys: keys.clone(),
            numbers: numbers.clone(),
            chance: Seeded::from(chance.seed() ^ (2 * u64::from(client) + part)),
        };
        // Each client looks, also at what it has itself.
        let (takes, looker) = (worker(0), worker(1));
        tasks.push(tokio::spawn(takes.takes(client, holds)));
        tasks.push(tokio::spawn(looker.looks(looks)));
    }
    let mut all = Records::default();
    for task in tasks {
        let records = task.await??;
        for (at, holds) in records.holds.into_iter().enumerate() {
            all.holds[at].extend(holds);
        }
        for (at, looks) in records.looks.into_iter().enumerate() {
            all.looks[at].extend(looks);
        }
    }
    if cx.now().since(begun) > cx.long_ttl() {
        return Err(Stop::late("it took so long that a lease may have ended"));
    }
    for (holds, looks) in all.holds.iter().zip(&all.looks) {
        let checked = check(holds);
        ensure_exactly!(checked.is_ok(), "{checked:?}");
        for look in looks {
            // A waiter that was too slow to take its turn.
            ensure!(
                look.is_of(holds),
                "a look has shown {:?}, and nobody was granted that",
                look.seen
            );
        }
        check_looks(holds, looks).map_err(Stop::violated)?;
    }
    Ok(())
}
