//! One set-up from its start to its report: phase after phase.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::shared::Seeded;
use distlock::Locks;
use hdrhistogram::Histogram;

use crate::crew::Crew;
use crate::fault::{Injector, Phase, Planned, Strike, deck};
use crate::kind::Kind;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::parts::Parts;
use crate::protocol::Brief;
use crate::report::{PhaseReport, SetupReport};
use crate::site::{Site, WallClock, launch};
use crate::stage::Stage;
use crate::verdict::{Evidence, doctored};

/// How a run is sized.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    pub(crate) seed: u64,
    /// How often each row strikes in a phase, but for [`Kind::hits`].
    pub(crate) hits: usize,
    /// For how long the phases are repeated; once if it is over before.
    pub(crate) lasts: Duration,
    /// How long the calm phase is.
    pub(crate) calm: Duration,
    pub(crate) workers: u64,
    pub(crate) contenders: u64,
    /// The mean of the holds while nothing may break.
    pub(crate) hold: Duration,
}

/// Names that a store may confuse, or that mean something to its protocol.
const HOSTILE: &[&str] =
    &["{a}b", "a/b:%", "'; DROP TABLE distlock --", "A\u{301}\u{202e} \u{1f512}"];

/// How often those faults strike once more that did not succeed, or must break exclusion and have broken none: what they meet is
/// chance.
const REPEATS: usize = 4;

/// The waits of all phases of a set-up, in microseconds.
fn no_waits() -> Histogram<u64> {
    // Up to an hour.
    let waits = Histogram::new_with_bounds(1, 3_600_000_000, 3);
    waits.unwrap_or_else(|error| unreachable!("the bounds are right: {error}"))
}

/// Runs all phases of a set-up.
pub(crate) async fn run(kind: Kind, size: Size) -> SetupReport {
    let mut report = SetupReport::new(kind, no_waits());
    let begun = tokio::time::Instant::now();
    let (mut seeded, mut round) = (Seeded::from(size.seed ^ kind as u64), 0);
    loop {
        if let Err(error) = phases(kind, &size, &mut report, (&mut seeded, &mut round)).await {
            report.void.push(format!("{kind}: {error}"));
            break;
        }
        if begun.elapsed() >= size.lasts {
            break;
        }
    }
    report.took = begun.elapsed().as_secs_f64();
    report.finish(kind.hits(size.hits));
    report
}

/// Plays each phase once. The servers are new: those of the last time may have fences of a clock that was
/// ahead, and after a loss of all data the next ones would be less.
async fn phases(
    kind: Kind,
    size: &Size,
    report: &mut SetupReport,
    (seeded, round): (&mut Seeded, &mut u64),
) -> Result<(), Unavailable> {
    let site = launch(kind).await?;
    let hosts: Vec<_> = site.addresses().iter().map(ToString::to_string).collect();
    let url = site.first_url(&hosts.join(","));
    let operator = distlock::connect(&url).await.map_err(|error| unreached(kind, &error))?;
    // The store is set up by its first client.
    let warm = operator.named("warm-up").map_err(|error| unreached(kind, &error))?;
    let guard = warm.ttl(kind.ttl()).acquire_timeout(kind.bound()).await;
    drop(guard.map_err(|error| unreached(kind, &error))?);
    for phase in [Phase::Calm, Phase::Storm, Phase::Break, Phase::Step, Phase::Ruin] {
        let hits = kind.hits(size.hits);
        let mut faults = deck(kind, phase, hits, seeded);
        if faults.is_empty() && phase != Phase::Calm {
            continue;
        }
        let seed = seeded.next_u64();
        // Not from the seed of the whole: what chance repeats here must not change the phases after it.
        let mut seeds = Seeded::from(seed);
        for _ in 0..=REPEATS {
            *round += 1;
            let (seed, round) = (seeds.next_u64(), *round);
            let setting = Setting { kind, size, site: &*site, operator: &operator, round, seed };
            report.add(setting.play(phase, faults).await?);
            faults = deck(kind, phase, hits, &mut seeds);
            faults.retain(|fault| report.is_open(fault.row, hits));
            if faults.is_empty() {
                break;
            }
        }
    }
    // The servers are about to go: what is still open ends with them.
    let _ = operator.close(Duration::from_secs(1)).await;
    Ok(())
}

