//! What need not be told apart.

use crate::config::RedlockModel;
use crate::contender::Contender;
use crate::set::id;
use crate::state::{Body, Client, Message, Stage, State};

impl RedlockModel {
    /// Whether the client may make a second call, as long as there are any.
    pub(crate) fn may_call(&self, client: &Client) -> bool {
        !self.renewals_only || client.fences & (1 << 1) != 0
    }

    /// What can have no effect any more is the same in all states.
    pub(crate) fn forget(&self, state: &mut State) {
        let nodes = state.nodes.len();
        for c in 0..state.clients.len() {
            if !self.gives_back {
                state.clients[c].contender.debts = Contender::new(nodes, None).debts;
            }
            let goes_on = match state.clients[c].stage {
                Stage::Ended => false,
                Stage::Returned | Stage::Failed | Stage::Dropped => {
                    state.calls_left > 0 && self.may_call(&state.clients[c])
                }
                _ => true,
            };
            if goes_on || self.gives_back {
                continue;
            }
            let believes = state.clients[c].believes();
            let client = &mut state.clients[c];
            let joins = client.contender.join_at.is_some() && state.repeats_left > 0;
            if joins && client.stage == Stage::Returned {
                continue;
            }
            client.contender = Contender::new(nodes, None);
            client.now = 0;
            if !believes {
                (client.proven, client.over) = (0, 0);
                (client.first, client.passes) = (0, 0);
            }
            let of_client = id(c);
            let is_over = |message: &Message| {
                message.client == of_client && matches!(message.body, Body::Answer { .. })
            };
            state.flight.retain(|message| !is_over(message));
            for message in state.flight.iter_mut().filter(|message| message.client == of_client) {
                if let Body::Ask { is_awaited, stamp, .. } = &mut message.body {
                    *is_awaited = false;
                    *stamp = if believes { *stamp } else { 0 };
                }
            }
            state.flight.sort_unstable();
            state.flight.dedup();
            for node in &mut state.nodes {
                if !believes && node.holder.is_some_and(|(holder, _)| holder == of_client) {
                    node.stamp = 0;
                }
            }
        }
    }
}
