//! The rules of Redlock that the tests replace by known mistakes, one line each.

use lock_core::Result;

use super::contender;
use super::plan::{self, Plan, Report, Terms};

/// The rules that the clients of a quorum follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) contender: contender::Rules,
    /// Which nodes may begin to vote.
    pub(crate) plan: fn(&[Option<Report>], &Terms) -> Result<Plan>,
}

impl Rules {
    pub(crate) const REAL: Self = Self { contender: contender::Rules::REAL, plan: plan::plan };
}
