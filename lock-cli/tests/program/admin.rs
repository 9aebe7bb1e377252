//! `status`, `list` and `release`.

use crate::bench::{Bench, SOON, finish};
use crate::watch::Watching;
use serde_json::Value;

#[test]
fn status_tells_who_holds_it() {
    let bench = Bench::new();
    bench.done(["status", "a"]).is(0).printing("\"a\" is free\n");
    bench.done(["status", "a", "--quiet"]).is(1);
    assert_eq!(bench.status("a")["held"], false);
    assert_eq!(bench.status("a")["holder"], Value::Null);

    let holder = bench.hold(
        "a",
        &["--label", "nightly\u{202e}"],
        "echo $DISTLOCK_FENCE $DISTLOCK_OWNER >facts; sleep 30",
    );
    let facts = bench.line("facts");
    let (fence, owner) = facts.split_once(' ').unwrap();
    let held = bench.done(["status", "a"]).is(0);
    for word in ["\"a\" is held by nightly\\u{202e}", fence, &owner[..8]] {
        assert!(held.stdout.contains(word), "{word}: {held:?}");
    }
    assert!(!held.stdout.contains(owner), "the whole owner id gives the lock away");
    let quiet = bench.done(["status", "a", "-q"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    let status = bench.status("a");
    assert_eq!((status["schema"].as_i64(), status["held"].as_bool()), (Some(1), Some(true)));
    assert_eq!(status["holder"]["label"], "nightly\u{202e}", "JSON has the very value");
    assert_eq!(status["holder"]["fence"].to_string(), fence);
    let left = status["holder"]["expires_in_ms"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&left), "{left}");
    assert!(status["holder"]["held_since"].as_str().unwrap().ends_with('Z'));
    holder.stop();
}

#[test]
fn list_shows_what_starts_with_a_prefix() {
    let bench = Bench::new();
    bench.done(["list"]).is(0).printing("");
    let names = ["shop/a", "shop/b", "shop_c", "%", "ärger"];
    let _holders = names.map(|name| bench.holding(name, &[]));
    let mut all = bench.held();
    all.sort();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(all, sorted);
    let shop = bench.done(["list", "shop/"]);
    let lines: Vec<_> = shop.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{shop:?}");
    assert!(lines[0].starts_with("NAME") && lines[0].contains("TIME LEFT"), "{shop:?}");
    assert!(lines[1].starts_with("shop/a") && lines[2].starts_with("shop/b"), "{shop:?}");
    let json: Value = serde_json::from_str(&bench.done(["list", "%", "--json"]).stdout).unwrap();
    assert_eq!(
        (json["schema"].as_i64(), json["locks"].as_array().map(Vec::len)),
        (Some(1), Some(1))
    );
    assert_eq!(json["locks"][0]["name"], "%");
}

#[test]
fn release_needs_force_and_a_yes() {
    let bench = Bench::new();
    let holder =
        bench.hold("a", &["--ttl", "2s", "--label", "h"], "echo $DISTLOCK_OWNER >owner; sleep 30");
    let owner = bench.line("owner");
    for (args, code, word) in [
        (&["release", "a"][..], 64, "--force"),
        (&["release", "a", "--force"], 64, "--yes"),
        (
            &["release", "a", "--force", "--yes", "--owner", "00000000"],
            75,
            "not held by owner 00000000",
        ),
    ] {
        bench.done(args).is(code).saying([word]);
        assert!(bench.is_held("a"), "{args:?} released it");
    }
    let fence = bench.status("a")["holder"]["fence"].as_u64().unwrap();
    let done =
        bench.done(["release", "a", "--force", "--yes", "--owner", &owner[..8], "--json"]).is(0);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (json["released"].as_bool(), json["holder"]["label"].as_str()),
        (Some(true), Some("h"))
    );
    let next = bench.done(["run", "a", "-n", "--", "sh", "-c", "echo $DISTLOCK_FENCE"]);
    assert!(next.stdout.trim().parse::<u64>().unwrap() > fence, "{next:?}");
    finish(holder, SOON).is(79);
    let free = bench.done(["release", "a", "--force", "--yes"]);
    assert_eq!((free.code, free.stdout.contains("free")), (Some(0), true), "{free:?}");
}

/// Another program has written it, and it never ends.
#[test]
fn a_lock_without_an_end_is_shown_and_released() {
    let bench = Bench::new();
    bench.done(["run", "a", "--", "true"]).is(0);
    drop(bench.execute("UPDATE distlock SET owner = 'worker-7', expires = 9223372036854775807"));
    for json in [&[][..], &["--json"]] {
        let done = |args: &[&str]| bench.done([args, json].concat());
        done(&["status", "a"]).is(0);
        done(&["list"]).is(0);
        bench.done([&["run", "a", "-n"], json, &["--", "true"]].concat()).is(75);
    }
    assert_eq!(bench.status("a")["holder"]["expires_at"], "9999-12-31T23:59:59.999Z");
    bench.done(["run", "a", "--wait", "500ms", "--", "true"]).is(75);
    let mut watching = Watching::start(&bench, &["a"]);
    assert_eq!(watching.next()["event"], "first");
    bench.done(["release", "a", "--force", "--yes", "--json"]).is(0);
    assert_eq!(watching.next()["event"], "freed");
}

#[test]
fn stores_tells_what_this_build_has() {
    let bench = Bench::new();
    let text = bench.done(["stores"]).is(0).stdout;
    let json: Value = serde_json::from_str(&bench.done(["stores", "--json"]).stdout).unwrap();
    let stores = json["stores"].as_array().unwrap();
    assert_eq!((json["schema"].as_i64(), stores.len()), (Some(1), 9));
    for store in stores {
        let [name, url] = ["name", "url"].map(|field| store[field].as_str().unwrap());
        assert!(text.lines().any(|l| l.starts_with(name) && l.contains(url)), "{name}: {text}");
        // A store of this build reports that there is no answer, or that the file cannot be
        // created.
        let address = url
            .replace("host[:", "host.invalid[:")
            .replace("sentinel[:", "sentinel.invalid[:")
            .replace(['[', ']'], "");
        let failed = bench.done(["status", "a", "--store", &address]);
        let missing = failed.stderr.contains("Enable the cargo feature");
        assert_eq!(store["built"] == true, !missing, "{name}: {failed:?}");
    }
}
