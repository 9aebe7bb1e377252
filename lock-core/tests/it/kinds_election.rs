//! Elections: who leads, and what others see of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::kinds::{Election, Observation, Observer};
use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Error, ErrorKind, FencingToken, LockBackend,
    LockEvent, LockKey, LockLayer, LockObserver, LockState, Locks, LostReason, Operation, Released,
    Result, Seen, async_trait,
};

use crate::slow::SlowStore;
use crate::{MS, SECOND, another, dropped_after, stores, virtual_locks};

/// That of a client of the store like another process.
fn election(store: &MemoryBackend, clock: TokioClock) -> Election {
    let locks = another(store, clock);
    locks.election("x").unwrap().ttl(3 * SECOND)
}

/// What an observer tells within that time.
async fn told(observer: &mut Observer, within: Duration) -> Option<Observation> {
    tokio::time::timeout(within, observer.next()).await.ok().map(Result::unwrap)
}

/// Term and value of a leader that an observer tells of.
fn leads(told: Option<Observation>) -> (u64, String) {
    let Some(Observation::Leader(leader)) = told else { panic!("{told:?}") };
    (leader.term.unwrap().get(), leader.value.unwrap())
}

const VACANT: Option<Observation> = Some(Observation::Vacant { last_term: None });

#[tokio::test(start_paused = true)]
async fn an_observer_tells_of_changes_and_of_absence() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let (ours, theirs) = (election(&store, clock), election(&store, clock));
        let mut observer = theirs.observe().unwrap();
        assert_eq!(told(&mut observer, Duration::ZERO).await, VACANT, "the first one at once");
        assert_eq!(told(&mut observer, 60 * SECOND).await, None, "only changes");
        let first = ours.campaign("one").await.unwrap();
        let term = first.term().unwrap();
        assert_eq!(leads(told(&mut observer, 1100 * MS).await), (term.get(), "one".to_owned()));
        assert_eq!(told(&mut observer, 60 * SECOND).await, None, "it is renewed");
        assert_eq!(first.resign().await.unwrap(), Released::Freed);
        let vacant = Observation::Vacant { last_term: Some(term) };
        assert_eq!(told(&mut observer, 1100 * MS).await, Some(vacant));
        let second = theirs.campaign("two").await.unwrap();
        let (next, value) = leads(told(&mut observer, 1100 * MS).await);
        assert!(next > term.get() && value == "two");
        assert_eq!(second.value(), "two");
    }
}

