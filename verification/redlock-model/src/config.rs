//! What is checked, and what can happen in it.

use crate::node::NodeRules;
use crate::rules::Variant;
use crate::state::Message;

/// A quorum of a few nodes under a set of rules.
#[derive(Clone, Debug)]
pub struct RedlockModel {
    /// The rules of the clients.
    pub variant: Variant,
    /// The rules of the nodes.
    pub nodes: NodeRules,
    /// The claims of a run: how many fences each asks for.
    pub blocks: Vec<u8>,
    /// How often a node may lose all its data.
    pub losses: u8,
    /// The counters of all nodes at the start, one list per initial state. Unequal ones are what partial
    /// acquisitions leave behind.
    pub counters: Vec<Vec<u8>>,
    /// The values that clients may propose.
    pub proposals: Vec<u8>,
    /// How many acquire requests arrive a second time, or ask a node to join a hold later.
    pub repeats: u8,
    /// How many requests a client gives up as unanswered, although they may still arrive.
    pub silences: u8,
    /// Whether the model knows for how long a grant is believed, and checks that two clients never
    /// believe at once. That needs the assumption about clocks: a node keeps what a call has set for
    /// longer than the client believes in that call.
    pub holds: bool,
    /// How many second tries and renewals there are; only with `holds`.
    pub calls: u8,
    /// Whether these calls are renewals alone, by the client that has returned the fence 1.
    pub renewals_only: bool,
    /// Whether the run begins with a client that has returned the fence 1, which a bare quorum shows while
    /// the requests to the others are still under way; only with `holds`.
    pub held: bool,
    /// Whether what gives an earlier try of that client back is still under way to all nodes.
    pub late_releases: bool,
    /// Whether releases arrive, and nodes that refuse say so. Without, a lock that ends at any moment
    /// stands for them.
    pub gives_back: bool,
    /// How many nodes refuse whatever they are asked.
    pub refusing: usize,
    /// Whether the run begins with a node that lost its data and was admitted again, while a second
    /// copy of that admission is still under way.
    pub stale_admission: bool,
    /// The greatest counter that is explored, at most fifteen.
    pub top: u8,
    /// How often the clock of a client may tick in one call.
    pub ticks: u8,
    /// In how many rounds the nodes may be asked for the look of a run; zero for no look. Only with `holds`.
    pub rounds: u8,
}

/// One step of the system. A message that is lost is one that never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action(pub(crate) Step);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client begins, with this proposal.
    Invoke(usize, u8),
    /// A request arrives; its answer may be heard.
    Arrive(Message, Hearing),
    /// An answer arrives.
    Hear(Message),
    /// A client gives a request up as unanswered.
    Silence(Message),
    /// The clock of a client ticks.
    Tick(usize),
    /// A client tries again, as after an answer that was lost.
    TryAgain(usize),
    /// A client begins to renew.
    Renew(usize),
    /// A client releases.
    Release(usize),
    /// A holder passes the lock on, with the next fence of its block.
    Pass(usize),
    /// A client ceases to believe.
    Lapse(usize),
    /// A client gives up the call under way.
    GiveUp(usize),
    /// The lock ends at a node.
    Expire(usize),
    /// A node loses its data.
    Lose(usize),
    /// A client reads the mark of the second node, to admit the first one again.
    ReadMark(usize, usize),
    /// A client that has read enough marks sends an admission.
    SendAdmission(usize),
    /// The admission arrives.
    Admit(usize),
    /// A look begins.
    Look,
    /// It hears what a node shows.
    Show(usize),
    /// It asks the nodes again.
    LookOn,
    /// It ends with what the nodes have shown.
    Conclude,
}

/// What becomes of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    Heard,
    Lost,
    /// It may be heard, and the request arrives again.
    Again,
}

impl Default for RedlockModel {
    fn default() -> Self {
        Self {
            variant: Variant::Real,
            nodes: NodeRules::REAL,
            blocks: vec![1, 1],
            losses: 0,
            counters: vec![vec![0; 3]],
            proposals: vec![1, 2],
            repeats: 0,
            silences: 0,
            holds: false,
            calls: 0,
            renewals_only: false,
            held: false,
            late_releases: false,
            gives_back: false,
            refusing: 0,
            stale_admission: false,
            top: 15,
            ticks: 1,
            rounds: 0,
        }
    }
}
