//! C11: names.

use std::collections::BTreeSet;

use lock_core::{Attempt, ErrorKind, LockKey, Released};

use crate::cases::tools::{error_kind, holds, longest_name, queues, take_for, until_granted};
use crate::context::{Cx, busy, granted};
use crate::runner::case::cases;
use crate::runner::check::{Check, Demanded as _, ensure, ensure_exactly, fail};

cases! {
    c11_distinct_names_never_block_each_other []
        "names that differ in anything, even case or a trailing blank, are different locks"
        covers [TryAcquire/New/Plain, TryAcquire/New/OtherHolder, Release/Held/Plain];
    c11_equal_names_always_block_each_other []
        "the same name is the same lock for every client, whatever characters it has"
        covers [TryAcquire/New/OtherHolder]
        guards [TryAcquire/Free/OtherHolder];
    c11_prefix_and_name_are_kept_apart []
        "keys whose prefix and name read the same when put together are different locks"
        covers [TryAcquire/New/Plain, TryAcquire/New/OtherHolder];
    c11_long_names_are_not_cut []
        "names of 512 bytes that differ only at their very end are different locks"
        covers [TryAcquire/New/Plain, TryAcquire/New/OtherHolder];
    c11_names_that_look_like_ours_are_names []
        "a name that reads like an auxiliary key of a store disturbs no other lock"
        covers [Claim/New/Plain, TryAcquire/New/Plain];
    c11_waiters_of_distinct_names_never_meet []
        "a lock is free, and goes to who waits for it, whoever waits for one whose name differs in anything"
        covers [TryAcquire/New/Plain, TryAcquire/Waiting/OtherReleases];
    c11_bad_names_are_refused []
        "a name that is empty, too long or has a control character is refused, with its reason"
        guards [Acquire/Free/Plain, TryAcquire/Free/Plain];
    c11_a_lock_is_found_under_its_name [Inspect]
        "inspection and listing show each lock under the name that was given"
        covers [Inspect/Open/OtherHolder, List/Open/OtherHolder]
        guards [Inspect/Free/OtherHolder];
}

/// Names that some stores confuse, each different from all others.
const CORPUS: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a  ",
    "á",
    "a\u{301}",
    "ä",
    "ß",
    "SS",
    "ss",
    "ı",
    "i",
    "I",
    "İ",
    "ﬀ",
    "ff",
    "a/b",
    "a_b",
    "a/",
    "/a",
    "a//b",
    "/",
    "a.b",
    "a-b",
    "a:b",
    "a|b",
    "a\\b",
    "ab",
    // Pairs with one hash in many libraries.
    "Aa",
    "BB",
    "plumless",
    "buckeroo",
    "É",
    "é",
    "a+b",
    "a%2Fb",
    "a%b",
    "%",
    "_",
    "a%",
    ".",
    "..",
    "../a",
    "./a",
    "...",
    "~",
    "a'b",
    "a\"b",
    "''",
    "'",
    "\"",
    "`",
    "';--",
    "' OR '1'='1",
    "a'); DROP TABLE locks; --",
    "$1",
    "?",
    ":name",
    "@p",
    "{a}",
    "{a}b",
    "{}",
    "a{",
    "}",
    "{a}:queue",
    "[a-z]*",
    "*",
    "a*",
    "??",
    "^a$",
    "redis.call('FLUSHALL')",
    "return 1",
    "${a}",
    "#{a}",
    "\u{202e}abc",
    "\u{200b}",
    "a\u{200b}",
    "\u{feff}a",
    "\u{fffd}",
    "\u{ffff}",
    "\u{10ffff}",
    "😀",
    "😀😀",
    "a🔑",
    "a🔒",
    "日本",
    "日本語",
    "null",
    "NULL",
    "nil",
    "true",
    "0",
    "00",
    "-1",
    "1e3",
    "lock-0000000000",
    "zookeeper",
    "a\u{a0}",
    "\u{3000}a",
    "a&b=c",
    "a#b",
    "a?b",
    "http://a/b",
    "a b",
];

/// The keys of these names.
pub(in crate::cases) fn corpus(cx: &Cx) -> Check<Vec<LockKey>> {
    CORPUS.iter().map(|name| cx.key(name)).collect()
}

