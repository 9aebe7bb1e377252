//! Shared by the benchmarks of the backends: the same steps, timed in the same way.
//!
//! A figure means something only next to a floor measured in the same run, with the steps
//! interleaved: raw round trips of the same driver to the same server. None of this passes or
//! fails.

use std::error::Error;
use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, LockBackend, LockGuard, LockKey, Locks, OsRng, OwnerId,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The result of a benchmark's steps.
pub type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The ttl of all measured locks.
pub const TTL: Duration = Duration::from_secs(30);

/// Runs a benchmark on the worker threads of its own runtime. Does nothing under
/// `cargo test --benches`, which needs no figures.
pub fn run(benchmark: impl Future<Output = Done> + Send + 'static) -> Done {
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return Ok(());
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::spawn(benchmark).await? })
}

/// The median.
///
/// # Panics
///
/// Without any sample.
pub fn p50(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

/// How many times `b` is in `a`.
pub fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// A contender, without the core on top.
pub fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Done<Box<dyn Claim>> {
    let request = ClaimRequest::new(LockKey::new("", name)?, OwnerId::generate(&OsRng)?, TTL);
    Ok(backend.claim(request.with_wait(wait))?)
}

/// Tries a lock that is free.
pub async fn granted(claim: &mut dyn Claim) -> Done {
    match claim.try_acquire().await? {
        Attempt::Granted { .. } => Ok(()),
        other => Err(format!("not granted: {other:?}").into()),
    }
}

/// How long a step takes.
pub async fn timed(step: impl Future<Output = Done>) -> Done<Duration> {
    let start = Instant::now();
    step.await?;
    Ok(start.elapsed())
}

/// How long a free lock takes to be acquired and released by `claim`.
pub async fn cycle(mut claim: Box<dyn Claim>) -> Done<Duration> {
    timed(async {
        granted(&mut *claim).await?;
        claim.release().await?;
        Ok(())
    })
    .await
}

/// The same through the core, with a keeper and a guard.
pub async fn guarded_cycle(locks: &Locks, name: &str) -> Done<Duration> {
    let lock = locks.named(name)?;
    timed(async {
        lock.acquire().await?.release().await?;
        Ok(())
    })
    .await
}

/// The time from the call of `holder`'s release to the grant to `waiter`, which has waited for
/// `settled`.
pub async fn hand_over(
    mut holder: Box<dyn Claim>,
    mut waiter: Box<dyn Claim>,
    settled: Duration,
) -> Done<Duration> {
    granted(&mut *holder).await?;
    waiter.try_acquire().await?;
    let woken = tokio::spawn(async move {
        loop {
            waiter.changed().await?;
            if let Attempt::Granted { .. } = waiter.try_acquire().await? {
                return Ok::<_, lock_core::Error>((Instant::now(), waiter));
            }
        }
    });
    if settled.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(settled).await;
    }
    let start = Instant::now();
    holder.release().await?;
    let (at, mut waiter) = woken.await??;
    waiter.release().await?;
    Ok(at.saturating_duration_since(start))
}

/// Takes that many locks, a hundred at a time.
pub async fn hold(locks: &Locks, number: u32) -> Done<Vec<LockGuard>> {
    let start = Instant::now();
    let mut guards = Vec::new();
    let mut next = 0;
    while next < number {
        let mut tasks = JoinSet::new();
        for n in next..number.min(next + 100) {
            let lock = locks.named(format!("held:{n}"))?;
            tasks.spawn(async move { lock.acquire().await });
        }
        next += 100;
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard??);
        }
    }
    println!("{number} locks acquired in {:.2?}", start.elapsed());
    Ok(guards)
}

/// What a server has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// The requests or statements that it has executed.
    pub requests: f64,
    /// Seconds of processor time.
    pub server_cpu: f64,
}

/// Measures held locks while nothing happens but their renewals.
#[derive(Debug)]
pub struct Watch {
    first: Usage,
    client_cpu: f64,
    start: Instant,
}

impl Watch {
    /// Waits until the locks are renewed at their usual pace: the first renewals coincide, since
    /// the locks were taken together.
    pub async fn settle() {
        tokio::time::sleep(Duration::from_secs(12)).await;
    }

    /// Starts from the server's current counters.
    pub fn begin(first: Usage) -> Done<Self> {
        Ok(Self { first, client_cpu: cpu("self")?, start: Instant::now() })
    }

    /// Lets half a minute pass.
    pub async fn pass(&self) {
        tokio::time::sleep(Duration::from_secs(30)).await;
    }

    /// Prints the usage per second, and how many of the locks were lost.
    pub fn end(self, last: Usage, guards: &[LockGuard]) -> Done {
        let took = self.start.elapsed().as_secs_f64();
        let percent = |seconds: f64| seconds / took * 100.0;
        let requests = (last.requests - self.first.requests) / took;
        println!("  requests                {requests:>8.1} /s");
        let server = percent(last.server_cpu - self.first.server_cpu);
        println!("  CPU of the server       {server:>8.1} % of a core");
        let client = percent(cpu("self")? - self.client_cpu);
        println!("  CPU of the client       {client:>8.1} % of a core");
        let lost = guards.iter().filter(|guard| guard.token().is_err()).count();
        println!("  lost                    {lost:>8}");
        Ok(())
    }
}

/// The processor time of a process so far, in seconds: by its id, or `self`. Linux only.
pub fn cpu(process: &str) -> Done<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program may contain blanks; fields 14 and 15 count ticks, of which Linux has
    // 100 a second (proc(5)).
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).ok_or("no times")?.parse::<f64>().map_err(Box::from);
    let ticks: Done<f64> = ticks(11).and_then(|user: f64| Ok(user + ticks(12)?));
    Ok(ticks? / 100.0)
}

/// The resident memory of this process, in bytes. Linux only.
pub fn resident() -> Done<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_ratio() {
        let ms = Duration::from_millis;
        assert_eq!(p50(vec![ms(9), ms(1), ms(3)]), ms(3));
        assert!((ratio(ms(3), ms(2)) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        assert!(resident().unwrap() > 100_000.0);
        assert!(cpu("self").unwrap() >= 0.0);
        assert!(cpu("0").is_err());
    }
}
