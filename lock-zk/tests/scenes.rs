//! Each scene on the store as it is. `tests/mutants.rs` plays those with a mistake that they find.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use common::{look_scenes, scenes, session_scenes};

macro_rules! play {
    ($($module:ident::$name:ident($($argument:expr)?),)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            // Its words begin a line: nothing excuses what is violated.
            let seen = $module::$name($($argument)?).await;
            assert!(seen.is_ok(), "{}", seen.unwrap_err());
        }
    )*};
}

common::all_scenes!(play);
