//! Waking this client's waiters when the store pushes.
//!
//! A store's push code finds the waiters of a name and permits one or all of them to look. A permit
//! is kept until its waiter asks for it, so nothing between a look and the next wait is missed
//! (clause C5). If a waiter leaves before it has looked, its permit goes to the next one. The
//! store's rule says which that is.
//!
//! ```
//! use lock_kit::wake::{Waiters, first_that_listens};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let waiters = Waiters::<String>::new(|_, slots| first_that_listens(slots));
//! let (ours, theirs) = (waiters.register("a".to_owned(), ()), waiters.register("a".to_owned(), ()));
//! // A push says that "a" is free while neither is listening: both look.
//! waiters.permit("a");
//! ours.woken().await;
//! let look = ours.look(); // and ask the store …
//! look.done();
//! drop(theirs);
//! # }
//! ```

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The waiters of one client by the name `K` that their pushes carry, in the order of their
/// arrival. `T` is what the store's rules need to know about each. Clones share them.
pub struct Waiters<K, T = ()>(Arc<Registry<K, T>>);

/// Decides which waiters of a name get a permit that is meant for one.
type PermitRule<K, T> = dyn Fn(&K, &[Arc<Slot<T>>]) + Send + Sync;

struct Registry<K, T> {
    by_name: Mutex<HashMap<K, Vec<Arc<Slot<T>>>>>,
    rule: Box<PermitRule<K, T>>,
}

/// What wakes one waiter.
#[derive(Debug)]
pub struct Slot<T = ()> {
    data: T,
    /// A push that [`Waiter::woken`] has not reported yet.
    is_pending: AtomicBool,
    /// A permit that has not been followed by a look yet.
    is_owed: AtomicBool,
    /// How many calls of [`Waiter::woken`] are waiting now.
    listening: AtomicUsize,
    notify: Notify,
}

impl<T> Slot<T> {
    /// What the store knows about this waiter.
    pub fn data(&self) -> &T {
        &self.data
    }

    /// Whether the waiter is waiting now, rather than between two looks.
    fn is_listening(&self) -> bool {
        self.listening.load(SeqCst) > 0
    }

    /// Wakes the waiter, now or when it next listens.
    pub fn wake(&self) {
        self.is_pending.store(true, SeqCst);
        self.notify.notify_one();
    }

    /// Wakes the waiter to look on behalf of the others with its name. For use in the rule of
    /// [`Waiters::new`], where no waiter can leave.
    pub fn permit(&self) {
        self.is_owed.store(true, SeqCst);
        self.wake();
    }
}

/// A rule: the first listening waiter looks. If none is listening, all are between two looks, and
/// all look again. False if there is no waiter.
pub fn first_that_listens<'a, T: 'a>(
    slots: impl IntoIterator<Item = &'a Arc<Slot<T>>, IntoIter: Clone>,
) -> bool {
    let mut slots = slots.into_iter();
    if let Some(slot) = slots.clone().find(|slot| slot.is_listening()) {
        slot.permit();
        return true;
    }
    let any = slots.clone().next().is_some();
    slots.by_ref().for_each(|slot| slot.permit());
    any
}

impl<K: Clone + Eq + Hash, T> Waiters<K, T> {
    /// `rule` gives a permit for this name to one of its waiters, or to none. It must not use these
    /// waiters in any other way.
    pub fn new<R>(rule: impl Fn(&K, &[Arc<Slot<T>>]) -> R + Send + Sync + 'static) -> Self {
        let rule = Box::new(move |name: &K, slots: &[Arc<Slot<T>>]| drop(rule(name, slots)));
        Self(Arc::new(Registry { by_name: Mutex::default(), rule }))
    }

    /// Registers a waiter for pushes with this name, until the value is dropped.
    pub fn register(&self, name: K, data: T) -> Waiter<K, T> {
        let slot = Arc::new(Slot {
            data,
            is_pending: AtomicBool::new(false),
            is_owed: AtomicBool::new(false),
            listening: AtomicUsize::new(0),
            notify: Notify::new(),
        });
        self.0.by_name.lock().entry(name.clone()).or_default().push(Arc::clone(&slot));
        Waiter { waiters: self.clone(), name, slot }
    }