/// As often as was asked, and by default every third of the ttl, with a tenth of chance.
#[tokio::test(start_paused = true)]
async fn an_observer_looks_from_time_to_time() {
    for (ttl, every, looks) in [
        (3 * SECOND, None, 55..=60),
        (300 * MS, None, 540..=600),
        (3600 * SECOND, None, 55..=60),
        (3 * SECOND, Some(10 * SECOND), 5..=6),
    ] {
        let (store, locks, _) = virtual_locks(MemoryBackend::queued());
        let election = locks.election("x").unwrap().ttl(ttl);
        let election = every.map_or(election.clone(), |every| election.look_every(every));
        let mut observer = election.observe().unwrap();
        told(&mut observer, Duration::ZERO).await.unwrap();
        assert_eq!(told(&mut observer, 60 * SECOND).await, None);
        assert!(looks.contains(&(store.requests() - 1)), "{} looks", store.requests());
    }
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    for bad in [
        locks.election("x").unwrap().look_every(Duration::ZERO),
        locks.election("x").unwrap().ttl(MS),
    ] {
        assert_eq!(bad.observe().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_silent_for_a_ttl_is_told_once() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let election = election(&store, clock);
    let leadership = election.campaign("one").await.unwrap();
    let mut observer = election.observe().unwrap();
    let since = clock.now();
    let seen = leads(told(&mut observer, Duration::ZERO).await);
    store.freeze();
    let told_at = async |observer: &mut Observer| {
        let unknown = told(observer, 10 * SECOND).await;
        assert_eq!(unknown, Some(Observation::Unknown { since }));
        clock.now().since(since)
    };
    // The first look without an answer comes after a third of the ttl.
    let after = told_at(&mut observer).await;
    assert!(after >= 4 * SECOND && after <= 4100 * MS, "{after:?}");
    assert_eq!(told(&mut observer, 600 * SECOND).await, None, "once");
    assert!(matches!(leadership.state(), LockState::Lost(_)));
    store.thaw();
    let again = told(&mut observer, 10 * SECOND).await;
    assert_eq!(again, Some(Observation::Vacant { last_term: Some(token(seen.0)) }));
    // What is as before is told again, since it was unknown.
    store.freeze();
    assert!(matches!(told(&mut observer, 10 * SECOND).await, Some(Observation::Unknown { .. })));
    store.thaw();
    assert_eq!(told(&mut observer, 10 * SECOND).await, again);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_unknown_since_the_observation_began() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let mut observer = locks.election("x").unwrap().ttl(3 * SECOND).observe().unwrap();
    let since = clock.now();
    store.refuse();
    assert_eq!(told(&mut observer, 10 * SECOND).await, Some(Observation::Unknown { since }));
    assert_eq!(clock.now().since(since), 3 * SECOND);
}

/// Nor does an observer that looks more rarely than once in a ttl.
#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_ask_is_no_silent_store() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let mut rare = election(&store, clock).look_every(60 * SECOND).observe().unwrap();
    assert_eq!(told(&mut rare, SECOND).await, VACANT);
    assert_eq!(told(&mut rare, 600 * SECOND).await, None);

    let mut observer = election(&store, clock).observe().unwrap();
    assert_eq!(told(&mut observer, SECOND).await, VACANT);
    store.freeze();
    // It leaves in the middle of a look.
    assert_eq!(told(&mut observer, 2 * SECOND).await, None);
    clock.sleep(3600 * SECOND).await;
    assert_eq!(told(&mut observer, SECOND).await, None);
    store.thaw();
    assert_eq!(told(&mut observer, 10 * SECOND).await, None);
}

/// As in a `select!` with a tick.
#[tokio::test(start_paused = true)]
async fn a_caller_that_asks_again_and_again_is_told_of_a_silent_store() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let mut observer = election(&store, clock).ttl(10 * SECOND).observe().unwrap();
    assert_eq!(told(&mut observer, SECOND).await, VACANT);
    store.freeze();
    let (begun, mut unknown_after) = (clock.now(), Vec::new());
    while clock.now().since(begun) < 60 * SECOND {
        if let Some(seen) = told(&mut observer, 3 * SECOND).await {
            assert!(matches!(seen, Observation::Unknown { .. }), "{seen:?}");
            unknown_after.push(clock.now().since(begun));
        }
    }
    let [after] = unknown_after[..] else { panic!("{unknown_after:?}") };
    assert!((10 * SECOND..14 * SECOND).contains(&after), "{after:?}");
}

/// As in a `select!` whose other branch is always sooner than the store.
#[tokio::test(start_paused = true)]
async fn a_caller_that_never_waits_for_a_whole_look_is_told_of_each_change() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let looks = store.client();
    let slow = SlowStore { look: 5 * MS, ..SlowStore::of(looks.clone()) };
    let slow = Locks::builder(slow).clock(clock).build().unwrap().election("x").unwrap();
    let mut observer = slow.ttl(3 * SECOND).observe().unwrap();
    let mut told_soon = async || {
        let begun = clock.now();
        while clock.now().since(begun) < 10 * SECOND {
            if let Some(seen) = told(&mut observer, MS).await {
                return (clock.now().since(begun) < 2 * SECOND).then_some(seen);
            }
        }
        None
    };
    assert_eq!(told_soon().await, VACANT);
    let ours = election(&store, clock);
    for _ in 0..3 {
        let leadership = ours.campaign("one").await.unwrap();
        let term = leadership.term().unwrap();
        assert_eq!(leads(told_soon().await), (term.get(), "one".to_owned()));
        assert_eq!(told_soon().await, None, "the store answers");
        leadership.resign().await.unwrap();
        let vacant = Observation::Vacant { last_term: Some(term) };
        assert_eq!(told_soon().await, Some(vacant));
    }
    // It may have a connection to the store, which others need.
    clock.sleep(2 * SECOND).await;
    let before = looks.requests();
    assert_eq!(told(&mut observer, MS).await, None);
    clock.sleep(5 * MS).await;
    assert_eq!(looks.requests(), before + 1, "a look ends while nobody asks");
    // What it would have told is not told after a long pause.
    let leadership = ours.campaign("one").await.unwrap();
    clock.sleep(2 * SECOND).await;
    assert_eq!(told(&mut observer, MS).await, None);
    clock.sleep(SECOND).await;
    leadership.resign().await.unwrap();
    clock.sleep(2 * SECOND).await;
    assert!(!matches!(told(&mut observer, SECOND).await, Some(Observation::Leader(_))));
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_dropped_at_any_await_costs_no_change() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued().stepwise());
    let ours = election(&store, clock);
    let mut observer = election(&store, clock).observe().unwrap();
    for polls in 1..8 {
        let leadership = ours.campaign("one").await.unwrap();
        let mut seen = dropped_after(polls, observer.next()).await;
        while !matches!(seen, Some(Ok(Observation::Leader(_)))) {
            seen = Some(observer.next().await);
        }
        leadership.resign().await.unwrap();
        assert!(matches!(told(&mut observer, 3 * SECOND).await, Some(Observation::Vacant { .. })));
    }
}

