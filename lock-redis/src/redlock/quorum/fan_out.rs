//! Requests to several nodes at once.

use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error, ErrorKind, Result};
use tokio::task::JoinSet;

/// For how long a slow node is waited for at least, where the others suffice.
const MOMENT: Duration = Duration::from_millis(100);

/// Requests to several nodes, each with the number of its node. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct FanOut<T> {
    nodes: usize,
    asked: JoinSet<(usize, T)>,
}

impl<T: Send + 'static> FanOut<T> {
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

impl<T: Send + 'static> FanOut<Result<T>> {
    /// Waits until as many nodes as are `wanted`, or all that can, have succeeded. Fewer than are
    /// `needed` are an error, which lists what went wrong.
    pub(crate) async fn collect(&mut self, needed: usize, wanted: usize) -> Result<Vec<T>> {
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        while answers.len() < wanted && self.take(&mut answers, &mut failures).await {}
        self.end(needed, answers, failures)
    }

    /// Waits for all nodes; but once those that are `needed` have succeeded, and what they say `suffices`,
    /// only for as long again as they took, and [`MOMENT`] at least.
    pub(crate) async fn gather(
        &mut self,
        needed: usize,
        clock: &dyn Clock,
        suffices: impl Fn(&[T]) -> bool,
    ) -> Result<Vec<T>> {
        let begun = clock.now();
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        let mut end = ClockInstant::FAR_FUTURE;
        loop {
            let is_enough = answers.len() >= needed && suffices(&answers);
            if is_enough && end == ClockInstant::FAR_FUTURE {
                let now = clock.now();
                end = now + now.since(begun).max(MOMENT);
            }
            tokio::select! {
                more = self.take(&mut answers, &mut failures) => if !more { break },
                () = clock.sleep_until(end), if is_enough => break,
            }
        }
        self.end(needed, answers, failures)
    }

    /// Takes the next answer; `false` after the last one.
    async fn take(&mut self, answers: &mut Vec<T>, failures: &mut Vec<Error>) -> bool {
        match self.next().await {
            Some((_, Ok(answer))) => answers.push(answer),
            Some((_, Err(error))) => failures.push(error),
            None => return false,
        }
        true
    }

    fn end(&self, needed: usize, answers: Vec<T>, failures: Vec<Error>) -> Result<Vec<T>> {
        if answers.len() >= needed {
            return Ok(answers);
        }
        let lasting = failures.iter().filter_map(final_kind);
        let kind = decisive(lasting, self.nodes - needed).unwrap_or(ErrorKind::Unavailable);
        let list: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let text = format!(
            "{} of {} nodes answer and can be used, and {needed} are needed: {}",
            answers.len(),
            self.nodes,
            list.join("; ")
        );
        Err(Error::new(kind, text))
    }
}

/// The kind of a failure of one node that does not pass by itself.
pub(crate) fn final_kind(error: &Error) -> Option<ErrorKind> {
    (!error.is_retryable()).then(|| error.kind())
}

/// The first of the failures that do not pass by themselves, if they are more than can be spared: it is that of all.
pub(crate) fn decisive<T>(lasting: impl IntoIterator<Item = T>, spare: usize) -> Option<T> {
    let mut lasting = lasting.into_iter();
    let first = lasting.next()?;
    (lasting.count() >= spare).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(answers: Vec<Result<u8>>) -> FanOut<Result<u8>> {
        FanOut::new(
            answers.len(),
            answers.into_iter().enumerate().map(|(node, answer)| (node, async { answer })),
        )
    }

    fn failed(kind: ErrorKind) -> Result<u8> {
        Err(Error::new(kind, "why"))
    }

    /// The third node never answers.
    #[tokio::test]
    async fn a_silent_node_costs_a_moment_where_the_others_suffice() {
        let clock = lock_core::SystemClock::default();
        let round = || {
            FanOut::new(
                3,
                (0..3).map(|node| {
                    (node, async move {
                        if node == 2 {
                            tokio::time::sleep(Duration::from_secs(2)).await;
                        }
                        Ok(node)
                    })
                }),
            )
        };
        for (suffice, answered) in [(2, 2), (3, 3)] {
            let answers = round().gather(2, &clock, |answers| answers.len() >= suffice).await;
            assert_eq!(answers.unwrap().len(), answered);
        }
    }

    #[tokio::test]
    async fn a_round_ends_with_what_is_wanted_or_with_the_last_answer() {
        let (denied, down) = (|| failed(ErrorKind::Denied), || failed(ErrorKind::Unavailable));
        let store = || failed(ErrorKind::Store);
        assert_eq!(round(vec![Ok(1), Ok(1), Ok(1)]).collect(2, 2).await.unwrap(), [1, 1]);
        assert_eq!(round(vec![Ok(1), Ok(1), Ok(1)]).collect(2, 3).await.unwrap().len(), 3);
        assert_eq!(round(vec![Ok(1), down(), Ok(1)]).collect(2, 3).await.unwrap().len(), 2);
        for (answers, kind, text) in [
            (vec![Ok(1), down(), down()], ErrorKind::Unavailable, "1 of 3 nodes"),
            (vec![Ok(1), denied(), down()], ErrorKind::Unavailable, "2 are needed: why; why"),
            (vec![Ok(1), denied(), denied()], ErrorKind::Denied, "1 of 3 nodes"),
            (vec![denied(), denied(), denied()], ErrorKind::Denied, "0 of 3 nodes"),
            (vec![Ok(1), store(), store()], ErrorKind::Store, "1 of 3 nodes"),
            (vec![Ok(1), store(), down()], ErrorKind::Unavailable, "1 of 3 nodes"),
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