    /// Gives a permit for this name, by the rule: the lock may be free, and one look is enough.
    pub fn permit<Q>(&self, name: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let by_name = self.0.by_name.lock();
        match by_name.get_key_value(name) {
            Some((name, slots)) => (self.0.rule)(name, slots),
            None => (self.0.rule)(&name.to_owned(), &[]),
        }
    }

    /// Does something for each waiter of this name, such as [`Slot::wake`].
    pub fn each<Q>(&self, name: &Q, act: impl FnMut(&Arc<Slot<T>>))
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.by_name.lock().get(name).into_iter().flatten().for_each(act);
    }

    /// Does something for each waiter of every name, for when pushes have been lost because nothing
    /// was listening.
    pub fn all(&self, mut act: impl FnMut(&K, &Arc<Slot<T>>)) {
        for (name, slots) in self.0.by_name.lock().iter() {
            slots.iter().for_each(|slot| act(name, slot));
        }
    }
}

/// One waiter. On drop it leaves, and an unused permit passes to the next waiter.
pub struct Waiter<K: Clone + Eq + Hash, T = ()> {
    waiters: Waiters<K, T>,
    name: K,
    slot: Arc<Slot<T>>,
}

impl<K: Clone + Eq + Hash, T> Waiter<K, T> {
    /// What wakes this waiter, for push code that knows it without its name.
    pub fn slot(&self) -> &Arc<Slot<T>> {
        &self.slot
    }

    /// What the store knows about this waiter.
    pub fn data(&self) -> &T {
        &self.slot.data
    }

    /// Ready when there has been a push since this was last ready, or since the last look began.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: no push is lost.
    pub async fn woken(&self) {
        let _listening = ListeningCount::new(&self.slot.listening);
        // The permit of `notify` is kept, so nothing is missed between the check and the wait.
        while !self.slot.is_pending.swap(false, SeqCst) {
            self.slot.notify.notified().await;
        }
    }

    /// Begins a look: the store is about to be asked, and its answer covers all earlier pushes. If
    /// dropped without [`done`](Look::done), the look does not count.
    pub fn look(&self) -> Look<'_, T> {
        self.slot.is_pending.store(false, SeqCst);
        Look { slot: &self.slot, is_owed: self.slot.is_owed.swap(false, SeqCst) }
    }

    /// Forgets what was pushed, permits included: it was about the lock before it became ours.
    pub fn forget(&self) {
        self.slot.is_owed.store(false, SeqCst);
        self.slot.is_pending.store(false, SeqCst);
    }

    /// Whether `wanted` holds for another waiter of the same name.
    pub fn any_other(&self, mut wanted: impl FnMut(&T) -> bool) -> bool {
        let by_name = self.waiters.0.by_name.lock();
        let mut slots = by_name.get(&self.name).into_iter().flatten();
        slots.any(|slot| !Arc::ptr_eq(slot, &self.slot) && wanted(&slot.data))
    }

    /// Passes an unused permit to the next waiter, by the rule, since this one no longer waits. The
    /// rule may have to skip this one.
    pub fn hand_on(&self) {
        if self.slot.is_owed.swap(false, SeqCst) {
            self.waiters.permit(&self.name);
        }
    }
}

impl<K: Clone + Eq + Hash, T> Drop for Waiter<K, T> {
    fn drop(&mut self) {
        let mut by_name = self.waiters.0.by_name.lock();
        if let Some(slots) = by_name.get_mut(&self.name) {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if slots.is_empty() {
                by_name.remove(&self.name);
            }
        }
        drop(by_name);
        self.hand_on();
    }
}

/// A look in progress.
#[derive(Debug)]
#[must_use = "a look that is dropped does not count"]
pub struct Look<'a, T = ()> {
    slot: &'a Slot<T>,
    is_owed: bool,
}