/// A store whose looks show what is written down; the last answer stays. All else is the memory store's.
#[derive(Clone, Debug)]
struct Shows {
    store: MemoryBackend,
    looks: Arc<Mutex<VecDeque<Result<Vec<Seen>>>>>,
    can_look: bool,
}

impl Shows {
    fn new(looks: impl IntoIterator<Item = Result<Vec<Seen>>>) -> Self {
        let looks = Arc::new(Mutex::new(looks.into_iter().collect()));
        Self { store: MemoryBackend::queued(), looks, can_look: true }
    }

    fn election(&self) -> Election {
        let locks = Locks::builder(self.clone()).clock(TokioClock::default()).build().unwrap();
        locks.election("x").unwrap().ttl(3 * SECOND)
    }
}

#[async_trait]
impl LockBackend for Shows {
    fn name(&self) -> &'static str {
        "shows"
    }
    fn capabilities(&self) -> Capabilities {
        let mut can = self.store.capabilities();
        can.look = self.can_look;
        can
    }
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.store.claim(request)
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn look(&self, _: &[LockKey]) -> Result<Vec<Seen>> {
        let mut looks = self.looks.lock().unwrap();
        if looks.len() > 1 { looks.pop_front().unwrap() } else { looks[0].clone() }
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn held(fence: u64) -> Result<Vec<Seen>> {
    Ok(vec![Seen::Held { fence: Some(token(fence)), label: Some(fence.to_string()) }])
}

fn free() -> Result<Vec<Seen>> {
    Ok(vec![Seen::Free { floor: None }])
}

#[tokio::test(start_paused = true)]
async fn a_term_never_goes_back() {
    let answers = [held(5), held(3), free(), held(4), held(6), held(6)];
    let mut observer = Shows::new(answers).election().observe().unwrap();
    assert_eq!(leads(told(&mut observer, SECOND).await), (5, "5".to_owned()));
    let last_term = Some(token(5));
    assert_eq!(told(&mut observer, 3 * SECOND).await, Some(Observation::Vacant { last_term }));
    assert_eq!(leads(told(&mut observer, 3 * SECOND).await), (6, "6".to_owned()));
    // A store that has lost its data says nothing of use.
    let mut observer = Shows::new([held(5), held(1)]).election().observe().unwrap();
    assert_eq!(leads(told(&mut observer, SECOND).await).0, 5);
    assert!(matches!(told(&mut observer, 10 * SECOND).await, Some(Observation::Unknown { .. })));
    assert_eq!(told(&mut observer, 600 * SECOND).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_get_better_is_an_error_and_the_observer_goes_on() {
    let denied = || Err(Error::new(ErrorKind::Denied, "no"));
    let store = Shows::new([held(1), denied(), denied(), held(2)]);
    let mut observer = store.election().observe().unwrap();
    assert_eq!(leads(told(&mut observer, SECOND).await).0, 1);
    for _ in 0..2 {
        let error = observer.next().await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Denied, Some(Operation::Look)));
        assert_eq!((error.key(), error.backend()), (Some("x"), Some("shows")));
    }
    assert_eq!(leads(told(&mut observer, 2 * SECOND).await).0, 2);
    // An answer for another number of names.
    let error = Shows::new([Ok(Vec::new())]).election().leader().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_shows_nobody_is_refused_and_still_elects() {
    let mut store = Shows::new([free()]);
    store.can_look = false;
    let election = store.election();
    for error in [election.leader().await.unwrap_err(), election.observe().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("shows cannot show"), "{error}");
    }
    election.campaign("one").await.unwrap().resign().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_is_not_asked() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let election = locks.election("x").unwrap();
    let mut observer = election.observe().unwrap();
    observer.next().await.unwrap();
    locks.close(SECOND).await.unwrap();
    let asked = store.requests();
    assert_eq!(observer.next().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::Closed);
    let ended: Result<()> = election.run("one", async |_| panic!("it is closed")).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.requests(), asked);
}

