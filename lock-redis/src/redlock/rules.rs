//! The rules of Redlock that the tests replace by known mistakes, one line each.

use lock_core::{Error, Result};

use super::contender;
use super::plan::{self, Plan, Report, Terms};
use super::reply::NodeReply;

/// The rules that the clients of a quorum follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) contender: contender::Rules,
    /// Which nodes may begin to vote.
    pub(crate) plan: fn(&[Option<Report>], &Terms) -> Result<Plan>,
    /// What a hold hears from a node that has answered the renewals of many with an error.
    pub(crate) failed: fn(Error) -> NodeReply,
}

impl Rules {
    pub(crate) const REAL: Self =
        Self { contender: contender::Rules::REAL, plan: plan::plan, failed: NodeReply::Failed };
}
