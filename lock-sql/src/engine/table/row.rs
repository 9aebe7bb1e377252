//! Our row in the table, as a claim knows it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::Duration;

use lock_core::{Error, FencingToken, HolderInfo, HolderMark, Result, Seen};

use crate::engine::waiters::NotifiedClaim;
use crate::engine::wire::statement::{Row, Values, from_micros, nullable};

/// What a claim writes into its row, in the form bound to statements.
#[derive(Debug)]
pub(crate) struct OwnRow {
    /// [`LockKey::encode`](lock_core::LockKey::encode), which is injective (clause C11).
    pub(crate) name: String,
    pub(crate) owner: OwnerSecret,
    pub(crate) ttl: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) label: Option<String>,
    /// How many fences a grant comes with, besides the first. The row has the last of them.
    pub(crate) more: u32,
    /// The last fence of the hold that this claim says it takes over. The row has the last word: statements that
    /// renew, check or release compare it there (clause C14).
    pub(crate) taken_over: Option<FencingToken>,
    /// Gets the pushes for this claim; see `Dialect::listen`.
    pub(crate) waiter: Option<NotifiedClaim>,
}

impl OwnRow {
    pub(crate) fn values(&self, fence: Option<FencingToken>) -> Values<'_> {
        Values::default()
            .with("name", &*self.name)
            .with("owner", &*self.owner.0)
            .with("ttl", self.ttl)
            .with("label", nullable(self.label_in_row()))
            .with("more", i64::from(self.more))
            .with("fence", fence)
    }

    /// The label, and before it the number of fences if it is more than one: a label has no control
    /// characters, so it cannot read as one with a number.
    fn label_in_row(&self) -> Option<Cow<'_, str>> {
        let label = self.label.as_deref();
        match self.more {
            0 => label.map(Cow::Borrowed),
            more => Some(format!("{}{SEPARATOR}{}", more + 1, label.unwrap_or("")).into()),
        }
    }

    /// The fence in the row of a hold that has this one first.
    ///
    /// # Errors
    ///
    /// If there is none so great.
    pub(crate) fn last(first: FencingToken, more: u32) -> Result<FencingToken> {
        FencingToken::new(first.get() + u64::from(more)).map_err(|_| {
            Error::invalid(format!("this lease token was edited: no hold has a fence like {first}"))
        })
    }

    /// The first fence of a hold of ours that has this one in its row.
    pub(crate) fn first(&self, last: i64) -> Result<FencingToken> {
        FencingToken::answered(last.saturating_sub(self.more.into()))
    }
}

/// Between the number of fences and the label, and between the fence and the owner in a mark.
const SEPARATOR: char = '\u{1f}';

/// The owner id in hexadecimal. Anyone who knows it can release the lock, so it is never printed.
pub(crate) struct OwnerSecret(pub(crate) String);

impl Debug for OwnerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// A lease to renew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueRenewal<'a> {
    pub(crate) entry: &'a OwnRow,
    /// The token of the hold, where it is known.
    pub(crate) fence: Option<FencingToken>,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalOutcome {
    /// Our hold, which lasts for a whole ttl again.
    Renewed,
    /// No such hold.
    Gone,
    /// A row that another client has locked at the moment, or that its batch has renewed for another hold. It
    /// is retried.
    Locked,
    /// Only a statement of its own can tell, which waits for the row, and must not keep the others of its
    /// batch waiting.
    Doubtful,
}

/// What a row says.
#[derive(Debug)]
pub(crate) struct LeaseRow {
    /// The stored name; `None` for one that no lock can have.
    pub(crate) name: Option<String>,
    pub(crate) owner: Option<String>,
    /// The last fence of the hold, and how many it has besides.
    pub(crate) fence: i64,
    pub(crate) more: u32,
    pub(crate) state: LeaseState,
    /// Time since the start of the hold, where known.
    pub(crate) held: Option<Duration>,
    pub(crate) label: Option<String>,
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    Runs(Duration),
    Over,
    /// It runs on another clock, which cannot be read here.
    Elsewhere(String),
}

impl LeaseRow {
    /// From a row of `Look` or `List`.
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Self::read_from(row, 0)
    }

    /// From a row of `Acquire`, where that shows more than its number.
    pub(crate) fn after_number(row: &Row) -> Result<Option<Self>> {
        (row.0.len() > 1).then(|| Self::read_from(row, 1)).transpose()
    }

    /// `first`: the first of the columns.
    fn read_from(row: &Row, first: usize) -> Result<Self> {
        let state = match row.optional_int(first + 3)? {
            Some(left @ 1..) => LeaseState::Runs(from_micros(left)),
            Some(_) => LeaseState::Over,
            None => LeaseState::Elsewhere(row.text(first + 6)?.to_owned()),
        };
        let (more, label) = split(row.optional_text(first + 5)?);
        Ok(Self {
            name: row.text(first).ok().map(str::to_owned),
            owner: row.optional_text(first + 1)?.map(str::to_owned),
            fence: row.int(first + 2)?,
            more,
            state,
            held: row.optional_int(first + 4)?.map(from_micros),
            label,
        })
    }

    /// Whether somebody else has it, or had it.
    pub(crate) fn is_of_another(&self, owner: &str) -> bool {
        self.owner.as_deref().is_some_and(|other| other != owner)
    }

    /// For people; `None` where nobody holds it.
    pub(crate) fn holder(self) -> Option<HolderInfo> {
        let owner = self.owner?;
        let mut holder =
            HolderInfo::new(HolderMark::new(format!("{}{SEPARATOR}{owner}", self.fence)));
        holder.owner = owner.parse().ok();
        match self.state {
            LeaseState::Over => return None,
            LeaseState::Runs(left) => holder.expires_in = Some(left),
            LeaseState::Elsewhere(_) => {}
        }
        holder.held_for = self.held;
        let first = self.fence.saturating_sub(self.more.into());
        holder.fence = FencingToken::answered(first).ok();
        holder.label = self.label;
        Some(holder)
    }

    /// What a look shows of it (clause C18). The fence of a free one is its last, and the next one is greater.
    pub(crate) fn seen(self) -> Seen {
        let last = self.fence;
        match self.holder() {
            Some(HolderInfo { fence, label, .. }) => Seen::Held { fence, label },
            None => Seen::Free { floor: FencingToken::answered(last).ok() },
        }
    }

    /// The owner and the fence in a row that was shown with this mark. Both, since the owner of
    /// another program's row can be anything, and the same again.
    pub(crate) fn marked(mark: &HolderMark) -> Option<(&str, i64)> {
        let (fence, owner) = std::str::from_utf8(mark.as_bytes()).ok()?.split_once(SEPARATOR)?;
        Some((owner, fence.parse().ok()?))
    }

    /// How long the lease of this very hold lasts.
    pub(crate) fn left_of(&self, owner: &str, fence: Option<FencingToken>) -> Option<Duration> {
        let mine = self.owner.as_deref() == Some(owner)
            && fence.is_none_or(|fence| fence.as_i64() == self.fence);
        match self.state {
            LeaseState::Runs(left) if mine => Some(left),
            _ => None,
        }
    }
}

/// How many fences there are besides the last one, and the label.
fn split(label: Option<&str>) -> (u32, Option<String>) {
    let Some(label) = label else { return (0, None) };
    match label.split_once(SEPARATOR) {
        Some((fences, label)) => {
            let fences: u32 = fences.parse().unwrap_or(1);
            (fences.saturating_sub(1), (!label.is_empty()).then(|| label.to_owned()))
        }
        None => (0, Some(label.to_owned())),
    }
}
