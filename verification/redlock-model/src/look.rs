//! A look at the lock, by the rules of the product, and what it is judged by.

use crate::config::{RedlockModel, Step};
use crate::node::Node;
use crate::rules::{self, FenceBlock, NodeView, Sight, VoteView};
use crate::set::{Set, greatest, id};
use crate::state::{Broken, Client, Stage, State};

/// The look of a run, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Look {
    /// It has not begun, or it has not found the lock free.
    #[default]
    None,
    UnderWay(Looking),
    /// It has found the lock free, with this floor.
    Free(u8),
    /// It has found a holder.
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Looking {
    /// What each node has shown in this round.
    pub(crate) views: Vec<Option<NodeView<u8>>>,
    /// What was given at most, by the rounds so far.
    given: u64,
    rounds_left: u8,
    /// The greatest fence that was returned before it began.
    returned: u8,
    /// The clients that have believed in the same block since it began.
    pub(crate) believing: Set,
}

impl Look {
    /// What is wrong with a fence that is returned now, and believed in.
    pub(crate) fn is_reached_by(&self, first: u8) -> Option<Broken> {
        matches!(self, Self::Free(floor) if first <= *floor).then_some(Broken::FloorTooHigh)
    }

    /// This client believes in another block than before.
    pub(crate) fn has_another(&mut self, c: usize) {
        if let Self::UnderWay(look) = self {
            look.believing &= !(1 << c);
        }
    }
}

impl Node {
    /// What it shows to a look, if it votes. A client has blocks of one length.
    pub(crate) fn view(&self, blocks: impl Fn(u8) -> u8) -> Option<NodeView<u8>> {
        if self.quarantine.is_some() || self.refuses {
            return None;
        }
        let vote = self.holder.map(|(owner, _)| {
            let block = FenceBlock { last: self.counter.into(), fences: blocks(owner).into() };
            let adopted = (self.adopted != 0).then_some(self.adopted.into());
            VoteView { owner, counted: Some((block, adopted)) }
        });
        Some(NodeView { mark: self.counter.into(), vote })
    }
}

impl Looking {
    fn shown(&self) -> Vec<NodeView<u8>> {
        self.views.iter().flatten().cloned().collect()
    }

    fn has_enough(&self) -> bool {
        self.shown().len() >= rules::look_needs(self.views.len())
    }

    /// What was given at most, by this round too.
    fn given(&self) -> u64 {
        self.given.min(rules::given(self.views.len(), &self.shown()))
    }
}

impl RedlockModel {
    pub(crate) fn of_look(&self, state: &State, steps: &mut Vec<Step>) {
        match &state.look {
            Look::None if state.looks_left > 0 => steps.push(Step::Look),
            Look::UnderWay(look) => {
                let is_new = |n: &usize| look.views[*n].is_none();
                steps.extend((0..look.views.len()).filter(is_new).map(Step::Show));
                if look.has_enough() {
                    steps.push(Step::Conclude);
                    if look.rounds_left > 0 {
                        steps.push(Step::LookOn);
                    }
                }
            }
            _ => {}
        }
    }

    /// A step of the look; `None` if it changes nothing.
    pub(crate) fn look(&self, state: &mut State, step: Step) -> Option<()> {
        if step == Step::Look {
            state.looks_left -= 1;
            state.look = Look::UnderWay(Looking {
                views: vec![None; state.nodes.len()],
                given: u64::MAX,
                rounds_left: self.rounds - 1,
                returned: greatest(state.clients.iter().fold(0, |all, client| all | client.fences)),
                believing: Set::MAX,
            });
            return Some(());
        }
        let Look::UnderWay(look) = &mut state.look else { return None };
        match step {
            Step::Show(n) => {
                let block = |c: u8| state.clients[usize::from(c)].block;
                look.views[n] = Some(state.nodes[n].view(block)?);
            }
            Step::LookOn => {
                look.given = look.given();
                look.rounds_left -= 1;
                look.views.fill(None);
            }
            _ => {
                let look = look.clone();
                return self.conclude_look(state, &look);
            }
        }
        Some(())
    }

    /// Whatever is not certain is nothing new: the product asks again, and takes it for a hold in the end.
    fn conclude_look(&self, state: &mut State, look: &Looking) -> Option<()> {
        let sight = rules::sight(look.views.len(), look.given(), &look.shown());
        let is_believing = |c: &usize| look.believing & (1 << c) != 0;
        let clients = || state.clients.iter().enumerate();
        let (look, broken) = match sight {
            Sight::Free { floor } => {
                let floor = u8::try_from(floor).ok()?;
                let has_earlier = clients().any(|(_, c)| c.believes() && c.first <= floor);
                let broken = if has_earlier || (0..state.clients.len()).any(|c| is_believing(&c)) {
                    Some(Broken::Missed)
                } else {
                    (floor < look.returned).then_some(Broken::FloorTooLow)
                };
                (Look::Free(floor), broken)
            }
            Sight::Held { owner, first } => {
                // One that tries again may be about to hear of another block.
                let is_its_own = |client: &Client| {
                    client.stage == Stage::Trying || first == Some(client.first.into())
                };
                let is_right = |(c, client): (usize, &Client)| {
                    !is_believing(&c) || (id(c) == owner && is_its_own(client))
                };
                let broken = (!clients().all(is_right)).then_some(Broken::Missed);
                (Look::Held, broken)
            }
            Sight::MayBeHeld { .. } | Sight::NoFloor => return None,
        };
        state.look = look;
        state.broken = broken.or(state.broken);
        Some(())
    }
}

impl State {
    /// Forgets which clients have not believed all the time.
    pub(crate) fn follow_belief(&mut self) {
        let clients = &self.clients;
        if let Look::UnderWay(look) = &mut self.look {
            let believes = |c: &usize| clients[*c].believes();
            look.believing &= (0..clients.len()).filter(believes).fold(0, |all, c| all | 1 << c);
        }
    }
}
