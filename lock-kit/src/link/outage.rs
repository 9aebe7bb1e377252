//! Leaves a server in peace that is down, however many callers want something of it.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::backoff::Backoff;
//! use lock_kit::outage::Outage;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let outage = Outage::new(Backoff::new(Duration::from_millis(20), Duration::from_millis(500)));
//! let refused = async || Err::<(), _>("refused");
//! // Nothing is known against the server: each caller asks it.
//! assert_eq!(outage.ask(refused, |_| true).await, Ok(Err("refused")));
//! // Now one caller asks, after a pause, and the other one gets to know what it was told.
//! let (one, other) = tokio::join!(outage.ask(refused, |_| true), outage.ask(refused, |_| true));
//! assert_eq!((one, other), (Ok(Err("refused")), Err("refused")));
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Failures;
use lock_core::backoff::Backoff;

/// A caller that has no answer for this long is no longer waited for: its connection may be the one that is
/// dead, and its limit a long one.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether a server is down, as its callers have found. While it is, one of them asks it at a time, with
/// growing pauses in between.
pub struct Outage<E>(Mutex<OutageState<E>>);

struct OutageState<E> {
    /// There are some while the server is down.
    failures: Failures,
    asking: Option<Leader<E>>,
}

/// The caller that asks on behalf of all.
#[derive(Clone)]
struct Leader<E> {
    /// It has no sender any more if that caller was dropped.
    told: watch::Receiver<Option<Result<(), E>>>,
    /// Until when it is waited for.
    end: Instant,
}

/// What a caller does.
enum Part<E> {
    /// It asks: the server seems to be up.
    Ask,
    /// It asks on behalf of all, not before this.
    Lead(Instant, watch::Sender<Option<Result<(), E>>>),
    Follow(Leader<E>),
}

impl<E: Clone> Outage<E> {
    /// Nothing is known against the server. `backoff` spaces the questions while it is down.
    pub fn new(backoff: Backoff) -> Self {
        Self(Mutex::new(OutageState { failures: Failures::new(backoff), asking: None }))
    }

    /// Asks by `work`, unless another caller does so of a server that is down: then this one waits, and asks
    /// if the server is up. `is_down` tells an answer that means an outage from any other.
    ///
    /// # Errors
    ///
    /// The error that the other caller got. Nothing was asked for this one.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe if `work` is: another caller asks instead.
    pub async fn ask<T, F>(
        &self,
        work: impl FnOnce() -> F,
        is_down: impl Fn(&E) -> bool,
    ) -> Result<Result<T, E>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let lead = loop {
            match self.part() {
                Part::Ask => break None,
                Part::Lead(begin, sender) => {
                    tokio::time::sleep_until(begin).await;
                    break Some(sender);
                }
                // If nothing was told, another leader is needed.
                Part::Follow(leader) => leader.outcome().await?,
            }
        };
        let answer = work().await;
        let failed = answer.as_ref().err().filter(|error| is_down(error));
        match failed {
            Some(_) => self.down(),
            None => self.0.lock().failures.end(),
        }
        if let Some(lead) = lead {
            lead.send_replace(Some(failed.map_or(Ok(()), |error| Err(error.clone()))));
        }
        Ok(answer)
    }

    /// Waits for a caller that asks a server that is down: for those who would wait for something else first,
    /// such as a free connection.
    ///
    /// # Errors
    ///
    /// The error that the other caller got.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn over(&self) -> Result<(), E> {
        let leader = self.0.lock().leader();
        match leader {
            Some(leader) => leader.outcome().await,
            None => Ok(()),
        }
    }

    /// The server was found to be down in another way.
    pub fn down(&self) {
        self.0.lock().failures.one_more();
    }

    fn part(&self) -> Part<E> {
        let mut state = self.0.lock();
        if state.failures.backoff.failures() == 0 {
            return Part::Ask;
        }
        let now = Instant::now();
        if let Some(leader) = state.leader() {
            return Part::Follow(leader);
        }
        let begin = state.failures.pause_until(now).unwrap_or(now);
        let (sender, told) = watch::channel(None);
        state.asking = Some(Leader { told, end: begin + PATIENCE });
        Part::Lead(begin, sender)
    }
}

