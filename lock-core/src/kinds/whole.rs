//! Locks of any kind, as people see them: put together from the exclusive locks that they are made of.

use std::collections::BTreeMap;

use super::calls::{all, without_mark};
use super::part::LockPart;
use super::rules;
use crate::{ErrorKind, HolderInfo, LockAdmin, LockInfo, LockKey, Locks, Operation, Result, Seen};

/// Who has what under one name, whatever kinds of lock it is used for: an exclusive lock, which may be an
/// election, permits, readers and writers. From [`Locks::inspect_whole`], or from a [list](Self::group).
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{kinds::{HeldAs, WholeLock}, Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let gpus = locks.semaphore("gpu", 2)?;
/// let _both = (gpus.acquire().await?, gpus.acquire().await?);
/// let whole = locks.inspect_whole("gpu").await?;
/// let held_as: Vec<_> = whole.holds.iter().map(|hold| hold.held_as).collect();
/// assert_eq!(held_as, [HeldAs::Permit(0), HeldAs::Permit(1)]);
/// assert_eq!(WholeLock::group(locks.list("").await?).len(), 1, "it is made of several locks");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WholeLock {
    /// The name.
    pub key: LockKey,
    /// Who has which part of it: the exclusive lock, permits by number, readers, a writer. How many permits
    /// there are is not known: every client brings its own number.
    pub holds: Vec<WholeHold>,
    /// How many wait for it; `None` where the store does not know its waiters.
    pub waiters: Option<usize>,
}

/// One of those who have a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WholeHold {
    /// What it has.
    pub held_as: HeldAs,
    /// The exclusive lock that is behind it, which a [forced release](Locks::force_release) has to name.
    pub part: LockKey,
    /// Who it is, by the label with which it asked.
    pub holder: HolderInfo,
}

/// What a holder has of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HeldAs {
    /// All of it: the lock of exactly this name. The leader of an election has it, too: its value is the
    /// label, and its term the fence.
    Exclusive,
    /// The permit with this number.
    Permit(u32),
    /// It reads, with all tasks of its process, or is about to.
    Reader,
    /// It writes. Beside readers, it waits for them, and is the next one.
    Writer,
}

impl WholeLock {
    fn new(key: LockKey) -> Self {
        Self { key, holds: Vec::new(), waiters: None }
    }

    /// Puts the locks of a [list](Locks::list) together, ordered by name. What the list does not show, since it
    /// begins in the midst of a name, is missing.
    pub fn group(listed: impl IntoIterator<Item = LockInfo>) -> Vec<Self> {
        let mut wholes = BTreeMap::new();
        for info in listed {
            let part = LockPart::parse(info.key.name());
            let (name, part) = part.map_or((None, None), |(name, part)| (Some(name), Some(part)));
            // The name of a whole is a part of one that was valid.
            let key = name.and_then(|name| info.key.sibling(name).ok());
            let key = key.unwrap_or_else(|| info.key.clone());
            wholes.entry(key.clone()).or_insert_with(|| Self::new(key)).add(part, info);
        }
        let mut wholes: Vec<_> = wholes.into_values().collect();
        wholes.iter_mut().for_each(|whole| whole.holds.sort_by_key(|hold| hold.held_as));
        wholes
    }

    fn add(&mut self, part: Option<LockPart>, info: LockInfo) {
        let LockInfo { key: part_key, holder, waiters } = info;
        let waiters = waiters.map(|waiters| match part {
            // Whoever waits for one of these is known from elsewhere: it has the turnstile, or the gate.
            Some(LockPart::Permit(_) | LockPart::Slot(_)) => 0,
            // The first one who waits has it.
            Some(LockPart::Turnstile) => waiters + usize::from(holder.is_some()),
            Some(LockPart::Gate) | None => waiters,
        });
        self.waiters = waiters.map(|more| self.waiters.unwrap_or(0) + more).or(self.waiters);
        let Some(mut holder) = holder else { return };
        let reads = holder.label.as_deref().is_some_and(rules::passes);
        if part == Some(LockPart::Gate) {
            holder = without_mark(holder);
        }
        let held_as = match part {
            None => HeldAs::Exclusive,
            Some(LockPart::Permit(number)) => HeldAs::Permit(number),
            Some(LockPart::Slot(_)) => HeldAs::Reader,
            Some(LockPart::Gate) if reads => HeldAs::Reader,
            Some(LockPart::Gate) => HeldAs::Writer,
            Some(LockPart::Turnstile) => return,
        };
        self.holds.push(WholeHold { held_as, part: part_key, holder });
    }
}

/// How many locks are inspected at a time.
const AT_A_TIME: usize = 16;

