//! What a driver makes of a reply that no database sends.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Drives `work`. A driver that cannot read a reply may panic instead of saying so, as that of MySQL does on
/// a packet without content: then the connection is of no use any more, but the program is.
pub(crate) async fn shielded<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        // What it leaves behind is dropped: the connection that it has used.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(sqlx::Error::Protocol("the driver cannot read the reply".to_owned())))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let broken = async {
            tokio::task::yield_now().await;
            assert!(std::env::args().count() > 100_000, "a panic of the driver");
            Ok(())
        };
        assert!(matches!(shielded(broken).await, Err(sqlx::Error::Protocol(_))));
        assert_eq!(shielded(async { Ok(7) }).await.unwrap(), 7);
    }
}
