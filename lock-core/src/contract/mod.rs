//! The contract between the core and a store.
//!
//! # The clauses
//!
//! The conformance suite has cases under each of these names.
//!
//! - **C1** Everything written carries the owner id: 128 random bits, new for every claim. Only
//!   attaching reuses one.
//! - **C2** `try_acquire` after an unknown outcome finds its own entry, never makes a second one,
//!   and returns the *same* token.
//! - **C3** A grant is proven by one atomic read or script that shows "mine exists" and "none is
//!   ahead". Two reads, each right when it was made, prove nothing together.
//! - **C4** `valid_for: Some(d)` promises that the store will not end this entry before *the start
//!   of this very call* + d. A backend that relies on an earlier request (a batch, a shared lease
//!   or session, a lease granted ahead) subtracts the time since that request was sent.
//!   `Granted { valid_for: None }` only where place and lock are one and the same lease; a grant by
//!   hand-over has its full TTL set first.
//! - **C5** `changed` is cancel-safe, may be spurious, and must not miss a change since the last
//!   look: arm, then check, then wait. Its error is not a loss; the core polls with back-off
//!   instead.
//! - **C6** `Lost` only if the server said so. After an error the state is unknown.
//! - **C7** `release` works after any failed call, twice, and never touches another owner's entry.
//! - **C8** The core makes one call of a claim at a time and lets it end; the legal sequences are
//!   below. It drops only `changed`, and the claim as a whole: when the `Locks` is closed, when the
//!   runtime ends, and after a call that did not end (C12). A claim that is dropped, with whatever
//!   call is running, sends nothing more, leaves no task behind, and spoils nothing that other claims
//!   use. What it has sent may still be carried out.
//! - **C9** Tokens (1 to 2⁶³ − 1) strictly rise per key, across holders, releases, expiries, crashes
//!   and restarts.
//! - **C10** No driver type crosses the boundary, except in constructors that take a client of the
//!   caller: `from_client`, `from_channel`, `from_connector` and `from_pool`.
//! - **C11** Distinct names never block each other; equal names always do. A name is 1 to 512 bytes
//!   of UTF-8 without control characters; a prefix is not counted and is encoded apart from the
//!   name, so that ("a", "bc") and ("ab", "c") differ. Each backend encodes injectively.
//! - **C12** A store ends each call of a claim within the request's `call_timeout`, by an answer or an
//!   error. One that overruns it by as long again, or by a second if that is longer, costs the claim:
//!   the core drops it, a hold ends by the clock, and a new claim of the same owner releases what the
//!   first one left.
//! - **C13** With `wait: false` a busy answer leaves no place behind. A waiter that gives up
//!   declines at once, also where the store has just handed it the lock: the next one gets it
//!   without waiting for a grace period to pass.
//! - **C14** A claim with `resume` trusts none of it, since it comes from a text that its bearer
//!   can edit. Its `renew` and `check` answer `Lost`, or an error that is not retryable, unless the
//!   store's own record shows this owner with exactly this fence; `renew` proves that in the same
//!   atomic statement that renews. The TTL is the request's, in addition to what was promised
//!   before: a store that cannot change the TTL of a hold refuses a different one. The bytes in
//!   `data` are checked before they name anything in the store, so nothing of another client is
//!   renewed or revoked. A claim that was refused leaves the true holder untouched, even when it is
//!   released afterwards.
//! - **C15** What an answer says besides its verdict ([`Busy::holder`], [`Busy::retry_after`])
//!   comes from this very answer of the store and costs no extra request, so a store may omit it.
//!   No decision is based on it.
//! - **C16** Where [`fence_block`](Capabilities::fence_block) is declared, a grant comes with as many
//!   tokens in a row as the request's [`fences`](ClaimRequest::fences): that of the answer, and those
//!   above it. All of them count as given, whether they are used or not, so the next hold's are above
//!   the last (C9). A repeated call finds the same block (C2), and inspection shows its first token.
//!   A claim with `resume` names a block by its first token and its `fences`. As C14 says of one token,
//!   it is refused if any of them is not of the recorded block. The core asks no other store for more
//!   than one.
//! - **C17** Only a release, by its owner or by force, ends an entry sooner. Any other request of its
//!   owner, be it a repeated `try_acquire` or a `renew` and whatever its TTL, sets the end to the later
//!   of two: the end that stands, and its own TTL from when it is carried out. The bearers of a lease
//!   token may use different TTLs, and requests arrive late: neither takes back what another call was
//!   promised (C4).
//! - **C18** Where [`look`](Capabilities::look) is declared, [`LockBackend::look`] answers for each name,
//!   in the order of the names, whether somebody has it, by which fence and label, and for a free one a
//!   floor: no earlier token of the name exceeds it, and every later one does. A store in which locks come
//!   and go all the time may be unable to tell a floor now and then. The answer for a name is
//!   linearizable: it shows every grant, release and end of a lease that the store had carried out before the
//!   look began, whoever's, and nothing that happened after it ended. A name counts as held from its grant,
//!   also where the store has handed it to a waiter that does not know it yet; a place in a queue behind
//!   another is no hold. An attempt that is under way may be shown as a hold, without a fence or with a lower
//!   one than it gets, which is above all earlier ones; the label may be missing until the holder knows of
//!   its grant. A look changes nothing, wakes nobody, and takes as many round trips for one name as for 64. The names need not be seen
//!   at one moment.
//!
//! # Cohorts
//!
//! What the core does with a block; a store need not know. The tasks of one process that wait for one
//! name may pass one claim on, each with the next token of its block and a guard of its own: see
//! [`Lock::cohort`](crate::Lock::cohort).
//!
//! - A hold is passed on when its guard is released or dropped, by a panic too, to the first task in
//!   the line of the process, if that has asked for the same TTL, renewals, `max_hold`, call timeout,
//!   label and cohort. A task that differs ends the cohort.
//! - A cohort ends after as many holders as were asked for, or 50 ms after the grant. Until then no
//!   task of the process asks the store for this name.
//! - A hold that is lost, or at risk, or about to end, or of which the store has pushed a change, is not
//!   passed on but released. Nor is one that was attached, or when the `Locks` is closing.
//! - Each holder's `max_hold` counts from when it got the lock; the lease is the claim's.
//! - A loss concerns the one who has the lock at that time. A release that passes it on answers `Freed`
//!   and does not ask the store.
//! - A detach ends the cohort. The lease token carries the fence of its guard, and any fence of the
//!   block attaches, but none outside of it.
//! - A task that gives up, or whose future is dropped, leaves the line; if the lock was passed to it at
//!   this moment, it goes to the next one, or back to the store.
//!
//! # Tolerances
//!
//! What the clauses leave open, and how far a store may go. The suite's cases derive their bounds
//! from this and from the [`Capabilities`].
//!
//! - **How long may a lease outlive its TTL?** By one `ttl_step`, counted from when the store
//!   carried out the last request that made or prolonged it. A store whose clock counts whole
//!   seconds, or which ends leases in a periodic sweep, declares that as its step. A hold bound to
//!   a session ends with the session.
//! - **How much less than the TTL may `valid_for` be?** The answer to an attempt or a renewal
//!   promises more than half of the TTL, less the time since the request was sent; otherwise it
//!   could not be renewed in time. A store with a coarse clock lets the lease last longer rather
//!   than promise less.
//! - **What does `DataLoss::Restart` mean?** After a restart any hold, place or fence may be gone,
//!   and the rest is still there. The store answers `Lost` for what is gone (C6). Tokens still rise
//!   if the fencing is `Durable`. A store that does not declare it keeps what it has acknowledged.
//!   The same goes for the other events.
//! - **May a store repeat a request on its own?** Yes, within one call and its `call_timeout`,
//!   where the repeated request finds what the first one did (C2). If one of them had no answer,
//!   and the last one does not settle what it did, the error has an unknown effect. `valid_for`
//!   counts from the start of the call in any case.
//! - **Is a hash injective?** A cryptographic one of 128 bits or more counts as injective (C11). A
//!   store that declares `inspect` keeps the name next to it.
//! - **Does `check` count as a look?** No, nor does `renew`: only an answered `try_acquire` is a
//!   look (C5). A change that was pushed before a check is still reported by the next `changed`.
//! - **Whose wall clock carries a fence?** The server's where it has one, otherwise that of the
//!   client that makes the first entry; but never a clock alone: a token is above the last one that
//!   the store knows, whatever any clock says (C9). A clock only keeps the tokens rising across a
//!   loss of data or a move to another store.
//! - **What limits `ping`, `look`, inspection and `close`?** They have no claim, so the core drops them
//!   after the [`call_timeout`](crate::LocksBuilder::call_timeout) of the `Locks`, or after 5 s;
//!   `close` has the time its caller allows, if that is longer.
//! - **How many requests may a claim make?** A few for each call; while `changed` waits, no more than
//!   keep the connection or the session alive, and one that finds its place in a long queue.
//! - **Who fills in the operation, lock and store of an error?** The core, where they are missing.
//!   A store names an operation only where it was a different one, such as connecting.
//!
//! # Legal call sequences
//!
//! A call begins when the one before it has ended (C8). Users' futures may be dropped anywhere, and have
//! deadlines of their own: then the core answers them, and lets the call go on.
//!
//! | state of the claim | calls that may follow | leads to |
//! |---|---|---|
//! | new | `try_acquire`, `release` | waiting, held, done |
//! | new, with `resume` | `renew`, `check`, `release` | held, lost, done |
//! | waiting: last answer `Busy`, `wait` set | `try_acquire`, `changed`, `renew`, `check`, `release` | waiting, held, done |
//! | refused: last answer `Busy`, `wait` not set | `try_acquire`, `release` | held, done |
//! | held: last answer `Granted`, or `Alive` after it | `try_acquire` (answers the same token), `renew`, `check`, `changed`, `detach`, `release` | held, lost, detached, done |
//! | place lost: `Lost` while waiting | `try_acquire`, `release` | waiting, held, done |
//! | lost: `Lost` while held | `release` | done |
//! | unknown: `try_acquire` failed | `try_acquire`, `changed`, `check`, `release` | as that call |
//! | `renew`, `check`, `detach` or `changed` failed | as before it | as before it |
//! | done: `release` has answered, or failed | `release` | done |
//! | detached | `release`, if `detach` had no receiver; if its answer came after its limit, as before it; else the claim is dropped | done; as before it |
//!
//! # Example
//!
//! `docs/writing-a-backend.md` in the repository has a complete small backend that passes the suite.

mod admin;
mod backend;
mod capabilities;
mod claim;
mod error;
mod fence;
mod key;
mod look;
mod rng;

pub use admin::{Finding, Severity};
pub use admin::{HolderInfo, HolderMark};
pub use admin::{LockAdmin, LockInfo, Victim};
pub use backend::LockBackend;
pub use backend::LockLayer;
pub use capabilities::Feature;
pub use capabilities::{Binding, Capabilities, DataLoss, Fencing, Wake};
pub use claim::Claim;
pub use claim::{Attempt, Busy, Released, Renewal};
pub use claim::{ClaimRequest, Resume};
pub use error::LostReason;
pub use error::{Effect, Error, ErrorKind, Operation, Result};
pub(crate) use fence::Fences;
pub use fence::{FenceCheck, FencingToken};
pub use key::LockKey;
pub use key::OwnerId;
pub(crate) use key::check_part;
pub use look::Seen;
pub use rng::{OsRng, Rng, jitter};
