//! For tests of your own code.
pub use crate::clock::manual::ManualClock;
pub use crate::clock::tokio_clock::TokioClock;
pub use crate::memory::MemoryBackend;
