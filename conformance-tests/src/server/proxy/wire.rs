//! What has passed a proxy last, for those who read why a case has failed.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::rules::{Direction, Verdict};

/// So many pieces are kept, and so many bytes of each.
const KEPT: (usize, usize) = (20, 256);

/// The last pieces on all connections of a proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire(Arc<Mutex<VecDeque<Seen>>>);

#[derive(Debug)]
struct Seen {
    at: Instant,
    connection: u64,
    direction: Direction,
    verdict: Verdict,
    length: usize,
    begin: Vec<u8>,
}

impl Wire {
    pub(super) fn note(
        &self,
        connection: u64,
        direction: Direction,
        piece: &[u8],
        verdict: Verdict,
    ) {
        let begin = piece.iter().take(KEPT.1).copied().collect();
        let (at, length) = (Instant::now(), piece.len());
        let seen = Seen { at, connection, direction, verdict, length, begin };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.truncate(KEPT.0 - 1);
        all.push_front(seen);
    }

    /// The oldest first.
    pub(super) fn told(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().map(Seen::told).collect()
    }
}

impl Seen {
    fn told(&self) -> String {
        let Self { at, connection, direction, verdict, length, begin } = self;
        let direction = match direction {
            Direction::Requests => "request",
            Direction::Replies => "reply",
        };
        let (ago, fate) = (at.elapsed().as_millis(), verdict.told());
        let text: String = begin.iter().map(|byte| readable(*byte)).collect();
        format!(
            "{ago} ms before, connection {connection}, {direction} of {length} bytes{fate}: {text}"
        )
    }
}

/// Most protocols carry text between a few bytes of their own.
fn readable(byte: u8) -> char {
    if matches!(byte, b' '..=b'~') { char::from(byte) } else { '.' }
}

impl Verdict {
    /// What becomes of a piece that does not just pass.
    fn told(&self) -> String {
        let mut told = String::new();
        if !self.delay.is_zero() {
            let _ = write!(told, ", {:?} late", self.delay);
        }
        if self.lose {
            told += ", lost";
        }
        if self.cut {
            told += ", the last of its connection";
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_pieces_are_told_with_what_became_of_them() {
        let wire = Wire::default();
        for nth in 0..30 {
            let (delay, lose) = (Duration::from_millis(10 * (nth % 2)), nth == 29);
            let verdict = Verdict { delay, lose, cut: lose };
            wire.note(nth, Direction::Requests, format!("SET {nth}\r\n").as_bytes(), verdict);
        }
        let told = wire.told();
        assert_eq!(told.len(), KEPT.0);
        let without_time = |line: &str| line.split_once(", ").unwrap().1.to_owned();
        assert_eq!(without_time(&told[0]), "connection 10, request of 8 bytes: SET 10..");
        assert_eq!(
            without_time(told.last().unwrap()),
            "connection 29, request of 8 bytes, 10ms late, lost, the last of its connection: SET 29.."
        );
    }
}
