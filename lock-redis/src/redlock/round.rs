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

#[cfg(test)]
mod tests {
    use super::*;

    fn round(answers: Vec<Result<u8>>) -> Round<Result<u8>> {
        Round::new(
            answers.len(),
            answers.into_iter().enumerate().map(|(node, answer)| (node, async { answer })),
        )
    }

    fn failed(kind: ErrorKind) -> Result<u8> {
        Err(Error::new(kind, "why"))
    }

    #[tokio::test]
    async fn a_round_ends_with_what_is_wanted_or_with_the_last_answer() {
        let (denied, down) = (|| failed(ErrorKind::Denied), || failed(ErrorKind::Unavailable));
        assert_eq!(round(vec![Ok(1), Ok(1), Ok(1)]).collect(2, 2).await.unwrap(), [1, 1]);
        assert_eq!(round(vec![Ok(1), Ok(1), Ok(1)]).collect(2, 3).await.unwrap().len(), 3);
        assert_eq!(round(vec![Ok(1), down(), Ok(1)]).collect(2, 3).await.unwrap().len(), 2);
        for (answers, kind, text) in [
            (vec![Ok(1), down(), down()], ErrorKind::Unavailable, "1 of 3 nodes"),
            (vec![Ok(1), denied(), down()], ErrorKind::Unavailable, "2 are needed: why; why"),
            (vec![Ok(1), denied(), denied()], ErrorKind::Denied, "1 of 3 nodes"),
            (vec![denied(), denied(), denied()], ErrorKind::Denied, "0 of 3 nodes"),
        ] {
            let error = round(answers).collect(2, 3).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        let two_of_five = vec![denied(), denied(), down(), Ok(1), Ok(1)];
        let error = round(two_of_five).collect(3, 5).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "two more could still vote: {error}");
    }
}