impl<T> Look<'_, T> {
    /// The store has answered: the permit is used.
    pub fn done(mut self) {
        self.is_owed = false;
    }
}

impl<T> Drop for Look<'_, T> {
    fn drop(&mut self) {
        if self.is_owed {
            self.slot.is_owed.store(true, SeqCst);
        }
    }
}

struct ListeningCount<'a>(&'a AtomicUsize);

impl<'a> ListeningCount<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for ListeningCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl<K, T> Clone for Waiters<K, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Omits the names, which may be owners.
impl<K, T> fmt::Debug for Waiters<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("names", &self.0.by_name.lock().len())
            .finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash, T: fmt::Debug> fmt::Debug for Waiter<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.slot).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll};

    use super::*;

    fn waiters() -> Waiters<String> {
        Waiters::new(|_, slots| first_that_listens(slots))
    }

    /// Whether the waiter has been woken by now.
    fn is_woken<T>(waiter: &Waiter<String, T>) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        matches!(pin!(waiter.woken()).poll(&mut cx), Poll::Ready(()))
    }

    #[test]
    fn a_push_is_kept_until_somebody_listens_and_wakes_once() {
        let waiters = waiters();
        let waiter = waiters.register("a".to_owned(), ());
        waiters.each("b", |slot| slot.wake());
        assert!(!is_woken(&waiter));
        waiters.each("a", |slot| slot.wake());
        assert!(is_woken(&waiter) && !is_woken(&waiter));
        waiters.all(|_, slot| slot.wake());
        assert!(is_woken(&waiter));
        waiters.all(|_, slot| slot.wake());
        waiter.look().done();
        assert!(!is_woken(&waiter), "the look has covered it");
    }

    #[tokio::test]
    async fn one_that_listens_gets_the_permit_alone() {
        let waiters = waiters();
        let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
        let (heard, ()) = tokio::join!(
            async {
                second.woken().await;
                true
            },
            async { waiters.permit("a") }
        );
        assert!(heard && !is_woken(&first));
    }

    #[test]
    fn if_none_listens_all_of_them_look() {
        let waiters = waiters();
        let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
        assert!(!is_woken(&first), "it has listened, and does so no more");
        waiters.permit("a");
        assert!(is_woken(&first) && is_woken(&second));
    }

    #[test]
    fn a_permit_without_a_look_goes_to_the_next() {
        let waiters = waiters();
        let [first, second, third] = [(); 3].map(|()| waiters.register("a".to_owned(), ()));
        first.slot().permit();
        assert!(is_woken(&first));
        drop(first.look());
        drop(first);
        assert!(is_woken(&second), "its look was not made");
        second.look().done();
        third.look().done();
        drop(second);
        assert!(!is_woken(&third), "its look was made");
    }

    #[test]
    fn what_is_forgotten_is_not_handed_on() {
        let waiters = waiters();
        let [first, second] = [(); 2].map(|()| waiters.register("a".to_owned(), ()));
        first.slot().permit();
        first.forget();
        assert!(!is_woken(&first));
        drop(first);
        assert!(!is_woken(&second));
    }

    #[test]
    fn the_rule_decides_and_hears_of_a_name_without_waiters() {
        let (unwanted, told) = std::sync::mpsc::channel();
        let waiters = Waiters::<String, u32>::new(move |name, slots| {
            match slots.iter().min_by_key(|slot| *slot.data()) {
                Some(slot) => slot.permit(),
                None => unwanted.send(name.clone()).unwrap(),
            }
        });
        let (late, early) =
            (waiters.register("a".to_owned(), 9), waiters.register("a".to_owned(), 3));
        assert!(late.any_other(|rank| *rank == 3) && !early.any_other(|rank| *rank == 3));
        waiters.permit("a");
        assert!(is_woken(&early) && !is_woken(&late));
        drop(early);
        assert!(is_woken(&late));
        drop(late);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["a"], "no waiter is left for the permit");
        assert!(waiters.0.by_name.lock().is_empty());
    }
}
