//! S8: what is printed, logged or returned as an error shows no secret.

use std::error::Error as StdError;
use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, Error, LeaseToken, LockBackend, Released, Resume};

use crate::Fault;
use crate::cases::tools::{holds, queues, take_for, within};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure};

cases! {
    s08_clients_claims_and_guards_show_no_secret []
        "what a client, a claim, a guard, an answer and an inspection print has no password and no key to a hold";
    s08_errors_of_calls_show_no_secret []
        "the errors of calls that are refused, lost or too late have no password and no key to a hold";
    s08_a_lease_token_is_shown_to_its_bearer_only [Detach]
        "no guard, token, claim or error prints what a bearer of a lease token needs";
    s08_errors_of_a_link_show_no_secret [Faults]
        "the errors of a client that is cut off have no password and no key to a hold";
    s08_errors_of_a_silent_store_show_no_secret [Alone]
        "the errors of a client that finds its store silent have no password";
}

/// The shortest text that counts as a secret: a shorter one is in many texts by chance.
const SHORTEST: usize = 8;

/// What must not be seen, and what was printed.
struct Search {
    secrets: Vec<String>,
    printed: Vec<(String, String)>,
}

impl Search {
    fn new(cx: &Cx) -> Check<Self> {
        let secrets = cx.store().secrets();
        if secrets.iter().any(|secret| secret.len() < SHORTEST) {
            return Err(Stop::hindered(format_args!(
                "the harness names a secret of less than {SHORTEST} bytes"
            )));
        }
        Ok(Self { secrets, printed: Vec::new() })
    }

    fn print(&mut self, what: &str, printed: &dyn Debug) {
        self.printed.push((format!("{what}, by Debug"), format!("{printed:?} {printed:#?}")));
    }

    fn display(&mut self, what: &str, printed: &dyn Display) {
        self.printed.push((what.to_owned(), printed.to_string()));
    }

    /// An error, with all its causes.
    fn error(&mut self, what: &str, error: &Error) {
        self.print(what, error);
        self.display(what, error);
        let mut cause = error.source();
        while let Some(below) = cause {
            self.printed.push((format!("a cause of {what}"), format!("{below} {below:?}")));
            cause = below.source();
        }
    }

    /// The outcome of a call, which may or may not be an error.
    fn outcome<T: Debug>(&mut self, what: &str, outcome: &Result<T, Error>) {
        match outcome {
            Ok(answer) => self.print(what, answer),
            Err(error) => self.error(what, error),
        }
    }

    /// The outcome of a call that must be refused.
    fn refused<T: Debug>(&mut self, what: &str, outcome: &Result<T, Error>) -> Check {
        ensure!(outcome.is_err(), "{what} must be refused, but was answered {outcome:?}");
        self.outcome(what, outcome);
        Ok(())
    }

    /// Looks for each secret in each text, whatever the case of its letters.
    fn finds_nothing(self) -> Check {
        for (what, printed) in &self.printed {
            let folded = printed.to_lowercase();
            for secret in &self.secrets {
                ensure!(
                    !folded.contains(&secret.to_lowercase()),
                    "{what} shows a secret: {}",
                    printed.replace(secret.as_str(), "<THE SECRET>")
                );
            }
        }
        Ok(())
    }
}

async fn s08_clients_claims_and_guards_show_no_secret(cx: Cx) -> Check {
    let mut search = Search::new(&cx)?;
    let (a, b, locks) = (cx.backend().await?, cx.backend().await?, cx.locks().await?);
    search.print("an unused client", &a);
    let request = cx.request("lock")?;
    if cx.capabilities().detachable {
        search.secrets.push(request.owner.to_hex());
    }
    let mut holder = a.claim(request)?;
    search.print("a new claim", &holder);
    search.print("a grant", &holder.try_acquire().await?);
    search.print("a claim that holds", &holder);
    search.print("a renewal", &holder.renew().await?);
    search.print("a check", &holder.check().await?);
    let mut refused = cx.claim(&b, "lock")?;
    search.print("a busy answer", &refused.try_acquire().await?);
    search.print("a refused claim", &refused);
    let mut waiter = queues(&cx, &b, "lock").await?;
    search.print("a claim that waits", &waiter);
    if let Some(admin) = a.admin() {
        let info = admin.inspect(&cx.key("lock")?).await?;
        search.print("an inspection", &info);
        search.print("a list", &admin.list(cx.prefix(), "").await?);
        search.outcome("a diagnosis", &admin.diagnose().await);
        if let Some(shown) = info.and_then(|info| info.holder) {
            search.display("a holder", &shown);
        }
    }
    search.print("a client in use", &a);
    if is_taken(&cx).await? {
        search.print("the renewal of a lost hold", &holder.renew().await?);
        search.print("a claim that has lost its hold", &holder);
    }
    waiter.release().await?;
    holder.release().await?;
    search.print("a claim that is done", &holder);
    let guard = take_for(&cx, &locks, "guarded", cx.long_ttl()).await?;
    search.print("a guard", &guard);
    search.print("a hold", guard.held());
    search.print("a lock", &locks.named("guarded")?);
    search.print("a client's locks", &locks);
    guard.release().await?;
    a.close().await?;
    search.print("a client that was closed", &a);
    search.finds_nothing()
}

