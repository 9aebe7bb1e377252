//! The store in memory, beside a mutex of Tokio: what a keeper costs at least is a task that is
//! asked over a channel.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Floor, Subject, Usage};
use crate::Done;
use crate::process::now;

pub(super) struct Memory {
    url: String,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { url: format!("memory://bench{}", now()) }
    }
}

#[async_trait]
impl Subject for Memory {
    fn url(&self) -> String {
        self.url.clone()
    }

    async fn version(&mut self) -> Done<String> {
        Ok("in this process".to_owned())
    }

    async fn usage(&mut self) -> Done<Usage> {
        Ok(Usage::default())
    }
}

#[derive(Default)]
pub(super) struct MemoryFloor {
    mutex: Arc<Mutex<()>>,
    holder: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

#[async_trait]
impl Floor for MemoryFloor {
    async fn acquire(&mut self) -> Done {
        let (granted, is_granted) = oneshot::channel();
        let (release, is_released) = oneshot::channel();
        let mutex = Arc::clone(&self.mutex);
        let holder = tokio::spawn(async move {
            let _guard = mutex.lock().await;
            let _ = granted.send(());
            let _ = is_released.await;
        });
        self.holder = Some((release, holder));
        Ok(is_granted.await?)
    }

    async fn release(&mut self) -> Done {
        let (release, holder) = self.holder.take().ok_or("not held")?;
        let _ = release.send(());
        Ok(holder.await?)
    }

    async fn hand_over(&mut self) -> Done<Duration> {
        let guard = Arc::clone(&self.mutex).lock_owned().await;
        let mutex = Arc::clone(&self.mutex);
        let waiter = tokio::spawn(async move {
            let _guard = mutex.lock().await;
            Instant::now()
        });
        // Until it waits.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        drop(guard);
        Ok(waiter.await?.saturating_duration_since(start))
    }
}
