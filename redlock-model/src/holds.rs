//! What follows a grant: believing in it, second tries, renewals, and nodes that join late.

use lock_redis::redlock::rule::{self, Standing};

use crate::model::{Action, RedlockModel, id};
use crate::rules::Join;
use crate::state::{Client, Held, Phase, State};

impl Client {
    /// Asks all nodes once more.
    pub(crate) fn begin_try(&mut self) {
        self.end(Phase::Trying);
        self.call += 1;
        for link in &mut self.links {
            link.acquire |= 1 << self.call;
        }
    }
}

impl RedlockModel {
    /// Whether a client hears the answers to its tries. Under the real rule late ones tell it nothing.
    pub(crate) fn listens(&self, phase: Phase) -> bool {
        match phase {
            Phase::Trying => true,
            Phase::Returned(_) => self.rules.join == Join::AtOnce,
            _ => false,
        }
    }

    /// The first client has the votes of the first two nodes.
    pub(crate) fn with_a_hold(&self, mut state: State) -> State {
        let client = &mut state.clients[0];
        client.proposal = 1;
        client.begin_try();
        for n in 0..self.rules.quorum {
            let vote = self.acquire(&mut state.nodes[n], id(0), 1, client.call).unwrap_or(0);
            (client.links[n].acquire, client.links[n].vote) = (0, vote);
        }
        self.grant(client, 1);
        state
    }

    /// A client returns a fence, and believes in it unless its call is over.
    pub(crate) fn grant(&self, client: &mut Client, fence: u8) {
        if self.rules.join == Join::AtOnce {
            for link in &mut client.links {
                link.member = link.vote;
            }
        }
        client.fence = fence;
        client.fences |= 1 << fence;
        client.end(Phase::Returned(fence));
        if !self.rules.gives_back_late {
            client.over = client.over.min(client.call - 1);
        }
        if self.holds {
            self.prove(client);
        }
    }

    /// A call was answered well.
    fn prove(&self, client: &mut Client) {
        client.proven = client.call;
        if client.believes() {
            client.believed |= 1 << client.fence;
        }
    }

    /// The lock ends at a node: the validity of the call that set it is over by then.
    pub(crate) fn expire(&self, state: &mut State, n: usize) {
        let node = &mut state.nodes[n];
        if let Some(holder) = node.holder.take() {
            let client = &mut state.clients[usize::from(holder)];
            client.over = client.over.max(node.stamp);
        }
        (node.adopted, node.stamp) = (0, 0);
    }

    pub(crate) fn follow_up(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::TopUp(c, n) => {
                state.repeats_left -= 1;
                let (fence, call) = (state.clients[c].fence, state.clients[c].call);
                let value = self.acquire(&mut state.nodes[n], id(c), fence, call);
                if value.is_some_and(|value| value > self.top) {
                    return None;
                }
            }
            Action::TryAgain(c) => {
                state.calls_left -= 1;
                let others = state.greatest(c, |client| client.fences);
                let client = &mut state.clients[c];
                // Its own fence may come back, and must not fall either.
                client.floor = others.max(client.fence - 1);
                client.begin_try();
            }
            Action::Renew(c) => {
                state.calls_left -= 1;
                // A hold that is renewed was not interrupted by anybody who had reason to believe.
                let others = state.greatest(c, |client| client.believed);
                let client = &mut state.clients[c];
                client.floor = others;
                client.end(Phase::Renewing);
                client.call += 1;
                for link in &mut client.links {
                    link.renew = true;
                }
            }
            Action::RenewAt(c, n, heard) => {
                let client = &mut state.clients[c];
                let (call, fence) = (client.call, client.fence);
                let (link, node) = (&mut client.links[n], &mut state.nodes[n]);
                link.renew = false;
                let mine = node.holder == Some(id(c));
                let shows = match self.rules.join {
                    Join::ByRenewal => node.counter == fence || node.adopted == fence,
                    Join::AtOnce => node.counter == link.member,
                };
                if mine && shows {
                    node.stamp = node.stamp.max(call);
                }
                link.held = match (heard && node.quarantine.is_none(), mine, shows) {
                    (false, ..) => Held::Unheard,
                    (_, true, true) => Held::Yes,
                    (_, true, false) => Held::Unproven(node.counter),
                    _ => Held::No,
                };
            }
            Action::JudgeRenewal(c) => self.judge_renewal(&mut state.clients[c]),
            Action::Adopt(c, n) => {
                let (client, node) = (&mut state.clients[c], &mut state.nodes[n]);
                let counter = std::mem::take(&mut client.links[n].adopt);
                if node.holder == Some(id(c)) && node.counter == counter {
                    node.adopted = client.fence;
                }
            }
            Action::Lapse(c) => state.clients[c].over = state.clients[c].proven,
            _ => return None,
        }
        Some(())
    }

    fn judge_renewal(&self, client: &mut Client) {
        let answers = client.links.map(|link| link.held);
        let held = answers.iter().filter(|held| **held == Held::Yes).count();
        let heard = answers.iter().filter(|held| **held != Held::Unheard).count();
        match rule::standing(answers.len(), self.rules.quorum, held, heard - held) {
            Standing::Held => {
                client.end(Phase::Returned(client.fence));
                self.prove(client);
                for (link, held) in client.links.iter_mut().zip(answers) {
                    if let Held::Unproven(counter) = held {
                        link.adopt = counter;
                    }
                }
            }
            Standing::Lost => client.end(Phase::Ended),
            Standing::Unknown => {}
        }
    }

    pub(crate) fn follow_ups(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, client) in state.clients.iter().enumerate().take(self.clients) {
            if client.believes() {
                actions.push(Action::Lapse(c));
            }
            if matches!(client.phase, Phase::Returned(_)) && state.calls_left > 0 {
                actions.extend([Action::TryAgain(c), Action::Renew(c)]);
            }
            if client.phase == Phase::Renewing {
                actions.extend([Action::JudgeRenewal(c), Action::GiveUp(c)]);
            }
            for (n, link) in client.links.iter().enumerate() {
                if client.fence != 0 && state.repeats_left > 0 && self.calls > 0 {
                    actions.push(Action::TopUp(c, n));
                }
                if link.renew {
                    actions.extend([Action::RenewAt(c, n, true), Action::RenewAt(c, n, false)]);
                }
                if link.adopt != 0 {
                    actions.push(Action::Adopt(c, n));
                }
            }
        }
    }
}
