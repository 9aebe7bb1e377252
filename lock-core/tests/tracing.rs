//! What a tracing subscriber sees of a lock's life.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::{ManualClock, TokioClock};
use lock_core::{Clock, Locks, LostReason};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_core::span::Current;

/// Writes down, in order: spans, their fields, their ends, and events.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    spans: Vec<&'static Metadata<'static>>,
    entered: Vec<span::Id>,
    notes: Vec<String>,
}

impl Notes {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "distlock" || metadata.name() == "request"
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut seen = self.seen();
        seen.spans.push(attributes.metadata());
        let id = seen.spans.len() as u64;
        let mut text = Text(format!("{id} opens {}", attributes.metadata().name()));
        attributes.record(&mut text);
        seen.notes.push(text.0);
        span::Id::from_u64(id)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(format!("{} learns", id.into_u64()));
        values.record(&mut text);
        self.seen().notes.push(text.0);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, id: &span::Id) {
        self.seen().entered.push(id.clone());
    }

    fn exit(&self, _: &span::Id) {
        self.seen().entered.pop();
    }

    fn current_span(&self) -> Current {
        let seen = self.seen();
        let Some(id) = seen.entered.last() else { return Current::none() };
        Current::new(id.clone(), seen.spans[usize::try_from(id.into_u64()).unwrap() - 1])
    }

    fn try_close(&self, id: span::Id) -> bool {
        self.seen().notes.push(format!("{} closes", id.into_u64()));
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.seen().notes.push(text.0);
    }
}

/// The whole process stood still, so the holder sees the end of its lease before any task of the library does.
#[test]
fn a_loss_that_the_holder_sees_first_is_told_once() {
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let clock = ManualClock::default();
            let (_store, locks) = lock_core::testing::locks_on(clock.clone());
            let lock = locks.named("order:42").unwrap().ttl(Duration::from_secs(9));
            let guard = lock.acquire().await.unwrap();
            clock.advance(Duration::from_secs(10));
            assert!(guard.token().is_err());
            assert_eq!(guard.lost().await, LostReason::Expired);
            // The store says so, too, later.
            assert!(guard.renew().await.is_err());
        });
    });
    let notes = &notes.seen().notes;
    assert_eq!(notes.iter().filter(|note| note.contains("message=lost")).count(), 1, "{notes:#?}");
}

#[test]
fn a_life_of_a_lock_is_one_span() {
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let clock = TokioClock::default();
            let store = MemoryBackend::queued().with_clock(clock);
            let locks = Locks::builder(store).clock(clock).prefix("app").build().unwrap();
            let lock = locks.named("order:42").unwrap().ttl(Duration::from_secs(9));
            let guard = lock.acquire().await.unwrap();
            clock.sleep(Duration::from_secs(4)).await;
            guard.release().await.unwrap();
            locks.close(Duration::from_secs(1)).await.unwrap();
        });
    });
    let notes = &notes.seen().notes;
    let at = |what: &str| {
        let at = notes.iter().position(|note| note.contains(what));
        at.unwrap_or_else(|| panic!("{what}: {notes:#?}"))
    };
    let opens = at("1 opens lock lock.name=\"order:42\" lock.backend=\"memory\"");
    let (learns, held) = (at("1 learns lock.fence=1"), at("message=held"));
    let released = at("message=released");
    assert!(opens < learns && learns < held && held < released, "{notes:#?}");
    // A handle to the span that is dropped earlier is a reference less, not its end.
    assert_eq!(notes.last().unwrap(), "1 closes", "{notes:#?}");
}
