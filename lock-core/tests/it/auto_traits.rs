//! What the API's types promise to the compiler. A broken promise does not build.

use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};

use lock_core::kinds::{
    Election, HeldSet, Leader, Leadership, LockSet, LockSetGuard, Observation, Observer, Permit,
    ReadGuard, RwLock, Semaphore, SetLostSignal, WriteGuard,
};
use lock_core::testing::{ManualClock, MemoryBackend, TokioClock};
use lock_core::{
    Capabilities, ClockInstant, DetachError, Effect, Error, ErrorKind, Feature, FenceCheck,
    FencingToken, Health, Held, HolderInfo, HolderMark, LeaseToken, Lock, LockGuard, LockInfo,
    LockKey, LockState, Locks, LocksBuilder, LostReason, LostSignal, Operation, OwnerId, Released,
    RenewedLease, SystemClock,
};

const fn everywhere<T: Send + Sync + Unpin + 'static>() {}
const fn through_a_panic<T: UnwindSafe + RefUnwindSafe>() {}
const fn copied<T: Copy>() {}
const fn cloned<T: Clone>() {}
fn sent<T: Send>(_: &T) {}

macro_rules! promise {
    ($check:ident: $($type:ty),+ $(,)?) => { const _: () = { $($check::<$type>();)+ }; };
}

promise!(everywhere: Locks, LocksBuilder, Lock, LockGuard, Held, LostSignal, LeaseToken, DetachError);
promise!(everywhere: Error, ErrorKind, Effect, Operation, LockState, LostReason, Feature, Health);
promise!(everywhere: LockKey, OwnerId, FencingToken, FenceCheck, RenewedLease, Released);
promise!(everywhere: LockInfo, HolderInfo, HolderMark, Capabilities, ClockInstant);
promise!(everywhere: SystemClock, ManualClock, TokioClock, MemoryBackend);
promise!(everywhere: LockSet, LockSetGuard, HeldSet, SetLostSignal);
promise!(everywhere: Election, Leadership, Leader, Observation, Observer);
promise!(everywhere: Semaphore, Permit, RwLock, ReadGuard, WriteGuard);
promise!(through_a_panic: Semaphore, Permit, RwLock, ReadGuard, WriteGuard);
promise!(cloned: Semaphore, RwLock);
promise!(through_a_panic: LockSet, LockSetGuard, HeldSet, SetLostSignal);
promise!(through_a_panic: Election, Leadership, Leader, Observation, Observer);
promise!(through_a_panic: Locks, Lock, LockGuard, Held, LostSignal, LeaseToken, SystemClock, ManualClock);
promise!(through_a_panic: LockKey, OwnerId, FencingToken, FenceCheck, LockState, LostReason);
promise!(through_a_panic: ErrorKind, Effect, Operation, Capabilities, LockInfo, RenewedLease);
promise!(cloned: LockSet, HeldSet, SetLostSignal, Election, Leader, Observation);
promise!(cloned: Locks, Lock, Held, LostSignal, LeaseToken, Error, LockKey, Capabilities);
promise!(copied: LockState, LostReason, ErrorKind, Effect, FencingToken, OwnerId, RenewedLease);

/// The futures of the API can be spawned.
fn futures(locks: &Locks, lock: &Lock, token: &LeaseToken, guards: [LockGuard; 3]) {
    sent(&lock.acquire());
    sent(&lock.try_acquire());
    sent(&lock.acquire_timeout(std::time::Duration::ZERO));
    sent(&lock.attach(token));
    sent(&lock.renew(token));
    sent(&lock.release(token.clone()));
    sent(&locks.inspect("a"));
    sent(&locks.list("a"));
    sent(&locks.health());
    sent(&locks.close(std::time::Duration::ZERO));
    let [release, detach, renew] = guards;
    sent(&renew.renew());
    sent(&renew.check());
    sent(&renew.lost().into_future());
    sent(&release.release());
    sent(&detach.detach());
    fn is_future<T>(_: &impl Future<Output = T>) {}
    is_future(&lock.run(async |_| ()));
}

fn futures_of_kinds(
    (set, election): (&LockSet, &Election),
    (guard, other): (LockSetGuard, LockSetGuard),
    (leadership, mut observer): (Leadership, Observer),
) {
    sent(&set.acquire());
    sent(&set.try_acquire());
    sent(&set.acquire_timeout(std::time::Duration::ZERO));
    sent(&other.renew());
    sent(&other.check());
    sent(&other.lost().into_future());
    sent(&guard.release());
    sent(&election.campaign("a"));
    sent(&election.try_campaign("a"));
    sent(&election.leader());
    sent(&observer.next());
    sent(&leadership.resign());
}

fn futures_of_shared_kinds(
    (semaphore, rw_lock): (&Semaphore, &RwLock),
    (permit, read, write): (Permit, ReadGuard, WriteGuard),
) {
    sent(&semaphore.acquire());
    sent(&semaphore.try_acquire());
    sent(&rw_lock.read());
    sent(&rw_lock.write());
    sent(&permit.check());
    sent(&read.renew());
    sent(&permit.release());
    sent(&read.release());
    sent(&write.release());
}

#[test]
fn the_promises_were_built() {
    let _: fn(&Locks, &Lock, &LeaseToken, [LockGuard; 3]) = futures;
    let _ = futures_of_kinds;
    let _ = futures_of_shared_kinds;
}
