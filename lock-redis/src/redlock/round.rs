//! Requests to several nodes at once.

use lock_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

/// Requests to several nodes, each with the number of its node. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Round<T> {
    nodes: usize,
    asked: JoinSet<(usize, T)>,
}

impl<T: Send + 'static> Round<T> {
    pub(crate) fn new<F>(nodes: usize, questions: impl IntoIterator<Item = (usize, F)>) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        for (node, question) in questions {
            asked.spawn(async move { (node, question.await) });
        }
        Self { nodes, asked }
    }

    /// The next answer; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        loop {
            if let Ok(answer) = self.asked.join_next().await? {
                return Some(answer);
            }
        }
    }
}

impl<T: Send + 'static> Round<Result<T>> {
    /// Waits until as many nodes as are `wanted`, or all that can, have succeeded. Fewer than are
    /// `needed` are an error, which lists what went wrong.
    pub(crate) async fn collect(&mut self, needed: usize, wanted: usize) -> Result<Vec<T>> {
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        while answers.len() < wanted {
            match self.next().await {
                Some((_, Ok(answer))) => answers.push(answer),
                Some((_, Err(error))) => failures.push(error),
                None => break,
            }
        }
        if answers.len() >= needed {
            return Ok(answers);
        }
        let denied = failures.iter().filter(|error| error.kind() == ErrorKind::Denied).count();
        let hopeless = denied > self.nodes - needed;
        let list: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let text = format!(
            "{} of {} nodes answer and can be used, and {needed} are needed: {}",
            answers.len(),
            self.nodes,
            list.join("; ")
        );
        Err(Error::new(if hopeless { ErrorKind::Denied } else { ErrorKind::Unavailable }, text))
    }
}