/// Keys of which some read the same when prefix and name are put together.
pub(in crate::cases) fn prefixes(cx: &Cx) -> Check<Vec<LockKey>> {
    let mine = cx.prefix();
    let pairs = [
        ("", "abc"),
        ("a", "bc"),
        ("ab", "c"),
        ("a/", "bc"),
        ("a", "/bc"),
        ("a:", "bc"),
        ("a.", "bc"),
        ("a", ":bc"),
        ("A", "bc"),
        ("a ", "bc"),
        ("a", " bc"),
        ("é", "bc"),
        ("%", "bc"),
        ("_", "bc"),
        ("'", "bc"),
    ];
    let key = |(prefix, name): (&str, &str)| LockKey::new(format!("{mine}{prefix}"), name);
    Ok(pairs.into_iter().map(key).collect::<Result<_, _>>()?)
}

/// Keys of long names and prefixes that differ only at their very ends.
pub(in crate::cases) fn long(cx: &Cx) -> Check<Vec<LockKey>> {
    let mut names = Vec::new();
    for unit in ["x", "é", "日", "😀", "/", "%"] {
        let full = unit.repeat(LockKey::MAX_LEN / unit.len());
        let short = unit.repeat(LockKey::MAX_LEN / unit.len() - 1);
        names.extend([format!("{short}a"), format!("{short}b"), short, full]);
    }
    names.extend([
        format!("{}y", "x".repeat(511)),
        "x".repeat(255),
        "x".repeat(256),
        "x".repeat(100),
    ]);
    names.sort();
    names.dedup();
    let mut keys = names.iter().map(|name| cx.key(name)).collect::<Check<Vec<_>>>()?;
    // The longest prefixes too.
    let long = |start: &str, end: &str| {
        format!("{start}{}{end}", "p".repeat(LockKey::MAX_LEN - start.len() - end.len()))
    };
    let (prefix, name) = (long(cx.prefix(), "a"), long("", "a"));
    keys.extend([
        LockKey::new(prefix.as_str(), name.as_str())?,
        LockKey::new(prefix.as_str(), long("", "b"))?,
        LockKey::new(long(cx.prefix(), "b"), name.as_str())?,
        cx.key(&name)?,
    ]);
    Ok(keys)
}

/// Takes all keys at once with one client, finds all of them held with another, and frees them.
async fn all_at_once(cx: &Cx, keys: &[LockKey]) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let request = |key: &LockKey| {
        let mut request = cx.request_for("any", cx.long_ttl())?;
        request.key = key.clone();
        Check::Ok(request)
    };
    let mut held = Vec::new();
    for key in keys {
        let taking = format!("{key:?} is taken");
        let mut claim = a.claim(request(key)?).demanded(&taking)?;
        match claim.try_acquire().await.demanded(&taking)? {
            Attempt::Granted { .. } => held.push((key, claim)),
            _ => fail!("{key:?} is busy, but only other names are held: two names are one lock"),
        }
    }
    for (key, _) in &held {
        let mut other = b.claim(request(key)?)?;
        if let Attempt::Granted { .. } = other.try_acquire().await? {
            let seen =
                format!("{key:?} is held, and another client could take it: one name is two locks");
            return cx.not_alone_at(key, 2, seen);
        }
    }
    for (key, mut claim) in held {
        claim.release().await?;
        let mut other = b.claim(request(key)?)?;
        granted(&mut *other).await?;
        other.release().await?;
    }
    Ok(())
}

async fn c11_distinct_names_never_block_each_other(cx: Cx) -> Check {
    ensure!(
        CORPUS.iter().collect::<BTreeSet<_>>().len() == CORPUS.len(),
        "the corpus contains a name twice"
    );
    all_at_once(&cx, &corpus(&cx)?).await
}

async fn c11_equal_names_always_block_each_other(cx: Cx) -> Check {
    let (a, b) = (cx.locks().await?, cx.locks().await?);
    for name in CORPUS.iter().step_by(3) {
        let guard = take_for(&cx, &a, name, cx.long_ttl()).await?;
        let second = b.named(String::from(*name))?.try_acquire().await?;
        if second.is_some() {
            return cx.not_alone(name, 2, format!("two clients hold the lock {name:?}"));
        }
        guard.release().await?;
    }
    Ok(())
}

async fn c11_prefix_and_name_are_kept_apart(cx: Cx) -> Check {
    all_at_once(&cx, &prefixes(&cx)?).await
}

async fn c11_long_names_are_not_cut(cx: Cx) -> Check {
    all_at_once(&cx, &long(&cx)?).await
}

