//! All of it at one moment. Times count from now, in ticks, and fences from the true time.

/// How many fences a clock goes on by in one tick: more than are granted in it.
pub(crate) const FENCES: i8 = 4;

/// Two clients with one name, and two servers of one group, of which one follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) clients: [Client; 2],
    pub(crate) servers: [Server; 2],
    /// The greatest fence that was granted, and to whom, even if the answer was lost.
    pub(crate) top: (i8, u8),
    /// How many more releases there may be.
    pub(crate) releases: u8,
    /// Whether a fence was not in the order of the grants.
    pub(crate) fell: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// How much longer it believes that it holds the lock.
    pub(crate) left: u8,
    /// How many locks it has released: each claim is another owner.
    pub(crate) released: u8,
    /// The request under way.
    pub(crate) asks: Option<Ask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) server: usize,
    /// Or tries.
    pub(crate) renews: bool,
    /// How long ago it was sent.
    pub(crate) age: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// It takes itself for the master.
    pub(crate) leads: bool,
    /// How long ago its replica has left it.
    pub(crate) cut: Option<u8>,
    /// Which promotion has made it a master.
    pub(crate) reign: u8,
    pub(crate) data: Data,
}

/// What a server has, and a replica gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Data {
    pub(crate) entry: Option<Entry>,
    pub(crate) mark: i8,
    /// Who may vote.
    pub(crate) names: u8,
    /// In how many ticks.
    pub(crate) wait: u8,
    /// How long ago the last write was, if a rule needs it.
    pub(crate) quiet: u8,
}

/// A lock that was granted. It ends by the clock of the server that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) owner: u8,
    pub(crate) left: u8,
    pub(crate) fence: i8,
}

impl State {
    pub(crate) fn owner(&self, c: usize) -> u8 {
        2 * self.clients[c].released + u8::from(c == 1)
    }

    pub(crate) fn believes(&self, c: usize) -> bool {
        self.clients[c].left > 0
    }

    /// How many failovers there were.
    pub(crate) fn failovers(&self) -> u8 {
        self.servers.iter().map(|server| server.reign).max().unwrap_or(0)
    }
}

impl Data {
    /// As it is where the clock is so many ticks ahead of where it was written.
    pub(crate) fn seen_by(mut self, ahead: i8) -> Self {
        self.entry = self.entry.and_then(|entry| {
            let left = entry.left.checked_add_signed(-ahead).filter(|left| *left > 0)?;
            Some(Entry { left, ..entry })
        });
        self
    }
}
