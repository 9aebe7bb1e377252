//! The rules of a client: the real ones, and known wrong ones.

use crate::contender::Rules;
use crate::contender::rule::{self, Verdict};

/// The rules that the clients follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// The product's.
    #[default]
    Real,
    /// Wrong: the maximum of the first quorum's answers is the fence, at once.
    FirstMaximum,
    /// Wrong: one node decides, since it is the only one that can be reached.
    QuorumOfOne,
    /// Wrong: a grant is used although its ttl was over when the answers came.
    LateGrant,
    /// Wrong: a renewal counts every node that is the owner's, whatever its fence.
    RenewsAnyFence,
    /// Wrong: a second try gives the old fence back as soon as a quorum is the owner's.
    OldFenceOfAnyQuorum,
    /// Wrong: another block of the same claim may have fences of the earlier one.
    OverlapsItsOwn,
    /// Wrong: only what has voted is given back, and no release is repeated.
    ForgetsTheUnanswered,
    /// Wrong: every answer to a release proves that nothing is left.
    BelievesEveryRelease,
    /// Wrong: a release that has freed something proves that nothing is left, whatever it was.
    BelievesWhatWasFreed,
}

impl Variant {
    /// The rules of the product, with the line that is wrong.
    pub(crate) fn rules(self) -> Rules {
        let mut rules = Rules::REAL;
        match self {
            Self::Real => {}
            Self::FirstMaximum => {
                rules.judge = |needed, votes, kept, pending| match rule::judge(
                    needed, votes, kept, pending,
                ) {
                    Verdict::Raise(highest) => Verdict::Established(highest),
                    verdict => verdict,
                };
            }
            Self::QuorumOfOne => rules.needed = |_, _, _| 1,
            Self::LateGrant => rules.valid_from = |_, now| now,
            Self::RenewsAnyFence => rules.renews = |_| None,
            Self::OldFenceOfAnyQuorum => {
                rules.judge = |needed, votes, kept, pending| match kept {
                    Some(kept) if votes.iter().flatten().count() >= needed => {
                        Verdict::Established(kept.last)
                    }
                    _ => rule::judge(needed, votes, kept, pending),
                };
            }
            Self::OverlapsItsOwn => {
                rules.judge = |needed, votes, kept, pending| {
                    // A block of one never overlaps another one.
                    let kept = kept.map(|kept| rule::Block { fences: 1, ..kept });
                    rule::judge(needed, votes, kept, pending)
                };
            }
            Self::ForgetsTheUnanswered => rules.gives_back = |voted| voted,
            Self::BelievesEveryRelease => rules.settles = |_, _| true,
            Self::BelievesWhatWasFreed => {
                rules.settles = |open, freed| freed || open.is_settled_by(false);
            }
        }
        rules
    }
}