/// The calls that have failed, each with its lock.
#[derive(Clone, Debug, Default)]
struct FailedCalls(Arc<Mutex<Vec<String>>>);

impl LockLayer for FailedCalls {
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        Some(Arc::new(self.clone()))
    }
}

impl LockObserver for FailedCalls {
    fn observe(&self, _: &'static str, lock: Option<&LockKey>, event: LockEvent<'_>) {
        if let LockEvent::CallFailed { operation, .. } = event {
            self.0.lock().unwrap().push(format!("{operation} {:?}", lock.map(LockKey::name)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_has_a_limit_and_its_failure_is_told() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let failed = FailedCalls::default();
    let locks = Locks::builder(store.clone()).clock(clock).layer(failed.clone());
    let locks = locks.call_timeout(2 * SECOND).build().unwrap();
    let election = locks.election("x").unwrap();
    store.freeze();
    let begun = clock.now();
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_eq!(clock.now().since(begun), 2 * SECOND);
    assert_eq!(locks.health().await.unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_eq!(clock.now().since(begun), 4 * SECOND);
    assert_eq!(*failed.0.lock().unwrap(), [r#"look Some("x")"#, "ping None"]);
}

#[tokio::test(start_paused = true)]
async fn a_value_belongs_to_its_term() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let led = Arc::new(Mutex::new(BTreeMap::new()));
        let candidates: Vec<_> = (0..4)
            .map(|candidate| {
                let (election, led) = (election(&store, clock), Arc::clone(&led));
                tokio::spawn(async move {
                    for turn in 0..10 {
                        let value = format!("{candidate}, turn {turn}");
                        let leadership = election.campaign(&value).await.unwrap();
                        led.lock().unwrap().insert(leadership.term().unwrap().get(), value);
                        clock.sleep(37 * MS).await;
                        leadership.resign().await.unwrap();
                    }
                })
            })
            .collect();
        let election = election(&store, clock);
        let mut observer = election.look_every(MS).observe().unwrap();
        let (mut last, mut seen) = (0, 0);
        while candidates.iter().any(|candidate| !candidate.is_finished()) {
            if let Some(Observation::Leader(leader)) = told(&mut observer, SECOND).await {
                let term = leader.term.unwrap().get();
                assert!(term > last, "{term} after {last}");
                // It leads before its task knows.
                tokio::task::yield_now().await;
                clock.sleep(MS).await;
                assert_eq!(led.lock().unwrap().get(&term), leader.value.as_ref());
                (last, seen) = (term, seen + 1);
            }
        }
        assert!(seen >= 30, "{seen} of 40 terms");
    }
}

#[tokio::test]
async fn a_value_obeys_the_rules_of_a_label() {
    let locks = Locks::new(MemoryBackend::queued());
    let election = locks.election("x").unwrap();
    for bad in ["", "a\nb", &"v".repeat(513)] {
        let error = election.campaign(bad).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("x")));
        assert!(error.to_string().contains("value of a candidate"), "{error}");
    }
    let longest = "v".repeat(512);
    let leadership = election.campaign(&longest).await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().value, Some(longest));
    leadership.resign().await.unwrap();
    // A plain lock of this name, whose holder shows no name.
    let _guard = locks.named("x").unwrap().label("").acquire().await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().value, None);
    assert!(election.try_campaign("one").await.unwrap().is_none());
    assert_eq!(election.key().name(), "x");
}

/// Whatever the `Locks` says: of a cohort, a look shows the first fence only.
#[tokio::test]
async fn a_leader_is_no_cohort() {
    let locks = Locks::builder(MemoryBackend::queued()).cohort(8).build().unwrap();
    let election = locks.election("x").unwrap();
    let mut leadership = election.campaign("one").await.unwrap();
    for _ in 0..3 {
        let next = tokio::spawn({
            let election = election.clone();
            async move { election.campaign("one").await.unwrap() }
        });
        tokio::task::yield_now().await;
        leadership.resign().await.unwrap();
        leadership = next.await.unwrap();
        let leader = election.leader().await.unwrap().unwrap();
        assert_eq!(leader.term, Some(leadership.term().unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_lost_while_others_campaign_is_replaced() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let (ours, theirs) = (election(&store, clock), election(&store, clock));
        let first = ours.campaign("one").await.unwrap();
        let term = first.term().unwrap();
        let next = tokio::spawn(async move { theirs.campaign("two").await.unwrap() });
        clock.sleep(SECOND).await;
        store.lose_now("x");
        let second = next.await.unwrap();
        assert!(second.term().unwrap() > term);
        assert_eq!(first.lost().await, LostReason::Taken);
        let error = first.term().unwrap_err();
        assert_eq!(error.lost_reason(), Some(LostReason::Taken));
        assert_eq!(first.check().await.unwrap_err().lost_reason(), Some(LostReason::Taken));
        first.resign().await.unwrap_err();
        assert_eq!(second.check().await.unwrap(), LockState::Secure);
    }
}

/// On a store without a queue, who resigns would else find the lock free before anybody else looks.
#[tokio::test(start_paused = true)]
async fn who_resigns_again_and_again_gives_others_their_turn() {
    let both = |store: MemoryBackend| [(store.clone(), true), (store.stepwise(), false)];
    for (store, waits) in stores().into_iter().flat_map(both) {
        let (store, _, clock) = virtual_locks(store);
        let led = Arc::new(Mutex::new(Vec::new()));
        let candidates = ["one", "two"].map(|value| {
            let (election, led) = (election(&store, clock), Arc::clone(&led));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let leadership = election.campaign(value).await.unwrap();
                    led.lock().unwrap().push(value);
                    clock.sleep(10 * MS).await;
                    let polls = if waits { usize::MAX } else { 1 };
                    let resigned = dropped_after(polls, leadership.resign()).await;
                    assert_eq!(resigned.is_some(), waits);
                }
            })
        });
        for candidate in candidates {
            candidate.await.unwrap();
        }
        let led = led.lock().unwrap();
        assert!(led.windows(2).all(|turns| turns[0] != turns[1]), "{led:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stays_back_keeps_time_to_campaign() {
    let (store, _, clock) = virtual_locks(MemoryBackend::poll_only());
    let election = election(&store, clock);
    let again = async |limit| {
        election.campaign("one").await.unwrap().resign().await.unwrap();
        let begun = clock.now();
        drop(election.campaign_timeout("one", limit).await.unwrap());
        let after = clock.now().since(begun);
        clock.sleep(SECOND).await;
        after
    };
    assert_eq!(again(100 * MS).await, 50 * MS);
    assert_eq!(again(60 * SECOND).await, 250 * MS);
    election.campaign("one").await.unwrap().resign().await.unwrap();
    let begun = clock.now();
    drop(election.try_campaign("one").await.unwrap().unwrap());
    assert_eq!(clock.now(), begun);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_that_is_dropped_at_any_await_leaves_nothing() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store.stepwise());
        let (ours, theirs) = (election(&store, clock), election(&store, clock));
        let mut polls = 1;
        while dropped_after(polls, ours.campaign("one")).await.is_none() {
            clock.sleep(100 * MS).await;
            assert_eq!(theirs.leader().await.unwrap(), None, "dropped after {polls} polls");
            polls += 1;
        }
        assert!(polls > 2, "{polls} polls");
        let mut polls = 1;
        loop {
            let leadership = ours.campaign("one").await.unwrap();
            let resigned = dropped_after(polls, leadership.resign()).await;
            clock.sleep(SECOND).await;
            assert_eq!(theirs.leader().await.unwrap(), None, "dropped after {polls} polls");
            if resigned.is_some() {
                break;
            }
            polls += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_campaigns_again_after_a_loss_and_ends_with_its_body() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let election = election(&store, clock);
        let mut terms = Vec::new();
        let rounds = election
            .run("one", async |held| {
                terms.push(held.token().unwrap());
                match terms.len() {
                    1 => store.lose_now("x"),
                    // An outage that is longer than any ttl, and than a wait for a silent store.
                    2 => {
                        let store = store.clone();
                        store.freeze();
                        tokio::spawn(async move {
                            clock.sleep(300 * SECOND).await;
                            store.thaw();
                        });
                    }
                    rounds => return rounds,
                }
                std::future::pending().await
            })
            .await
            .unwrap();
        assert_eq!(rounds, 3);
        assert!(terms.is_sorted() && terms[0] < terms[1] && terms[1] < terms[2], "{terms:?}");
        assert_eq!(election.leader().await.unwrap(), None, "it has resigned");
    }
}

#[tokio::test(start_paused = true)]
async fn run_pauses_after_a_loss_and_longer_after_the_next() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let election = election(&store, clock);
    let (mut begun, mut lost_at) = (Vec::new(), Vec::new());
    election
        .run("one", async |_| {
            begun.push(clock.now());
            // The third one leads for longer than a ttl.
            clock.sleep(if begun.len() == 3 { 4 * SECOND } else { Duration::ZERO }).await;
            if begun.len() == 5 {
                return;
            }
            lost_at.push(clock.now());
            store.lose_now("x");
            std::future::pending().await
        })
        .await
        .unwrap();
    let pauses: Vec<_> =
        lost_at.iter().zip(&begun[1..]).map(|(lost, begun)| begun.since(*lost)).collect();
    for (pause, least) in pauses.iter().zip([250, 500, 250, 500]) {
        let least = least * MS;
        assert!(*pause >= least && *pause <= least * 3 / 2 + MS, "{pauses:?}");
    }
}

