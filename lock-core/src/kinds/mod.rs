//! Kinds of lock that are made of exclusive locks, and of looks at them. No store knows them, so every store
//! has them.

mod all;
mod attended;
mod calls;
mod election;
mod part;
#[cfg_attr(distlock_mutants, path = "../mutants/kinds.rs")]
pub(crate) mod rules;
mod rw_lock;
mod semaphore;
mod shared;
mod slots;
mod whole;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

pub use all::{HeldSet, LockSet, LockSetGuard, SetLostSignal};
pub use election::{Election, Leader, Leadership, Observation, Observer};
pub(crate) use part::LockPart;
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use whole::{HeldAs, WholeHold, WholeLock};

use crate::LockKey;
use crate::mutex::Mutex;

/// What the tasks of one process know of each other's locks of other kinds.
#[derive(Debug, Default)]
pub(crate) struct KindsInUse {
    semaphores: ByName<semaphore::PermitsInUse>,
    rw_locks: ByName<rw_lock::ReadersInUse>,
}

/// What the tasks share that use one name, for as long as one of them does.
#[derive(Debug, Default)]
struct ByName<T>(Mutex<HashMap<LockKey, Weak<T>>>);

impl<T: Default> ByName<T> {
    fn of(&self, key: &LockKey) -> Arc<T> {
        let mut names = self.0.lock();
        if let Some(users) = names.get(key).and_then(Weak::upgrade) {
            return users;
        }
        // Before it grows, names that nobody uses make room.
        if names.len() == names.capacity() {
            names.retain(|_, users| users.strong_count() > 0);
            let kept = names.len();
            names.reserve(kept.max(16));
        }
        let users = Arc::default();
        names.insert(key.clone(), Arc::downgrade(&users));
        users
    }
}

/// The settings of a lock of another kind, which are those of the exclusive locks that it is made of: `each` sets
/// them.
macro_rules! settings {
    ($kind:ident) => {
        impl $kind {
            fn each(mut self, set: impl Fn(Lock) -> Lock) -> Self {
                self.lock = set(self.lock);
                self
            }

            settings! {
                /// How long the store keeps it without a renewal: see [`Lock::ttl`](crate::Lock::ttl).
                ttl(ttl: Duration);
                /// For how long others are kept away after it was lost: see
                /// [`Lock::lock_delay`](crate::Lock::lock_delay).
                lock_delay(delay: Duration);
                /// The least time for which it is kept from others, counted from the grant: see
                /// [`Lock::min_hold`](crate::Lock::min_hold).
                min_hold(least: Duration);
                /// How often it is renewed while it is held: see
                /// [`Lock::renew_every`](crate::Lock::renew_every).
                renew_every(every: Duration);
                /// Turns off renewal while it is held: see [`Lock::no_renew`](crate::Lock::no_renew).
                no_renew();
                /// The longest time for which a guard may hold it: see
                /// [`Lock::max_hold`](crate::Lock::max_hold).
                max_hold(limit: Duration);
            }

            /// The holder's name as shown to people, up to 509 bytes: see
            /// [`Lock::label`](crate::Lock::label).
            pub fn label(self, label: impl AsRef<str>) -> Self {
                self.each(|lock| lock.label(&label))
            }

            /// The name with its prefix.
            pub fn key(&self) -> &crate::LockKey {
                self.lock.key()
            }
        }
    };
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty)?);)*) => {
        $($(#[$doc])*
        pub fn $name(self, $($value: $type)?) -> Self {
            self.each(|lock| lock.$name($($value)?))
        })*
    };
}

/// What a guard of another kind answers, as that of an exclusive lock does. `$guard` has a hold, `held`, and
/// `lock()`, the guard that keeps it.
macro_rules! guard {
    ($guard:ident) => {
        impl $guard {
            /// A view of this hold to pass around; it does not keep the lock.
            pub fn held(&self) -> &crate::Held {
                &self.held
            }

            /// Asks the store whether it is still held: see
            /// [`LockGuard::check`](crate::LockGuard::check).
            ///
            /// # Errors
            ///
            /// [`Lost`](crate::ErrorKind::Lost) if it is no longer held; any other error leaves that open.
            ///
            /// # Cancel safety
            ///
            /// Cancel-safe.
            pub async fn check(&self) -> crate::Result<crate::LockState> {
                self.lock().check().await.map_err(|error| error.renamed(self.held.key()))
            }

            /// Renews it now, in addition to the background renewals: see
            /// [`LockGuard::renew`](crate::LockGuard::renew).
            ///
            /// # Errors
            ///
            /// [`Lost`](crate::ErrorKind::Lost) if it is lost. After any other error it is held until
            /// [`valid_until`](crate::Held::valid_until), unless a later renewal succeeds.
            ///
            /// # Cancel safety
            ///
            /// If dropped, the renewal may or may not have happened.
            pub async fn renew(&self) -> crate::Result<crate::LockState> {
                self.lock().renew().await.map_err(|error| error.renamed(self.held.key()))
            }

            /// Keeps it from others until `least` after the grant, even if it is released sooner: see
            /// [`LockGuard::set_min_hold`](crate::LockGuard::set_min_hold).
            pub fn set_min_hold(&self, least: std::time::Duration) {
                self.held.keep_for(least);
            }

            /// Runs `body` under it, then releases it. If it is lost, the body is dropped at its next await.
            ///
            /// # Errors
            ///
            /// [`Lost`](crate::ErrorKind::Lost) if it was lost before the body ended. If it ended in time,
            /// its value is returned even if the release then fails; the failure is reported as a
            /// `tracing` event.
            ///
            /// # Cancel safety
            ///
            /// Dropping it drops the body, and releases it in the background.
            pub async fn run<T, F>(self, body: F) -> crate::Result<T>
            where
                F: AsyncFnOnce(crate::Held) -> T,
            {
                let (held, client) =
                    (self.held.clone(), std::sync::Arc::clone(self.lock().client()));
                crate::locks::run(&client, &held, body, self.release()).await
            }

            /// [`release`](Self::release) for a thread that runs no async code.
            ///
            /// # Errors
            ///
            /// As [`release`](Self::release), and [`NoAnswer`](crate::ErrorKind::NoAnswer) as
            /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
            pub fn release_blocking(self) -> crate::Result<crate::Released> {
                let client = std::sync::Arc::clone(self.lock().client());
                crate::blocking::wait(&client, self.release())
            }
        }

        impl std::ops::Deref for $guard {
            type Target = crate::Held;

            fn deref(&self) -> &crate::Held {
                &self.held
            }
        }
    };
}

pub(crate) use {guard, settings};
