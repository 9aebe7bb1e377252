//! C3, C9 and S3 for a call that makes several requests: each of them is answered late, and others
//! take the lock in between. Who reads first, then writes what the read allowed, is found here.

use std::future::Future;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, Binding, Claim, LockBackend, Renewal};

use crate::Fault;
use crate::cases::tools::{holds, still_held, take_away};
use crate::context::{Cx, Link};
use crate::runner::case::cases;
use crate::runner::check::{Check, Stop, ensure, ensure_exactly, fail};

cases! {
    c03_a_late_answer_in_a_try_is_no_second_grant [Faults]
        "a try that gets the answer to any one of its requests late does not get what another one got first"
        covers [TryAcquire/New/ReplyLate, TryAcquire/New/OtherHolder];
    c09_a_late_answer_in_a_try_gives_no_old_token [Faults]
        "a try that gets the answer to any one of its requests late, while another one takes and releases the lock, has the greater token"
        covers [TryAcquire/New/OtherReleases];
    s03_a_late_answer_in_a_release_frees_nobody_else [Faults]
        "a release that gets the answer to any one of its requests late does not free the next holder"
        covers [Release/Held/ReplyLate, Release/Held/OtherHolder, Release/Held/Forced];
    s03_a_late_answer_in_a_renewal_touches_nobody_else [Faults]
        "a renewal that gets the answer to any one of its requests late leaves the next holder alone"
        covers [Renew/Held/ReplyLate, Renew/Held/OtherHolder, Renew/Held/Forced];
}

/// No store makes more requests for one call.
const MOST_REQUESTS: u32 = 24;

/// When the answer came that was to be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// There was none.
    InTime,
    Late,
    /// Before the others were done, on a busy machine, or another answer of this client was late.
    Missed,
}

/// How often a round is repeated in which that answer came too early.
const TRIES: u32 = 3;

/// A client of which one call gets the answer to one of its requests late.
struct Late {
    cx: Cx,
    link: Link,
    /// How many requests are answered in time before it; `None` if all are.
    skip: Option<u32>,
    lock: String,
}

impl Late {
    /// Less than the time after which a client takes its server for silent.
    fn by(&self) -> Duration {
        self.cx.ttl() / 4
    }

    /// Makes `call`, and does `other` while the late answer is under way. Returns both, and whether
    /// it came to that.
    async fn meanwhile<A, B>(
        &self,
        call: impl Future<Output = A>,
        other: impl Future<Output = Check<B>>,
    ) -> Check<(A, B, When)> {
        let (before, fault) = (self.link.struck(), Fault::DelayNextReply(self.by()));
        if let Some(requests) = self.skip {
            self.link.inject_after(requests, fault).await?;
        }
        let start = self.cx.now();
        let ((answer, end, struck), (other, done)) =
            tokio::join!(async { (call.await, self.cx.now(), self.link.struck()) }, async {
                self.cx.sleep(self.by() / 4).await;
                (other.await, self.cx.now())
            });
        let late = start + self.by();
        let has_struck = before.zip(struck).map(|(before, now)| now > before);
        if self.skip == Some(0) && has_struck == Some(false) {
            return Err(Stop::missed(fault));
        }
        let when = match (has_struck, end >= late, done <= late) {
            // The call makes no such request.
            (Some(false), ..) | (None, false, _) => When::InTime,
            (Some(true), false, _) | (_, true, false) => When::Missed,
            (_, true, true) => When::Late,
        };
        Ok((answer, other?, when))
    }

    /// Makes `call` of the holder, whose lock is taken away and given to `next` meanwhile. The answer
    /// may be anything; what matters is what the call does to the next holder.
    async fn handed_on<A>(
        &self,
        call: impl Future<Output = A>,
        other: &Arc<dyn LockBackend>,
        next: &mut dyn Claim,
    ) -> Check<When> {
        let both = self.meanwhile(call, async {
            take_away(&self.cx, other, &self.lock).await?;
            Ok(next.try_acquire().await?)
        });
        let (_, attempt, when) = both.await?;
        ensure!(
            matches!(attempt, Attempt::Granted { .. }),
            "the lock was taken away from its holder, and a try is answered {attempt:?}"
        );
        Ok(when)
    }

    fn after(&self, call: &str) -> String {
        match self.skip {
            Some(skip) => {
                format!("after a {call} that got the answer to request {} late", skip + 1)
            }
            None => format!("after a {call}"),
        }
    }
}