/// Takes the lock away from its holder, if there is a way.
async fn is_taken(cx: &Cx) -> Check<bool> {
    match cx.store().break_hold(&cx.key("lock")?).await {
        Err(missing) if !missing.is_broken() => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

async fn s08_errors_of_calls_show_no_secret(cx: Cx) -> Check {
    let mut search = Search::new(&cx)?;
    let (locks, other, backend) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    search.refused("an empty name", &locks.named(""))?;
    search.refused("a name that is too long", &locks.named("x".repeat(513)))?;
    let lock = locks.named("lock")?;
    search.refused("a ttl of nothing", &lock.clone().ttl(Duration::ZERO).try_acquire().await)?;
    search.refused("a ttl without end", &lock.clone().ttl(Duration::MAX).try_acquire().await)?;
    let guard = take_for(&cx, &other, "lock", cx.long_ttl()).await?;
    if cx.capabilities().detachable {
        search.secrets.push(guard.owner().to_hex());
    }
    search.refused("a wait in vain", &lock.acquire_timeout(cx.ttl() / 10).await)?;
    if is_taken(&cx).await? {
        search.refused("the check of a lost guard", &guard.check().await)?;
        search.refused("the renewal of a lost guard", &guard.renew().await)?;
        search.outcome("the token of a lost guard", &guard.token());
    }
    search.outcome("the release of a guard", &guard.release().await);
    let mut claim = holds(&cx, &backend, "taken").await?;
    if !cx.capabilities().detachable {
        search.refused("a detach that is not there", &claim.detach().await)?;
    }
    if !cx.capabilities().inspect {
        search.refused("an inspection that is not there", &locks.inspect("taken").await)?;
    }
    claim.release().await?;
    locks.close(cx.slack()).await?;
    search.refused("a client that was closed", &lock.try_acquire().await)?;
    search.outcome("a request of a client that was closed", &locks.health().await);
    backend.close().await?;
    search.outcome("a request of a store that was closed", &backend.ping().await);
    match backend.claim(cx.request("closed")?) {
        Ok(mut claim) => {
            search.outcome("a claim of a store that was closed", &claim.try_acquire().await);
            search.outcome("its release", &claim.release().await);
        }
        Err(error) => search.error("a claim of a store that was closed", &error),
    }
    search.finds_nothing()
}

/// What a bearer needs in order to renew or release a hold.
async fn s08_a_lease_token_is_shown_to_its_bearer_only(cx: Cx) -> Check {
    let mut search = Search::new(&cx)?;
    let (locks, other, backend) = (cx.locks().await?, cx.locks().await?, cx.backend().await?);
    let guard = take_for(&cx, &locks, "lock", cx.long_ttl()).await?;
    search.secrets.push(guard.owner().to_hex());
    search.print("a guard", &guard);
    search.refused("a wait in vain", &other.named("lock")?.acquire_timeout(cx.ttl() / 10).await)?;
    let token = guard.detach().await?;
    let text = token.to_text();
    search.secrets.push(text.clone());
    search.print("a lease token", &token);
    for bad in [&text[..text.len() - 3], &text[3..], &format!("{text}=")] {
        search.refused("a lease token that was cut", &bad.parse::<LeaseToken>())?;
    }
    search.refused("a lease token of another lock", &other.named("other")?.attach(&token).await)?;
    let guard = other.named("lock")?.ttl(cx.long_ttl()).attach(&token).await?;
    search.print("an attached guard", &guard);
    let released = guard.release().await?;
    ensure!(released == Released::Freed, "an attached guard's release was answered {released:?}");
    search.refused("a token of a lock that is free", &other.named("lock")?.attach(&token).await)?;
    claims_of_a_bearer(&cx, &backend, &mut search).await?;
    search.finds_nothing()
}

/// The claims of a hold that is handed over, and what is printed of them.
async fn claims_of_a_bearer(cx: &Cx, backend: &Arc<dyn LockBackend>, search: &mut Search) -> Check {
    let request = cx.request_for("lock", cx.long_ttl())?;
    search.secrets.push(request.owner.to_hex());
    let mut claim = backend.claim(request.clone())?;
    let fence = granted(&mut *claim).await?;
    let mut refused = cx.claim(backend, "lock")?;
    search.print("a busy answer", &refused.try_acquire().await?);
    let mut waiting = cx.waiting_claim(backend, "lock")?;
    busy(cx, &mut *waiting).await?;
    waiting.release().await?;
    let resume = Resume::new(fence, claim.detach().await?);
    search.print("a claim that was detached", &claim);
    let mut resumed = backend.claim(request.with_resume(resume))?;
    search.print("a claim that takes over", &resumed);
    search.print("its renewal", &resumed.renew().await?);
    search.print("a claim that has taken over", &resumed);
    search.outcome("its release", &resumed.release().await);
    search.print("a client that has seen it", backend);
    Ok(())
}

async fn s08_errors_of_a_link_show_no_secret(cx: Cx) -> Check {
    let mut search = Search::new(&cx)?;
    let link = cx.link().await?;
    let holder = |search: &mut Search| {
        let request = cx.request_for("lock", cx.long_ttl())?;
        // Where it is not enough for a takeover, it is no secret.
        if cx.capabilities().detachable {
            search.secrets.push(request.owner.to_hex());
        }
        Check::Ok(link.backend.claim(request.with_call_timeout(cx.ttl()))?)
    };
    let calls = ["try_acquire", "renew", "check", "release"];
    for fault in [Fault::LoseNextRequest, Fault::LoseNextReply] {
        for call in calls {
            let mut claim = holder(&mut search)?;
            granted(&mut *claim).await?;
            link.inject(fault).await?;
            search.outcome(&format!("{call}, with {fault:?}"), &called(&mut *claim, call).await);
            claim.release().await?;
        }
    }
    let mut claim = holder(&mut search)?;
    granted(&mut *claim).await?;
    link.inject(Fault::Partition).await?;
    for call in calls {
        // What was not answered by then has nothing to say.
        if let Some(outcome) = within(&cx, cx.ttl() * 2, called(&mut *claim, call)).await {
            search.outcome(&format!("{call}, cut off"), &outcome);
        }
    }
    let locks = cx.builder(&link.backend).call_timeout(cx.ttl() / 4).build()?;
    search.refused("a ping that is cut off", &locks.health().await)?;
    search.print("a client that is cut off", &link.backend);
    link.inject(Fault::Heal).await?;
    search.finds_nothing()
}

async fn called(claim: &mut dyn Claim, call: &str) -> Result<String, Error> {
    Ok(match call {
        "try_acquire" => format!("{:?}", claim.try_acquire().await?),
        "renew" => format!("{:?}", claim.renew().await?),
        "check" => format!("{:?}", claim.check().await?),
        _ => format!("{:?}", claim.release().await?),
    })
}

async fn s08_errors_of_a_silent_store_show_no_secret(cx: Cx) -> Check {
    let mut search = Search::new(&cx)?;
    let backend = cx.backend().await?;
    let locks = cx.builder(&backend).call_timeout(cx.ttl() / 4).build()?;
    cx.store().freeze().await?;
    search.refused("a ping of a silent store", &locks.health().await)?;
    search.refused("an acquisition", &locks.named("lock")?.acquire_timeout(cx.ttl()).await)?;
    if let Some(opened) = within(&cx, cx.ttl() * 6, cx.store().client()).await {
        search.outcome("opening a silent store", &opened.map(|client| client.backend));
    }
    cx.store().thaw().await?;
    search.finds_nothing()
}
