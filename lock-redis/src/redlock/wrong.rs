//! Known wrong variants of the algorithm, so that the tests can show that they would notice.

/// One deliberate mistake. Can only be made with the cargo feature `mutants`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// More than half of the nodes that can be reached decide.
    QuorumOfTheReachable,
    /// The greatest answer of a quorum is the fence, whether or not they agree.
    MaximumWithoutAgreement,
    /// A failed try keeps the votes that it got.
    KeepsPartialVotes,
    /// What was not answered is not given back.
    ForgetsTheUnanswered,
    /// Validity counts from the answer.
    ValidityFromTheReply,
    /// A renewal counts every node that has something of the owner, whatever its fence.
    RenewsAnyFence,
    /// A node that lost its data votes at once.
    RejoinsAtOnce,
}
