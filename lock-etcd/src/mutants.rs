//! The seam where the mutation tests make this store wrong on purpose.
//!
//! Requests pass through it before they are sent; replies, keep-alive replies and watch events
//! before they are trusted; and the store takes its rules from it. Without `--cfg distlock_mutants`
//! it changes nothing.

#[cfg(not(distlock_mutants))]
pub(crate) use right::{news, renewed, replied, rules, sent, served_by, watches};
#[cfg(distlock_mutants)]
pub use wrong::{MUTANTS, Mutant, VARIABLE};
#[cfg(distlock_mutants)]
pub(crate) use wrong::{news, renewed, replied, rules, sent, served_by, watches};

#[cfg(not(distlock_mutants))]
mod right {
    use lock_core::Clock;
    use tokio::runtime::Id;

    use crate::error::Failed;
    use crate::rules::{RULES, Rules};
    use crate::wire::{News, Renewed, Reply, Request};

    pub(crate) const fn sent(request: Request) -> Request {
        request
    }

    pub(crate) fn replied(_: &Request, reply: Result<Reply, Failed>) -> Result<Reply, Failed> {
        reply
    }

    pub(crate) const fn renewed(renewed: Renewed, _: &dyn Clock) -> Renewed {
        renewed
    }

    pub(crate) const fn watches(_: &[u8]) -> bool {
        true
    }

    pub(crate) const fn served_by(runtime: Id) -> Id {
        runtime
    }

    pub(crate) const fn news(news: News) -> Option<News> {
        Some(news)
    }

    pub(crate) const fn rules() -> Rules {
        RULES
    }
}

#[cfg(distlock_mutants)]
mod wrong;
