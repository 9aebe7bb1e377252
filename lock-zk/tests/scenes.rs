//! Each scene on the store as it is. `tests/mutants.rs` plays those with a mistake that they find.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use common::{scenes, session_scenes};

macro_rules! play {
    ($($module:ident::$name:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $module::$name().await.unwrap();
        }
    )*};
}

play! {
    scenes::fences_rise_over_a_new_queue,
    scenes::a_node_of_an_old_session_is_not_trusted,
    scenes::a_session_that_was_shortened_is_not_believed,
    scenes::a_renewal_needs_the_leader,
    scenes::a_server_that_is_behind_confirms_nothing,
    scenes::a_server_that_is_behind_grants_nothing,
    scenes::a_read_prolongs_nothing,
    scenes::a_lost_reply_leaves_one_node,
    session_scenes::a_full_session_is_followed_by_another,
    session_scenes::fences_rise_over_an_ensemble_without_its_data,
    session_scenes::a_check_after_a_lost_reply_asks,
    session_scenes::a_reconnect_keeps_a_session_that_watches_much,
}
