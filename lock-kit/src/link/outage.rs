//! Leaves a server in peace that is down, however many callers want something of it.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::backoff::Backoff;
//! use lock_kit::outage::Outage;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let outage = Outage::new(Backoff::new(Duration::from_millis(20), Duration::from_millis(500)));
//! // Nothing is known against the server: each caller asks it.
//! outage.turn().await.unwrap().ends(Some(&"refused"));
//! // Now one caller asks, after a pause, and the other one gets to know what it was told.
//! let one = async { outage.turn().await.map(|turn| turn.ends(Some(&"refused"))) };
//! assert_eq!(tokio::join!(one, outage.turn()).1.err(), Some("refused"));
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
    asking: Option<LeadingAsker<E>>,
}

/// The caller that asks on behalf of all.
#[derive(Clone)]
struct LeadingAsker<E> {
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
    Follow(LeadingAsker<E>),
}

impl<E: Clone> Outage<E> {
    /// Nothing is known against the server. `backoff` spaces the questions while it is down.
    pub fn new(backoff: Backoff) -> Self {
        Self(Mutex::new(OutageState { failures: Failures::new(backoff), asking: None }))
    }

    /// Waits for this caller's turn to ask: it comes at once if the server seems to be up. While another caller asks a
    /// server that is down, this one waits, and asks if the server is up.
    ///
    /// # Errors
    ///
    /// The error that the other caller got. Nothing is asked for this one.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: another caller asks instead.
    pub async fn turn(&self) -> Result<OutageTurn<'_, E>, E> {
        loop {
            match self.part() {
                Part::Ask => return Ok(OutageTurn { outage: self, lead: None }),
                Part::Lead(begin, sender) => {
                    tokio::time::sleep_until(begin).await;
                    return Ok(OutageTurn { outage: self, lead: Some(sender) });
                }
                // If nothing was told, another leader is needed.
                Part::Follow(leader) => leader.outcome().await?,
            }
        }
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
        state.asking = Some(LeadingAsker { told, end: begin + PATIENCE });
        Part::Lead(begin, sender)
    }
}

/// A caller's turn to ask the server. If it is dropped before its end, another caller asks instead.
#[must_use = "the others wait for the answer"]
pub struct OutageTurn<'a, E> {
    outage: &'a Outage<E>,
    /// Whom the others follow.
    lead: Option<watch::Sender<Option<Result<(), E>>>>,
}

impl<E: Clone> OutageTurn<'_, E> {
    /// The server has answered, with the error if that means an outage: the others are told.
    pub fn ends(self, outage: Option<&E>) {
        match outage {
            Some(_) => self.outage.down(),
            None => self.outage.0.lock().failures.end(),
        }
        if let Some(lead) = self.lead {
            lead.send_replace(Some(outage.map_or(Ok(()), |error| Err(error.clone()))));
        }
    }
}

impl<E> fmt::Debug for OutageTurn<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutageTurn").field("leads", &self.lead.is_some()).finish_non_exhaustive()
    }
}

impl<E: Clone> OutageState<E> {
    /// The caller that asks for all, if there is one.
    fn leader(&self) -> Option<LeadingAsker<E>> {
        let is_there = |leader: &&LeadingAsker<E>| {
            leader.told.has_changed().is_ok() && Instant::now() < leader.end
        };
        self.asking.as_ref().filter(is_there).cloned()
    }
}

impl<E: Clone> LeadingAsker<E> {
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

    /// Asks by `work` in a turn of its own. The outer error is that of another caller.
    async fn ask<T, F: Future<Output = Result<T, &'static str>>>(
        outage: &Outage<&'static str>,
        work: impl FnOnce() -> F,
        is_down: bool,
    ) -> Result<Result<T, &'static str>, &'static str> {
        let turn = outage.turn().await?;
        let answer = work().await;
        turn.ends(answer.as_ref().err().filter(|_| is_down));
        Ok(answer)
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
                    let told = ask(&outage, || server.refuse(), true).await;
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
        let (one, other) = tokio::join!(ask(&outage, good, true), ask(&outage, good, true));
        assert_eq!((one, other), (Ok(Ok(7)), Ok(Ok(7))));
        // An error that says nothing about the server is no outage.
        let told = ask(&outage, async || Err::<(), _>("no right"), false).await;
        assert_eq!(told, Ok(Err("no right")));
        let start = Instant::now();
        assert_eq!(ask(&outage, good, true).await, Ok(Ok(7)));
        assert_eq!(start.elapsed(), Duration::ZERO);
        let slow = async || {
            tokio::time::sleep(PAUSES.0).await;
            good().await
        };
        let _ = tokio::join!(ask(&outage, slow, true), ask(&outage, slow, true));
        assert_eq!(start.elapsed(), PAUSES.0, "nobody waits for another any more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_caller_is_told_ends_the_wait_for_something_else() {
        let (outage, server) = (outage(), Server::default());
        assert_eq!(outage.over().await, Ok(()), "nothing is known against the server");
        outage.down();
        let told = tokio::join!(ask(&outage, || server.refuse(), true), outage.over());
        assert_eq!(told, (Ok(Err("refused")), Err("refused")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_dropped_is_followed_by_another() {
        let outage = outage();
        outage.down();
        let stuck = ask(&outage, std::future::pending::<Result<u8, &'static str>>, true);
        let waiting = ask(&outage, async || Ok(7), true);
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
        let stuck = ask(&outage, std::future::pending::<Result<u8, &'static str>>, true);
        let told = tokio::select! {
            biased;
            _ = stuck => None,
            told = ask(&outage, async || Ok(7), true) => Some(told),
        };
        assert_eq!(told, Some(Ok(Ok(7))));
    }
}