impl<E: Clone> OutageState<E> {
    /// The caller that asks for all, if there is one.
    fn leader(&self) -> Option<Leader<E>> {
        let is_there =
            |leader: &&Leader<E>| leader.told.has_changed().is_ok() && Instant::now() < leader.end;
        self.asking.as_ref().filter(is_there).cloned()
    }
}

impl<E: Clone> Leader<E> {
    /// Waits until it is told something, is dropped, or takes too long.
    async fn outcome(mut self) -> Result<(), E> {
        let told = self.told.wait_for(Option::is_some);
        match tokio::time::timeout_at(self.end, told).await {
            Ok(Ok(told)) => told.clone().unwrap_or(Ok(())),
            _ => Ok(()),
        }
    }
}

impl<E> fmt::Debug for Outage<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Outage")
            .field("failures", &state.failures.backoff.failures())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

    /// A server that counts those who ask it.
    #[derive(Default)]
    struct Server(AtomicU32);

    impl Server {
        async fn refuse(&self) -> Result<(), &'static str> {
            self.0.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
            Err("refused")
        }
    }

    fn outage() -> Outage<&'static str> {
        Outage::new(Backoff::new(PAUSES.0, PAUSES.1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_callers_ask_a_few_times_a_second() {
        let (outage, server) = (Arc::new(outage()), Arc::new(Server::default()));
        let end = Instant::now() + Duration::from_secs(10);
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..1_000 {
            let (outage, server) = (Arc::clone(&outage), Arc::clone(&server));
            callers.spawn(async move {
                while Instant::now() < end {
                    let told = outage.ask(|| server.refuse(), |_| true).await;
                    assert!(matches!(told, Ok(Err("refused")) | Err("refused")));
                }
            });
        }
        callers.join_all().await;
        // All at once in the beginning, when nobody knew.
        let later = server.0.load(Relaxed) - 1_000;
        assert!((10..40).contains(&later), "{later}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_ask_when_the_server_is_up() {
        let outage = outage();
        outage.down();
        let good = async || Ok::<_, &'static str>(7);
        let (one, other) = tokio::join!(outage.ask(good, |_| true), outage.ask(good, |_| true));
        assert_eq!((one, other), (Ok(Ok(7)), Ok(Ok(7))));
        // An error that says nothing about the server is no outage.
        let told = outage.ask(async || Err::<(), _>("no right"), |_| false).await;
        assert_eq!(told, Ok(Err("no right")));
        let start = Instant::now();
        assert_eq!(outage.ask(good, |_| true).await, Ok(Ok(7)));
        assert_eq!(start.elapsed(), Duration::ZERO);
        let slow = async || {
            tokio::time::sleep(PAUSES.0).await;
            good().await
        };
        let _ = tokio::join!(outage.ask(slow, |_| true), outage.ask(slow, |_| true));
        assert_eq!(start.elapsed(), PAUSES.0, "nobody waits for another any more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_caller_is_told_ends_the_wait_for_something_else() {
        let (outage, server) = (outage(), Server::default());
        assert_eq!(outage.over().await, Ok(()), "nothing is known against the server");
        outage.down();
        let told = tokio::join!(outage.ask(|| server.refuse(), |_| true), outage.over());
        assert_eq!(told, (Ok(Err("refused")), Err("refused")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_dropped_is_followed_by_another() {
        let outage = outage();
        outage.down();
        let stuck = outage.ask(std::future::pending::<Result<u8, &'static str>>, |_| true);
        let waiting = outage.ask(async || Ok(7), |_| true);
        let begun = Instant::now();
        let limit = PATIENCE / 2;
        let (dropped, told) = tokio::join!(tokio::time::timeout(limit, stuck), waiting);
        assert!(dropped.is_err());
        assert_eq!(told, Ok(Ok(7)));
        let took = begun.elapsed();
        assert!((limit..PATIENCE).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_stuck_holds_up_nobody_for_long() {
        let outage = outage();
        outage.down();
        let stuck = outage.ask(std::future::pending::<Result<u8, &'static str>>, |_| true);
        let told = tokio::select! {
            biased;
            _ = stuck => None,
            told = outage.ask(async || Ok(7), |_| true) => Some(told),
        };
        assert_eq!(told, Some(Ok(Ok(7))));
    }
}