/// A body that hangs leads for `max_hold` at most, and then it is another one's turn.
#[tokio::test(start_paused = true)]
async fn run_leaves_the_lead_to_others_after_max_hold() {
    for store in stores() {
        let (store, _, clock) = virtual_locks(store);
        let hangs = election(&store, clock).max_hold(2 * SECOND);
        let task = tokio::spawn(async move {
            hangs.run("hangs", async |_| std::future::pending::<()>().await).await
        });
        clock.sleep(SECOND).await;
        let other = election(&store, clock).campaign_timeout("two", 2 * SECOND).await.unwrap();
        assert!(other.term().is_ok());
        task.abort();
    }
}

/// And a value that comes too late is none.
#[tokio::test]
async fn run_repeats_a_body_that_outlasts_its_leadership() {
    let clock = lock_core::testing::ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let locks = Locks::builder(store).clock(clock.clone()).build().unwrap();
    let election = locks.election("x").unwrap().ttl(SECOND);
    let moves = tokio::spawn({
        let clock = clock.clone();
        async move {
            loop {
                tokio::task::yield_now().await;
                clock.advance(10 * MS);
            }
        }
    });
    let mut rounds = 0;
    let value = election.run("one", async |_| {
        rounds += 1;
        if rounds == 1 {
            clock.advance(SECOND);
        }
        rounds
    });
    assert_eq!(value.await.unwrap(), 2);
    moves.abort();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_resigns() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let (ours, theirs) = (election(&store, clock), election(&store, clock));
    let run = ours.run("one", async |_| std::future::pending::<()>().await);
    tokio::time::timeout(SECOND, run).await.unwrap_err();
    clock.sleep(MS).await;
    assert!(theirs.try_campaign("two").await.unwrap().is_some());
}

