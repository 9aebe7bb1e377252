//! When a held lock is renewed, checked, and listened for.

use super::{Keeper, schedule};
use crate::locks::held::margin;
use crate::{ClockInstant, Held};

/// The plan for renewals and checks.
pub(super) struct Plan {
    pub(super) renew_at: ClockInstant,
    pub(super) failures: u32,
    /// When to ask the store, since a push said that something has changed.
    pub(super) check_at: ClockInstant,
    /// Pushes are not asked for until then, since they failed.
    pub(super) no_push_until: ClockInstant,
    /// A detach has failed: the store is checked before the next renewal (clause C8).
    pub(super) is_unsettled: bool,
}

impl Keeper {
    pub(super) fn first_plan(&self, held: &Held, is_fresh: bool) -> Plan {
        let (now, ttl) = (self.client.clock.now(), self.terms.ttl);
        // Validity counts from here: when the attempt was sent, or an earlier renewal of the place.
        let counted_from = (held.lease_end() + margin(ttl)).minus(ttl).min(now);
        let mut plan = Plan {
            renew_at: ClockInstant::FAR_FUTURE,
            failures: 0,
            check_at: ClockInstant::FAR_FUTURE,
            no_push_until: now,
            is_unsettled: false,
        };
        self.plan_renewal(&mut plan, counted_from);
        // A lock without renewals lasts for a ttl from its grant. Where place and lock are one
        // lease, part of that has passed in the queue, and where it was passed on, with its earlier
        // holders. Any other grant itself says how long it lasts.
        let is_whole = held.lease_end().since(now) >= ttl * 9 / 10;
        if self.terms.renew_every.is_none() && !is_fresh && !is_whole {
            plan.renew_at = now;
        }
        plan
    }

    pub(super) fn plan_renewal(&self, plan: &mut Plan, sent: ClockInstant) {
        plan.failures = 0;
        plan.renew_at = match self.terms.renew_every {
            Some(every) => schedule::renew_at(&self.client, sent, every, self.terms.ttl),
            None => ClockInstant::FAR_FUTURE,
        };
    }
}
