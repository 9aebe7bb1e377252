//! How long a case may take, and what is seen of one that hangs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::Time;
use crate::context::WeakCx;
use crate::runner::Ended;
use crate::runner::check::{Failure, Verdict};

/// How long a case may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// On its own clock: then it is ended.
    pub(super) case: Duration,
    /// On the real one: then it is left behind.
    pub(super) watchdog: Duration,
}

impl Limits {
    /// How often a case may wait for a ttl in real time.
    const TTLS: u32 = 20;

    /// For a case that waits for this ttl.
    pub(super) fn of(time: Time, ttl: Duration) -> Self {
        let seconds = Duration::from_secs;
        match time {
            Time::Virtual => Self { case: seconds(3600), watchdog: seconds(15) },
            Time::Real => {
                let case = seconds(120) + ttl * Self::TTLS;
                Self { case, watchdog: case + seconds(30) }
            }
        }
    }
}

/// The limits of a case that waits for this ttl.
pub(super) type GetLimits = fn(Time, Duration) -> Limits;

/// What the thread of a case says.
pub(super) enum Progress {
    /// The case has its store.
    Started(WeakCx, Limits),
    Ended(Ended),
}

/// How the case ends. One that hangs can only be looked at.
pub(super) fn watched(progress: &Receiver<Progress>, time: Time, mut watchdog: Duration) -> Ended {
    let mut cx = None;
    loop {
        let seen = match progress.recv_timeout(watchdog) {
            Ok(Progress::Ended(ended)) => return ended,
            Ok(Progress::Started(started, limits)) => {
                (cx, watchdog) = (Some(started), limits.watchdog);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => "its thread vanished".to_owned(),
            Err(RecvTimeoutError::Timeout) if time == Time::Virtual => format!(
                "after {watchdog:?} it hangs: a task blocks its thread, or waits for what does not follow tokio's paused clock"
            ),
            Err(RecvTimeoutError::Timeout) => {
                format!("after {watchdog:?} it hangs: a task blocks its thread")
            }
        };
        let (calls, wire) = cx.map(last_seen).unwrap_or_default();
        return Ended::Failed(Failure { calls, wire, ..Failure::new(seen, Verdict::Hindered) });
    }
}

/// The last calls and messages of a case that hangs. It may hang where they are told.
fn last_seen(cx: WeakCx) -> (Vec<String>, Vec<String>) {
    let (send, receive) = sync_channel(1);
    let look = move || {
        let seen = cx.upgrade().map(|cx| (cx.last_calls(), cx.last_messages()));
        let _ = send.send(seen.unwrap_or_default());
    };
    let looks = thread::Builder::new().name("last seen".to_owned()).spawn(look);
    looks.ok().and_then(|_| receive.recv_timeout(Duration::from_secs(1)).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use lock_core::memory::MemoryBackend;
    use lock_core::{
        Capabilities, Claim, ClaimRequest, Error, LockAdmin, LockBackend, LockKey, Result, Seen,
    };
    use tokio::time::Instant;

    use super::*;
    use crate::cases;
    use crate::context::Cx;
    use crate::runner::case::Case;
    use crate::runner::check::Check;
    use crate::runner::{run_once, runtime, unmet};
    use crate::{Client, Fault, Faults, Harness, MemoryHarness, Store, Unavailable};

    const SHORT: Duration = Duration::from_millis(200);

    /// Held while nobody can see what is on the wire.
    static WIRE: Mutex<()> = Mutex::new(());

    /// A store in real time that has seen one message.
    #[derive(Debug)]
    struct Wired;

    #[async_trait]
    impl Harness for Wired {
        fn name(&self) -> &str {
            "wired"
        }

        async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
            Ok(Box::new(Self))
        }
    }

    #[async_trait]
    impl Store for Wired {
        async fn client(&self) -> Result<Client> {
            Ok(Client::new(MemoryBackend::queued()).with_faults(Self))
        }
    }

    #[async_trait]
    impl Faults for Wired {
        async fn inject(&self, _: Fault) -> Result<(), Unavailable> {
            Ok(())
        }

        fn last_messages(&self) -> Vec<String> {
            let _seen = WIRE.lock();
            vec!["PING".to_owned()]
        }
    }

    /// What is told of a case with this body. Panics are found by its name.
    fn told(
        id: &'static str,
        body: fn(Cx) -> Pin<Box<dyn Future<Output = Check>>>,
    ) -> (Verdict, String) {
        let case = Case { id, about: "it is so", needs: &[], covers: &[], guards: &[], body };
        let harness: Arc<dyn Harness> = Arc::new(Wired);
        match run_once(&harness, case, |_, _| Limits { case: SHORT, watchdog: SHORT * 10 }) {
            Ended::Failed(failure) => (failure.verdict, failure.seen),
            ended @ Ended::As(_) => panic!("{ended:?}"),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "it hangs")]
    fn hangs() {
        thread::sleep(SHORT * 25);
    }

    #[test]
    fn a_case_that_does_not_end_is_not_judged() {
        let (verdict, told) = told("c07_endless", |_| Box::pin(pending()));
        assert_eq!(verdict, Verdict::Hindered);
        assert_eq!(told, "C7 not judged: it is so\nseen: it did not end within 200ms");
    }

    #[test]
    fn a_case_that_hangs_shows_its_last_calls_and_messages() {
        let (verdict, seen) = told("c07_hangs", |cx| {
            Box::pin(async move {
                let backend = cx.backend().await?;
                let (_claim, _) = cx.held(&backend, "lock").await?;
                hangs();
                Ok(())
            })
        });
        assert_eq!(verdict, Verdict::Hindered);
        let lines: Vec<_> = seen.lines().collect();
        assert_eq!(
            lines[..2],
            ["C7 not judged: it is so", "seen: after 2s it hangs: a task blocks its thread"]
        );
        assert!(lines[2].starts_with("after: client 1, \"lock\": TryAcquire in "), "{seen}");
        assert_eq!(lines[3..], ["on the wire: client 1, PING"]);

        let (_, seen) = told("c07_hangs", |cx| {
            Box::pin(async move {
                let _client = cx.client().await?;
                let _wire = WIRE.lock();
                hangs();
                Ok(())
            })
        });
        assert_eq!(seen.lines().collect::<Vec<_>>(), lines[..2], "it hangs while it is told, too");
    }

    #[test]
    fn a_panic_of_a_call_is_as_bad_as_one_of_a_task() {
        let (verdict, seen) = told("c07_panics", |_| Box::pin(async { panic!("a defect") }));
        assert_eq!(verdict, Verdict::Panicked);
        assert!(seen.starts_with("C7 not judged: it is so\nseen: panicked at "), "{seen}");
        assert!(seen.contains(" a defect\nviolated: "), "{seen}");
        let (verdict, seen) = told("c07_panics", |_| {
            Box::pin(async { std::panic::resume_unwind(Box::new("passed on")) })
        });
        assert_eq!(verdict, Verdict::Panicked);
        assert!(seen.contains("\nseen: passed on\nviolated: "), "{seen}");
    }

    /// A store that keeps no ttl that is shorter than this.
    const LONG: Duration = Duration::from_secs(10);

    #[derive(Debug)]
    struct Long(Arc<dyn LockBackend>);

    #[async_trait]
    impl LockBackend for Long {
        fn name(&self) -> &'static str {
            self.0.name()
        }

        fn capabilities(&self) -> Capabilities {
            let mut can = self.0.capabilities();
            can.min_ttl = LONG;
            can
        }

        fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
            if request.ttl < LONG {
                return Err(Error::invalid("the ttl is too short"));
            }
            self.0.claim(request)
        }

        async fn ping(&self) -> Result<()> {
            self.0.ping().await
        }

        async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
            self.0.look(keys).await
        }

        async fn close(&self) -> Result<()> {
            self.0.close().await
        }

        fn admin(&self) -> Option<&dyn LockAdmin> {
            self.0.admin()
        }
    }

    /// How long the case takes on its clock; nothing if it is not for this store.
    fn took(harness: &dyn Harness, case: &Case) -> Check<Duration> {
        runtime(harness.time(), case.id).unwrap().block_on(async {
            let cx = Cx::start(harness, false).await?;
            let begun = Instant::now();
            if !case.needs.iter().any(|need| unmet(&cx, *need).is_some()) {
                (case.body)(cx.clone()).await?;
            }
            Ok(begun.elapsed())
        })
    }

    #[test]
    fn a_store_with_a_long_ttl_has_the_time_for_each_case() {
        let flavours = [MemoryHarness::queued(), MemoryHarness::poll_only()];
        let limit = Limits::of(Time::Real, LONG).case;
        for harness in flavours.map(|right| right.wrapped("long", |inner| Arc::new(Long(inner)))) {
            let mut wrong = Vec::new();
            for case in cases::all() {
                // It rests for longer than in real time, where that costs nothing.
                let rests = case.id == "c09_fences_rise_over_a_long_rest";
                let limit = if rests { Limits::of(Time::Virtual, LONG).case } else { limit };
                let took = took(&harness, case);
                if !took.as_ref().is_ok_and(|took| *took <= limit) {
                    wrong.push(format!("{}: {took:?}", case.id));
                }
            }
            assert!(wrong.is_empty(), "{harness:?}: {wrong:#?}");
        }
    }
}
