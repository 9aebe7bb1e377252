//! - `servers` — real servers, each for one test
//! - `networked.rs` — every store that is reached over a network
//! - `scenes.rs` — scenarios that several stores run
//! - `hostile` — servers of ill will
//! - `preload` — a full disk, and other things that a kernel can do to a program
//! - `fuzz.rs` — a saved corpus, mutated
//! - `hammer.rs` — clients that take one lock in a loop
//! - `golden.rs` — what a store holds, beside a file
//! - `certificates.rs` — for servers with TLS
//! - `turns.rs` — tasks that take a lock in turn
//! - `usage.rs` — what a process has used
//! - `warnings.rs` — the library's warnings
//!
#![doc = include_str!("../README.md")]
#![allow(
    clippy::missing_errors_doc,
    reason = "an error says what is missing or broken, and makes the test fail"
)]

/// As `assert!`, of two holders and of fences. `./test.sh` knows it by its first word, and excuses it by no slow machine and no
/// later pass.
#[macro_export]
macro_rules! assert_exactly {
    ($holds:expr, $($seen:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            ::std::panic!("violated: {}", ::std::format_args!($($seen)+));
        }
    }};
}

pub mod certificates;
pub mod fuzz;
pub mod golden;
pub mod hammer;
pub mod hostile;
pub mod networked;
pub mod preload;
pub mod scenes;
pub mod servers;
pub mod turns;
pub mod usage;
pub mod warnings;