async fn c11_names_that_look_like_ours_are_names(cx: Cx) -> Check {
    let backend = cx.backend().await?;
    let base = "order";
    let suffixes = [
        ":fence", ":queue", ":q", ":wait", ":waiters", ":owner", ":token", "/lock", "/queue", "/0",
        ":notify", ":channel", "\u{2028}", ".lock", "#fence", ":0", "{}", ":ttl", ":grace",
    ];
    let mut held = Vec::new();
    for suffix in suffixes {
        for name in [format!("{base}{suffix}"), format!("{{{base}}}{suffix}")] {
            let mut claim = match backend.claim(cx.request_for(&name, cx.long_ttl())?) {
                Ok(claim) => claim,
                // A store may refuse a name that it cannot tell from its own keys.
                Err(error) if error.kind() == ErrorKind::InvalidInput => continue,
                Err(error) => return Err(error.into()),
            };
            granted(&mut *claim).await?;
            held.push(claim);
        }
    }
    let mut last = None;
    for _ in 0..3 {
        let (mut claim, token) = cx.held(&backend, base).await?;
        ensure_exactly!(
            Some(token) > last,
            "with such names held, the token {token} does not rise over {last:?}"
        );
        let mut waiter = backend.claim(cx.request_for(base, cx.long_ttl())?.with_wait(true))?;
        let wait = waiter.try_acquire().await.demanded("a wait beside such names")?;
        if let Attempt::Granted { .. } = wait {
            return cx.not_alone(base, 1, "a waiter was granted a lock that is held");
        }
        claim.release().await?;
        until_granted(&cx, &mut *waiter).await?;
        let next = granted(&mut *waiter).await?;
        ensure_exactly!(next > token, "with such names held, {next} is given after {token}");
        last = Some(next);
        waiter.release().await?;
    }
    for mut claim in held {
        granted(&mut *claim).await?;
        claim.release().await?;
    }
    Ok(())
}

async fn c11_waiters_of_distinct_names_never_meet(cx: Cx) -> Check {
    let (a, b) = (cx.backend().await?, cx.backend().await?);
    let start = "x".repeat(LockKey::MAX_LEN - 1);
    let (x, y) = (format!("{start}a"), format!("{start}b"));
    for (one, two) in [("lock", "Lock"), ("a", "a "), ("a/b", "a_b"), ("á", "a\u{301}"), (&*x, &*y)]
    {
        let mut first = holds(&cx, &a, one).await?;
        let mut waits = queues(&cx, &b, one).await?;
        let mut second = holds(&cx, &a, two).await?;
        let mut next = queues(&cx, &b, two).await?;
        second.release().await?;
        until_granted(&cx, &mut *next).await?;
        busy(&cx, &mut *waits).await?;
        next.release().await?;
        first.release().await?;
        until_granted(&cx, &mut *waits).await?;
        waits.release().await?;
    }
    Ok(())
}

async fn c11_bad_names_are_refused(cx: Cx) -> Check {
    let locks = cx.locks().await?;
    let long = "x".repeat(LockKey::MAX_LEN + 1);
    let long_in_bytes = "é".repeat(LockKey::MAX_LEN / 2 + 1);
    for bad in ["", "a\nb", "a\0", "\t", "\u{7f}", "\u{85}", "\u{1f}", &long, &long_in_bytes] {
        let kind = error_kind(locks.named(bad), "a bad name")?;
        ensure!(kind == ErrorKind::InvalidInput, "the name {bad:?} is refused with {kind:?}");
    }
    Ok(())
}

async fn c11_a_lock_is_found_under_its_name(cx: Cx) -> Check {
    let (locks, other) = (cx.locks().await?, cx.locks().await?);
    let longest = longest_name();
    let names: BTreeSet<_> = CORPUS.iter().step_by(2).copied().chain([&*longest]).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take_for(&cx, &locks, name, cx.long_ttl()).await?);
    }
    let listed = other.list("").await?;
    let listed: Vec<_> = listed.iter().map(|info| info.key.name()).collect();
    let expected: Vec<_> = names.iter().copied().collect();
    ensure!(listed == expected, "the list shows {listed:?}, in order it is {expected:?}");
    for (name, guard) in names.iter().zip(&guards) {
        let Some(holder) = other.inspect(*name).await?.and_then(|info| info.holder) else {
            fail!("{name:?} is held, and an inspection shows nobody");
        };
        ensure!(
            holder.fence.is_none_or(|fence| Ok(fence) == guard.token().map_err(drop)),
            "inspecting {name:?} shows another lock"
        );
        let starting = other.list(name).await?;
        let starting: Vec<_> = starting.iter().map(|info| info.key.name()).collect();
        let expected: Vec<_> =
            names.iter().copied().filter(|other| other.starts_with(name)).collect();
        ensure!(
            starting == expected,
            "names that start with {name:?}: {starting:?}, not {expected:?}"
        );
    }
    for name in &names {
        let freed = other.force_release_any(*name).await?;
        ensure!(freed == Released::Freed, "{name:?} is held, and taking it away is {freed:?}");
    }
    drop(guards);
    Ok(())
}
