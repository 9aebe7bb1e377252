//! The random source.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// A source of random bytes: all owner ids and jitter come from here, so a test can replay a run.
pub trait Rng: Debug + Send + Sync + 'static {
    /// Fills `bytes`.
    ///
    /// # Errors
    ///
    /// If the source fails. No lock is claimed in that case, since its owner id would not be
    /// unique.
    fn fill(&self, bytes: &mut [u8]) -> Result<()>;
}

/// The operating system's generator. Nothing is cached, so a forked process or a restored machine
/// image never repeats an id.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRng;

impl Rng for OsRng {
    fn fill(&self, bytes: &mut [u8]) -> Result<()> {
        getrandom::fill(bytes).map_err(|error| {
            Error::new(ErrorKind::Internal, "the operating system returned no random bytes")
                .with_source(error)
        })
    }
}

/// A duration drawn uniformly from `0..limit`. If the source fails, half of the limit: jitter only
/// spreads load, and nothing breaks without it.
pub fn jitter(rng: &dyn Rng, limit: Duration) -> Duration {
    let mut bytes = [0; 4];
    match rng.fill(&mut bytes) {
        Ok(()) => limit.mul_f64(f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)),
        Err(_) => limit / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_below_its_limit() {
        for _ in 0..1000 {
            assert!(jitter(&OsRng, Duration::from_millis(7)) < Duration::from_millis(7));
        }
        assert_eq!(jitter(&OsRng, Duration::ZERO), Duration::ZERO);
    }

    /// Gives always this number, or fails.
    #[derive(Debug)]
    struct Always(Option<u32>);

    impl Rng for Always {
        fn fill(&self, bytes: &mut [u8]) -> Result<()> {
            let number = self.0.ok_or_else(|| Error::new(ErrorKind::Internal, "no chance"))?;
            bytes.copy_from_slice(&number.to_le_bytes());
            Ok(())
        }
    }

    #[test]
    fn jitter_is_a_uniform_part_of_its_limit() {
        let drawn = |number| jitter(&Always(number), Duration::from_secs(8)).as_secs_f64();
        assert_eq!([0, 1 << 30, 1 << 31].map(|number| drawn(Some(number))), [0.0, 2.0, 4.0]);
        assert!((7.9..8.0).contains(&drawn(Some(u32::MAX))));
        // By just one more it would be the limit itself.
        assert_eq!(
            jitter(&Always(Some(u32::MAX)), Duration::from_nanos(1 << 33)).as_nanos(),
            (1 << 33) - 2
        );
        assert_eq!(drawn(None), 4.0);
    }
}
