//! Requests to all nodes at once.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// One request under way.
pub(crate) type Request<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests under way, each with the number of its node. Dropping it takes nothing back that was
/// sent.
pub(crate) struct Fanout<T> {
    pending: Vec<(usize, Request<T>)>,
    answered: VecDeque<(usize, T)>,
}

impl<T> fmt::Debug for Fanout<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pending.iter().map(|(node, _)| node)).finish()
    }
}

impl<T> Default for Fanout<T> {
    fn default() -> Self {
        Self { pending: Vec::new(), answered: VecDeque::new() }
    }
}

impl<T> Fanout<T> {
    pub(crate) fn push(&mut self, node: usize, request: impl Future<Output = T> + Send + 'static) {
        self.pending.push((node, Box::pin(request)));
    }

    /// Goes on with what is under way in `other`.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.answered.extend(other.answered);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.answered.is_empty()
    }

    /// The nodes whose answers are still to come.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        self.pending.iter().map(|(node, _)| *node).collect()
    }

    /// The next answer, with the number of its node; never ready if nothing is under way. Every
    /// request is polled before an answer is returned, so that all have been sent by then.
    pub(crate) async fn next(&mut self) -> (usize, T) {
        poll_fn(|context| {
            let Self { pending, answered } = self;
            pending.retain_mut(|(node, request)| match request.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    answered.push_back((*node, answer));
                    false
                }
                Poll::Pending => true,
            });
            answered.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_request_is_sent_before_the_first_answer() {
        let (sent, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let mut fanout = Fanout::default();
        for node in 0..3 {
            let sent = sent.clone();
            fanout.push(node, async move {
                let _ = sent.send(node);
                if node == 2 {
                    std::future::pending::<()>().await;
                }
                node * 10
            });
        }
        assert_eq!(fanout.next().await, (0, 0));
        for node in 0..3 {
            assert_eq!(seen.try_recv(), Ok(node));
        }
        assert_eq!(fanout.next().await, (1, 10));
        assert!(!fanout.is_empty(), "the third is still under way");
    }
}