/// Each call has a runtime of its own, and leaves a look behind in it.
#[test]
fn a_look_that_ended_with_its_runtime_is_made_again() {
    let slow = SlowStore { look: 20 * MS, ..SlowStore::of(MemoryBackend::queued()) };
    let locks = Locks::builder(slow).build().unwrap();
    let mut observer = locks.election("x").unwrap().observe().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let brief = runtime().block_on(async { tokio::time::timeout(MS, observer.next()).await });
    assert!(brief.is_err());
    let seen = runtime().block_on(observer.next()).unwrap();
    assert!(matches!(seen, Observation::Vacant { .. }), "{seen:?}");
}

/// The first runtime is there all the time, and nobody drives it.
#[test]
fn a_look_in_a_runtime_that_stands_still_is_made_again() {
    let slow = SlowStore { look: 20 * MS, ..SlowStore::of(MemoryBackend::queued()) };
    let locks = Locks::builder(slow).call_timeout(SECOND).build().unwrap();
    let mut observer = locks.election("x").unwrap().observe().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stands = runtime();
    let brief = stands.block_on(async { tokio::time::timeout(MS, observer.next()).await });
    assert!(brief.is_err());
    let within = async { tokio::time::timeout(15 * SECOND, observer.next()).await };
    let seen = runtime().block_on(within).expect("a look of its own").unwrap();
    assert!(matches!(seen, Observation::Vacant { .. }), "{seen:?}");
}
