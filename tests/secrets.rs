//! No secret comes out: neither of the URLs that people get wrong, nor of servers that fail, in errors, in
//! `Debug`, in metrics, or in anything that this library and its drivers trace.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod guarded;

use std::error::Error as _;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use conformance_tests::server::Port;
use distlock::Error;
use lock_testkit::hostile::{Manner, Turncoat};
use lock_testkit::networked::Networked;
use metrics_util::debugging::DebuggingRecorder;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// No other text contains this by chance, and none of its letters has to be encoded.
const SECRET: &str = "s3nt1nel-0f-a-passw0rd";
/// The same with each of its letters encoded.
const ENCODED: &str = "%73%33%6e%74%31%6e%65%6c%2d%30%66%2d%61%2d%70%61%73%73%77%30%72%64";

/// Everything that was traced.
static TRACED: Mutex<String> = Mutex::new(String::new());

fn note(text: &str) {
    let mut traced = TRACED.lock().unwrap_or_else(PoisonError::into_inner);
    traced.push_str(text);
    traced.push('\n');
}

/// Takes everything at every level.
struct Trace;

struct Fields<'a>(&'a Metadata<'a>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        note(&format!("{} {} {field}={value:?}", self.0.target(), self.0.name()));
    }
}

impl Subscriber for Trace {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut Fields(span.metadata()));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        struct Values;
        impl Visit for Values {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                note(&format!("{field}={value:?}"));
            }
        }
        values.record(&mut Values);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(event.metadata()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_comes_out() {
    tracing::subscriber::set_global_default(Trace).unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    recorder.install().unwrap();
    std::panic::set_hook(Box::new(|panic| note(&panic.to_string())));

    let port = Port::reserve().unwrap();
    let mut refusing = JoinSet::new();
    for url in urls(&port) {
        refusing.spawn(async move { (refusal(&url).await, url) });
    }
    for (said, url) in refusing.join_all().await {
        assert!(!shows(&said), "{url}: {said}");
    }
    let mut playing = JoinSet::new();
    for store in Networked::ALL {
        playing.spawn(play(store));
    }
    let said = playing.join_all().await.concat();
    let _ = std::panic::take_hook();
    assert!(!shows(&said), "{}", lines_with_secrets(&said));
    let metrics = format!("{:?}", snapshots.snapshot().into_vec());
    assert!(metrics.contains("lock_acquire") && !shows(&metrics), "{metrics}");
    let traced = TRACED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(!shows(&traced), "{}", lines_with_secrets(&traced));
    // What the test would have seen.
    for target in ["distlock", "h2::", "sqlx"] {
        assert!(traced.contains(target), "nothing was traced by {target}");
    }
}

fn shows(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains(SECRET) || text.contains(ENCODED)
}

fn lines_with_secrets(text: &str) -> String {
    text.lines().filter(|line| shows(line)).take(5).collect::<Vec<_>>().join("\n")
}

/// What people get wrong in a URL, with a password in each of its places.
fn urls(nobody: &Port) -> Vec<String> {
    let at = format!("127.0.0.1:{nobody}");
    let mut urls = Vec::new();
    // The rest of the other URLs is a path, which has no place for a password.
    for kind in
        distlock::stores().iter().filter(|kind| !["memory", "sqlite"].contains(&kind.name()))
    {
        for scheme in kind.schemes().iter().filter(|scheme| **scheme != "redis+unix") {
            for secret in [SECRET, ENCODED] {
                urls.extend([
                    // Good, but nobody listens there.
                    format!("{scheme}://app:{secret}@{at}/x"),
                    format!("{scheme}://:{secret}@{at}/0"),
                    format!("{scheme}://app:{secret}@{at},{at}/x?lock_ttl=5s"),
                    // In the parameters.
                    format!("{scheme}://{at}/x?password={secret}"),
                    format!("{scheme}://{at}/x?sslpassword={secret}&user={secret}"),
                    format!("{scheme}://{at}/x?lock_ttl=5s&token={secret}"),
                    // Broken.
                    format!("{scheme}:app:{secret}@{at}/x"),
                    format!("{scheme}:/app:{secret}@{at}"),
                    format!("{scheme}://app:{secret}@{at}:{at}/x"),
                    format!("{scheme}://app:{secret}@h:port/x"),
                    format!("{scheme}://app:{secret}@/x"),
                    format!("{scheme}://app:{secret}@[::1/x"),
                    format!("{scheme}://app:{secret}/{at}"),
                    format!("{scheme}://app:x?{secret}@{at}/x"),
                    format!("{scheme}://app:x#{secret}@{at}/x"),
                    format!("{scheme}://app:x/{secret}@{at}/x"),
                    format!("{scheme}://app:%zz{secret}@{at}/x"),
                    format!("{scheme}://app:{secret}%@{at}/x"),
                    format!("{scheme}://app:a@{secret}@{at}/x"),
                    format!("{scheme}://a:{secret}@h,b:{secret}@{at}/x?lock_ttl=never"),
                ]);
            }
        }
    }
    for secret in [SECRET, ENCODED] {
        urls.extend([
            format!("nosuch://app:{secret}@{at}"),
            format!("//app:{secret}@{at}"),
            format!("app:{secret}@{at}"),
            format!("memory://app:{secret}@x?password={secret}"),
        ]);
    }
    urls
}

/// What a refused URL prints, and its builder.
async fn refusal(url: &str) -> String {
    let mut said = format!("{:?}", distlock::builder(url));
    match timeout(Duration::from_secs(8), distlock::connect(url)).await {
        Ok(Ok(locks)) => said += &format!("{locks:?}"),
        Ok(Err(error)) => said += &printed(&error),
        Err(_) => {}
    }
    said
}

/// An error with all its causes.
fn printed(error: &Error) -> String {
    let mut said = format!("{error} {error:?} {error:#?}\n");
    let mut cause = error.source();
    while let Some(below) = cause {
        said += &format!("{below} {below:?}\n");
        cause = below.source();
    }
    said
}

/// What a store prints whose URL has a password, while its server works and while it is hostile.
async fn play(store: Networked) -> String {
    let commands = guarded::rights(store).replace("secret", SECRET);
    let servers = guarded::start(store, &commands).await;
    let mut turncoats = Vec::new();
    for address in servers.addresses() {
        turncoats.push(Turncoat::start(address).await.unwrap());
    }
    let addresses: Vec<SocketAddr> = turncoats.iter().map(Turncoat::address).collect();
    let url = guarded::url(store, &addresses, SECRET) + "&lock_call_timeout=500ms";
    let locks = guarded::open(&url).await.unwrap();
    let mut said = format!("{locks:?} {:#?}\n", distlock::builder(&url));
    for manner in [Manner::closing(), Manner::silent(), Manner::noisy()] {
        let lock = locks.named(manner.name).unwrap();
        let guard = lock.acquire_timeout(Duration::from_secs(20)).await.unwrap();
        said += &format!("{guard:?} {lock:?} {:?}\n", guard.held());
        turncoats.iter().for_each(|server| server.turn(manner.clone()));
        let (tried, renewed, seen, opened) = tokio::join!(
            lock.try_acquire(),
            guard.renew(),
            locks.inspect(manner.name),
            distlock::connect(&url)
        );
        said += &tried.map_or_else(|error| printed(&error), |guard| format!("{guard:?}\n"));
        said += &renewed.map_or_else(|error| printed(&error), |_| String::new());
        said += &seen.map_or_else(|error| printed(&error), |seen| format!("{seen:?}\n"));
        said += &opened.map_or_else(|error| printed(&error), |locks| format!("{locks:?}\n"));
        said += &guard.release().await.map_or_else(|error| printed(&error), |_| String::new());
        turncoats.iter().for_each(Turncoat::repent);
    }
    // Another password than the server's, which says so.
    let wrong = guarded::url(store, &servers.addresses(), &format!("{SECRET}-not"));
    match distlock::connect(&wrong).await {
        Ok(locks) => said += &format!("{locks:?}\n"),
        Err(error) => said += &printed(&error),
    }
    said
}