impl Locks {
    /// Who has what under this name, whatever kinds of lock it is used for: one look at all parts that there
    /// may be, and an inspection of each that is held. The answer is out of date by the time it arrives, and
    /// its pieces may be from different moments: show it, but do not base decisions on it. With rights to this name
    /// alone, and not to those that begin with it, it shows the exclusive lock only.
    ///
    /// ```
    /// # use lock_core::{Locks, kinds::HeldAs, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let _reading = locks.rw_lock("prices")?.label("report").read().await?;
    /// let whole = locks.inspect_whole("prices").await?;
    /// let [reader] = &whole.holds[..] else { panic!("somebody else uses it") };
    /// assert_eq!((reader.held_as, reader.holder.label.as_deref()), (HeldAs::Reader, Some("report")));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn inspect_whole(&self, name: impl AsRef<str>) -> Result<WholeLock> {
        let key = self.key(name)?;
        let admin = self.admin()?;
        let mut found = self.inspect_each(admin, std::slice::from_ref(&key)).await?;
        let parts = LockPart::all_of(&key);
        if self.capabilities().look {
            let seen = match self.0.look(&parts).await {
                // Rights to this very name are enough for a lock of one holder.
                Err(error) if error.kind() == ErrorKind::Denied => Vec::new(),
                seen => seen?,
            };
            let is_held = |seen: &Seen| matches!(seen, Seen::Held { .. });
            let held = parts.into_iter().zip(seen).filter(|(_, seen)| is_held(seen));
            let held: Vec<_> = held.map(|(part, _)| part).collect();
            found.extend(self.inspect_each(admin, &held).await?);
        } else if !parts.is_empty() {
            let listed = self.list(&LockPart::start_of_all(&key)).await?;
            found.extend(listed.into_iter().filter(|info| parts.contains(&info.key)));
        }
        Ok(WholeLock::group(found).pop().unwrap_or_else(|| WholeLock::new(key)))
    }

    async fn inspect_each(&self, admin: &dyn LockAdmin, keys: &[LockKey]) -> Result<Vec<LockInfo>> {
        let mut found = Vec::new();
        for keys in keys.chunks(AT_A_TIME) {
            let limit = self.0.call_limit();
            let inspect = |key| self.0.within(limit, Operation::Inspect, admin.inspect(key));
            for info in all(keys.iter().map(inspect), |_| false).await {
                found.extend(info?);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnerId;

    fn info(name: &str, label: Option<&str>, waiters: Option<usize>) -> LockInfo {
        let holder = label.map(|label| {
            let mut holder = HolderInfo::new(OwnerId::from_bytes([1; 16]));
            holder.label = (!label.is_empty()).then(|| label.to_owned());
            holder
        });
        LockInfo::new(LockKey::new("shop", name).unwrap(), holder, waiters)
    }

    fn shown(whole: &WholeLock) -> Vec<(HeldAs, &str)> {
        let holds = whole.holds.iter();
        holds.map(|hold| (hold.held_as, hold.holder.label.as_deref().unwrap_or("-"))).collect()
    }

    #[test]
    fn parts_are_shown_as_one_under_their_name() {
        let listed = [
            info("a", Some("leader"), Some(1)),
            info("a~~x", Some("plain"), Some(0)),
            info("gpu~~p10", Some("eleventh"), Some(3)),
            info("gpu~~p2", Some("third"), Some(3)),
            info("gpu~~pt", Some("first in line"), Some(2)),
            info("prices~~g", Some("~w:import"), Some(4)),
            info("prices~~r3", Some("report"), Some(1)),
            info("prices~~r9", Some(""), Some(1)),
        ];
        let wholes = WholeLock::group(listed);
        let names: Vec<_> = wholes.iter().map(|whole| whole.key.to_string()).collect();
        assert_eq!(names, ["shop/a", "shop/a~~x", "shop/gpu", "shop/prices"]);
        assert_eq!(shown(&wholes[0]), [(HeldAs::Exclusive, "leader")]);
        assert_eq!(
            shown(&wholes[2]),
            [(HeldAs::Permit(2), "third"), (HeldAs::Permit(10), "eleventh")]
        );
        assert_eq!(wholes[2].holds[0].part.name(), "gpu~~p2");
        assert_eq!(
            shown(&wholes[3]),
            [(HeldAs::Reader, "report"), (HeldAs::Reader, "-"), (HeldAs::Writer, "import")]
        );
        let waiters: Vec<_> = wholes.iter().map(|whole| whole.waiters).collect();
        assert_eq!(waiters, [Some(1), Some(0), Some(3), Some(4)]);
    }

    #[test]
    fn one_name_may_be_of_several_kinds() {
        let listed = [
            info("a", Some("alone"), None),
            info("a~~g", Some("~r:late"), None),
            info("a~~p0", Some("one of two"), Some(0)),
        ];
        let [whole] = &WholeLock::group(listed)[..] else { panic!("one name") };
        assert_eq!(
            shown(whole),
            [
                (HeldAs::Exclusive, "alone"),
                (HeldAs::Permit(0), "one of two"),
                (HeldAs::Reader, "late")
            ]
        );
        assert_eq!(whole.waiters, Some(0));
        // Those who wait, and what nobody has.
        let waited_for = WholeLock::group([info("b~~pt", None, Some(1)), info("b~~g", None, None)]);
        assert_eq!((waited_for[0].holds.len(), waited_for[0].waiters), (0, Some(1)));
    }
}
