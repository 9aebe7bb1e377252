//! The lines between a worker and the stage.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as line};

use distlock::FencingToken;
use tokio::sync::{mpsc, oneshot};

use crate::protocol::{Answer, Order, Reads, Say};

type Waiting = HashMap<u64, oneshot::Sender<Answer>>;

/// Says things without waiting, and asks the registers. Threads read and write, so that a starved
/// runtime delays nothing that was said before.
#[derive(Clone, Debug)]
pub(super) struct Post {
    lines: line::Sender<Letter>,
    waiting: Arc<Mutex<Waiting>>,
    requests: Arc<AtomicU64>,
}

enum Letter {
    Say(Box<Say>),
    /// Answered when everything before it has been written.
    Flush(oneshot::Sender<()>),
}

impl Post {
    pub(super) fn open() -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (lines, letters) = line::channel();
        let (sender, orders) = mpsc::unbounded_channel();
        std::thread::spawn(move || write(&letters));
        std::thread::spawn(move || {
            for text in std::io::stdin().lock().lines().map_while(Result::ok) {
                if let Ok(order) = serde_json::from_str(&text)
                    && sender.send(order).is_err()
                {
                    return;
                }
            }
        });
        (Self { lines, waiting: Arc::default(), requests: Arc::default() }, orders)
    }

    pub(super) fn say(&self, say: Say) {
        // Without a writer nobody listens, and the process is about to end.
        let _ = self.lines.send(Letter::Say(Box::new(say)));
    }

    /// Waits until everything that was said has been written, so that it is heard whatever happens to this
    /// process.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        let _ = self.lines.send(Letter::Flush(done));
        let _ = flushed.await;
    }

    /// Reads all registers of a lock.
    pub(super) async fn read(&self, name: usize, fence: FencingToken) -> Option<Reads> {
        let request = self.requests.fetch_add(1, Relaxed);
        let say = Say::Read { request, name, fence: fence.get() };
        match self.ask(request, say).await {
            Some(Answer::Read(read)) => Some(read),
            _ => None,
        }
    }

    /// Writes all registers of a lock that have let it read.
    pub(super) async fn write(&self, name: usize, fence: FencingToken, read: Reads, added: u64) {
        let request = self.requests.fetch_add(1, Relaxed);
        self.ask(request, Say::Write { request, name, fence: fence.get(), read, added }).await;
    }

    async fn ask(&self, request: u64, say: Say) -> Option<Answer> {
        let (sender, answer) = oneshot::channel();
        self.waiting().insert(request, sender);
        self.say(say);
        answer.await.ok()
    }

    pub(super) fn answered(&self, request: u64, answer: Answer) {
        if let Some(waiting) = self.waiting().remove(&request) {
            let _ = waiting.send(answer);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(letters: &line::Receiver<Letter>) {
    let mut out = std::io::stdout().lock();
    while let Ok(letter) = letters.recv() {
        match letter {
            Letter::Say(say) => {
                let written = serde_json::to_writer(&mut out, &say).map_err(Into::into);
                if written.and_then(|()| out.write_all(b"\n")).is_err() {
                    return;
                }
            }
            Letter::Flush(done) => {
                let _ = out.flush();
                let _ = done.send(());
            }
        }
    }
}
