//! Times that were measured, and what is told of them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::Done;

/// Times, to three digits.
#[derive(Debug)]
pub(crate) struct Samples(Histogram<u64>);

/// What is told of many times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Samples {
    pub(crate) fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are allowed"))
    }

    pub(crate) fn add(&mut self, time: Duration) {
        self.add_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add_nanos(&mut self, time: u64) {
        self.0 += time;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// `None` without any time.
    pub(crate) fn spread(&self) -> Option<Spread> {
        let at = |quantile| self.0.value_at_quantile(quantile);
        (!self.0.is_empty()).then(|| Spread {
            count: self.0.len(),
            p50: at(0.5),
            p99: at(0.99),
            max: self.0.max(),
        })
    }
}

/// How long a step takes, with its result.
pub(crate) async fn timed<T>(step: impl Future<Output = Done<T>>) -> Done<(Duration, T)> {
    let start = Instant::now();
    let result = step.await?;
    Ok((start.elapsed(), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_what_was_added() {
        let mut samples = Samples::new();
        assert_eq!(samples.spread(), None);
        (1..=100).for_each(|time| samples.add(Duration::from_nanos(time)));
        assert_eq!(samples.spread(), Some(Spread { count: 100, p50: 50, p99: 99, max: 100 }));
    }
}