fn unreached(kind: Kind, error: &distlock::Error) -> Unavailable {
    Unavailable::broken(format!("{kind} cannot be used: {error}"))
}

/// What a phase is played with.
#[derive(Debug)]
struct Setting<'a> {
    kind: Kind,
    size: &'a Size,
    site: &'a dyn Site,
    operator: &'a Locks,
    /// Each phase has locks of its own.
    round: u64,
    seed: u64,
}

impl Setting<'_> {
    async fn play(&self, phase: Phase, faults: Vec<Planned>) -> Result<PhaseReport, Unavailable> {
        // Fewer locks, held for longer, where a fault is to find a holder.
        let several = matches!(phase, Phase::Calm | Phase::Storm);
        let names = HOSTILE.iter().take(if several { 4 } else { 2 });
        let names: Vec<_> = names.map(|name| format!("r{}-{name}", self.round)).collect();
        let parts = Parts::new(self.round, names.len());
        let ledger = Ledger::new(parts.clone(), no_waits());
        let stage = Arc::new(Stage::new(names, parts, ledger));
        let crew = Crew::start(self.site, &stage, self.briefs(&stage, several)).await?;
        let meter = Meter::start(Arc::clone(&crew.pids));
        let begun = stage.now();
        self.progress(&stage, begun).await;
        let ready = stage.now();
        let skewed = [WallClock::new()?, WallClock::new()?];
        let (site, operator) = (self.site, self.operator);
        let injector =
            Injector { site, crew: &crew, stage: &stage, ttl: self.kind.ttl(), operator, skewed };
        let mut strikes = Vec::new();
        for fault in &faults {
            let strike = injector.strike(fault).await;
            let healed = match strike.failed {
                Some(_) => injector.heal(strike.number == 28).await?,
                None => Vec::new(),
            };
            strikes.push(strike);
            strikes.extend(healed);
        }
        if faults.is_empty() {
            tokio::time::sleep(self.size.calm).await;
        }
        let (struck, grants) = (stage.now(), stage.ledger().grants);
        let stalled = stage.stalled_since(ready);
        strikes.extend(injector.heal(strikes.iter().any(|strike| strike.number == 28)).await?);
        let healing = self.progress(&stage, stage.now()).await;
        let samples = meter.stop();
        crew.finish().await;
        let left_over = self.left_over(&stage).await;
        let times = Times { begun, ready, struck, stalled, grants, healing, left_over };
        Ok(self.close(phase, stage, strikes, times, samples))
    }

    fn briefs(&self, stage: &Stage, several: bool) -> Vec<Brief> {
        let mut seeds = Seeded::from(self.seed);
        let workers = 0..self.size.workers;
        let brief = workers.map(|at| Brief {
            url: String::new(),
            names: stage.names[..stage.parts.plain].to_vec(),
            parts: stage.parts.clone(),
            ttl: self.kind.ttl(),
            // Up to twice so long: what is not renewed does not run out by itself.
            hold: if several { self.size.hold } else { self.kind.ttl().mul_f64(0.4) },
            outlasts: several,
            contenders: self.size.contenders,
            seed: seeds.next_u64(),
            number: at,
        });
        brief.collect()
    }

    /// Waits until every lock has been granted again; how long that took. Each process asks for the other kinds in
    /// turn, so they have twice the time.
    async fn progress(&self, stage: &Stage, since: u64) -> Healing {
        let plain_limit = self.kind.ttl() + self.kind.bound();
        loop {
            let stuck = stage.ledger().stuck_since(since);
            let is_plain = stuck.first().is_some_and(|name| *name < stage.parts.plain);
            let limit = plain_limit * if is_plain { 1 } else { 2 };
            let took = Duration::from_nanos(stage.now() - since);
            let stalled = stage.stalled_since(since);
            let is_late = took.saturating_sub(stalled) >= limit;
            if stuck.is_empty() || is_late {
                if !stuck.is_empty() {
                    self.stuck(stage, &stuck, limit, stalled).await;
                }
                return Healing { took, excused: stuck.is_empty() && took >= plain_limit };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// L1, with what an operator would ask for.
    async fn stuck(&self, stage: &Stage, stuck: &[usize], limit: Duration, stalled: Duration) {
        let mut shown = String::new();
        for name in stuck.iter().map(|name| &stage.names[*name]) {
            match self.operator.inspect(name).await {
                Ok(info) => shown += &format!("; {name:?} in the store: {info:?}"),
                Err(error) => shown += &format!("; {name:?} cannot be inspected: {error}"),
            }
        }
        stage.complain("L1", format!(
            "{} locks were not granted within {limit:?}, without the {stalled:?} in which the soak did \
             not run; the last failure of a worker: {:?}{shown}",
            stuck.len(),
            stage.last_failure()
        ));
    }

    /// What the store still has of the locks of the phase when their leases must have ended.
    async fn left_over(&self, stage: &Stage) -> usize {
        let limit = self.kind.ttl() + self.kind.bound();
        let since = stage.now();
        loop {
            let mut left = Vec::new();
            for whole in stage.parts.wholes() {
                match self.operator.list(whole).await {
                    Ok(all) => left.extend(all.iter().map(|info| format!("{info:?}"))),
                    Err(error) => left.push(format!("{whole:?} cannot be listed: {error}")),
                }
            }
            for name in &stage.names[..stage.parts.plain] {
                match self.operator.inspect(name).await {
                    Ok(None) => {}
                    Ok(Some(info)) => left.push(format!("{name:?}: {info:?}")),
                    Err(error) => left.push(format!("{name:?} cannot be inspected: {error}")),
                }
            }
            let took = Duration::from_nanos(stage.now() - since);
            if left.is_empty() || took.saturating_sub(stage.stalled_since(since)) >= limit {
                if !left.is_empty() {
                    stage.complain("S4", format!("left in the store: {}", left.join("; ")));
                }
                return left.len();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn close(
        &self,
        phase: Phase,
        stage: Arc<Stage>,
        strikes: Vec<Strike>,
        times: Times,
        samples: Vec<crate::meter::Sample>,
    ) -> PhaseReport {
        let (names, parts) = (stage.names.clone(), stage.parts.clone());
        let Some(stage) = Arc::into_inner(stage) else {
            unreachable!("all workers have ended, and nobody else has the stage")
        };
        let (mut ledger, registers, complaints) = stage.close();
        let losses = std::mem::take(&mut ledger.losses);
        let (seen, waits, all) = (ledger.seen.clone(), ledger.waits.clone(), ledger.grants);
        let holds = ledger.into_holds();
        let evidence = Evidence {
            kind: self.kind,
            phase,
            names: &names,
            parts: &parts,
            holds: &holds,
            registers: &registers,
            strikes: &strikes,
            losses: &losses,
        };
        let mut verdict = evidence.judge();
        verdict.violations.extend(complaints);
        for violation in &mut verdict.violations {
            violation.what = format!("{} ({phase:?}): {}", self.kind, violation.what);
        }
        let doctored = (phase == Phase::Calm).then(|| doctored(&holds, &parts));
        let seconds = (times.struck - times.ready) as f64 / 1e9;
        let stalled = times.stalled.as_secs_f64();
        PhaseReport {
            phase,
            begun: times.begun,
            seconds,
            rate: times.grants as f64 / (seconds - stalled).max(0.001),
            stalled,
            grants: all,
            healed_in: times.healing.took.as_secs_f64(),
            healing_excused: times.healing.excused,
            left_over: times.left_over,
            strikes,
            verdict,
            doctored,
            losses,
            seen,
            waits,
            names,
            holds,
            samples,
        }
    }
}

/// When what happened in a phase.
#[derive(Debug)]
struct Times {
    begun: u64,
    ready: u64,
    struck: u64,
    /// For how long the soak did not run from `ready` to `struck`.
    stalled: Duration,
    /// Up to `struck`.
    grants: u64,
    healing: Healing,
    left_over: usize,
}

/// How every lock was granted again.
#[derive(Clone, Copy, Debug)]
struct Healing {
    took: Duration,
    /// It took longer than the limit, but not without the time in which the soak did not run.
    excused: bool,
}