/// Runs `round` with the answer to a call's first request late, then with that to its second, and
/// so on, each time on another lock, until `round` has said several times in a row that no answer
/// was late: a request that only keeps a connection alive may have been the one.
async fn each_answer(cx: &Cx, mut round: impl AsyncFnMut(Late) -> Check<When>) -> Check {
    // With the first of all calls a store may need more requests, so nothing is late in that round.
    let (mut in_time, mut locks) = (0, 0);
    for skip in iter::once(None).chain((0..MOST_REQUESTS).map(Some)) {
        let mut when = When::Missed;
        for _ in 0..TRIES {
            let (link, lock) = (cx.warm_link("warm-up").await?, format!("lock{locks}"));
            locks += 1;
            when = round(Late { cx: cx.clone(), link, skip, lock }).await?;
            if when != When::Missed {
                break;
            }
        }
        if when == When::Missed {
            let request = skip.map_or(0, |skip| skip + 1);
            return Err(Stop::hindered(format_args!(
                "in none of {TRIES} tries the answer to request {request} of the call was late"
            )));
        }
        in_time = if skip.is_some() && when == When::InTime { in_time + 1 } else { 0 };
        if in_time == 3 {
            return Ok(());
        }
    }
    fail!("one call made more than {MOST_REQUESTS} requests")
}

async fn c03_a_late_answer_in_a_try_is_no_second_grant(cx: Cx) -> Check {
    let (other, third) = (cx.backend().await?, cx.backend().await?);
    each_answer(&cx, async |late: Late| {
        let request = || cx.request_for(&late.lock, cx.long_ttl());
        let (mut slow, mut fast) = (late.link.backend.claim(request()?)?, other.claim(request()?)?);
        let both = late.meanwhile(slow.try_acquire(), async { Ok(fast.try_acquire().await?) });
        let (slow_got, fast_got, when) = both.await?;
        let slow_has_it = matches!(slow_got, Ok(Attempt::Granted { .. }));
        if let Attempt::Granted { .. } = fast_got {
            ensure_exactly!(!slow_has_it, "two clients hold the lock {}", late.after("try"));
            let kept = fast.check().await?;
            ensure_exactly!(
                matches!(kept, Renewal::Alive { .. }),
                "{} the lock has gone from the other one, whose check says {kept:?}",
                late.after("try")
            );
        }
        if slow_has_it || matches!(fast_got, Attempt::Granted { .. }) {
            still_held(&cx, &third, &late.lock, &late.after("try")).await?;
        }
        slow.release().await?;
        fast.release().await?;
        Ok(when)
    })
    .await
}

async fn c09_a_late_answer_in_a_try_gives_no_old_token(cx: Cx) -> Check {
    let other = cx.backend().await?;
    each_answer(&cx, async |late: Late| {
        let mut slow = late.link.backend.claim(cx.request_for(&late.lock, cx.long_ttl())?)?;
        let both = late.meanwhile(slow.try_acquire(), cx.fence_if_free(&other, &late.lock));
        let (slow_got, fast_got, when) = both.await?;
        let slow_got = match slow_got {
            Ok(Attempt::Granted { token, .. }) => Some(token),
            _ => None,
        };
        if let (Some(slow), Some(fast)) = (slow_got, fast_got) {
            ensure_exactly!(
                slow > fast,
                "{} it holds the lock with the token {slow}, and another one held it before with {fast}",
                late.after("try")
            );
        }
        slow.release().await?;
        let (next, last) = (cx.fence_if_free(&other, &late.lock).await?, slow_got.max(fast_got));
        ensure_exactly!(
            next > last,
            "{} and its release the next token is {next:?}, and the last one was {last:?}",
            late.after("try")
        );
        Ok(when)
    })
    .await
}

async fn s03_a_late_answer_in_a_release_frees_nobody_else(cx: Cx) -> Check {
    let (other, third) = (cx.backend().await?, cx.backend().await?);
    each_answer(&cx, async |late: Late| {
        let mut old = holds(&cx, &late.link.backend, &late.lock).await?;
        let mut next = other.claim(cx.request_for(&late.lock, cx.long_ttl())?)?;
        let when = late.handed_on(old.release(), &other, &mut *next).await?;
        still_held(&cx, &third, &late.lock, &late.after("release")).await?;
        next.release().await?;
        Ok(when)
    })
    .await
}

async fn s03_a_late_answer_in_a_renewal_touches_nobody_else(cx: Cx) -> Check {
    let other = cx.backend().await?;
    let mut taken = Vec::new();
    each_answer(&cx, async |late: Late| {
        let mut old = holds(&cx, &late.link.backend, &late.lock).await?;
        let mut next = cx.claim(&other, &late.lock)?;
        let when = late.handed_on(old.renew(), &other, &mut *next).await?;
        let kept = next.check().await?;
        ensure_exactly!(
            matches!(kept, Renewal::Alive { .. }),
            "{} the lock has gone from the next holder, whose check says {kept:?}",
            late.after("renewal")
        );
        taken.push((late.lock.clone(), late.after("renewal")));
        Ok(when)
    })
    .await?;
    if cx.capabilities().binding == Binding::Lease {
        cx.sleep(cx.over()).await;
        for (lock, after) in taken {
            ensure!(
                cx.is_free(&other, &lock).await?,
                "{after} the next holder has a longer lease than it asked for"
            );
        }
    }
    Ok(())
}
