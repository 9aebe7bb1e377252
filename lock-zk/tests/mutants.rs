//! The test of the tests: mistakes that locks on ZooKeeper are made with, and what finds each.
//!
//! `RUSTFLAGS="--cfg distlock_mutants" cargo test -p lock-zk --test mutants`

use std::process::ExitCode;

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built("--cfg distlock_mutants")
}

#[cfg(distlock_mutants)]
fn main() -> ExitCode {
    built::main()
}

#[cfg(distlock_mutants)]
mod common;

#[cfg(distlock_mutants)]
mod built {
    use std::process::ExitCode;

    use conformance_tests::mutation::{Killer, Mutation};
    use lock_zk::mutants::{MUTANTS, VARIABLE};

    use crate::common::scenes::Seen;
    use crate::common::{scenes, session_scenes};

    pub(crate) fn main() -> ExitCode {
        let mutants = MUTANTS.iter().map(|mutant| mutant.name).collect();
        let killers: Vec<_> =
            MUTANTS.iter().map(|mutant| (mutant.name, Killer::Scene(mutant.killed_by))).collect();
        let mutation = Mutation { variable: VARIABLE, mutants, killers: &killers };
        mutation.main(|| panic!("no case of the suite is a killer"), play)
    }

    fn play(scene: &str) -> Seen {
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        macro_rules! scenes {
            ($($module:ident::$name:ident($($argument:expr)?),)*) => {
                match scene {
                    $(stringify!($name) => runtime.block_on($module::$name($($argument)?)),)*
                    other => panic!("there is no scene {other}"),
                }
            };
        }
        scenes! {
            scenes::fences_rise_over_a_new_queue(),
            scenes::a_node_of_an_old_session_is_not_trusted(),
            scenes::a_lost_reply_leaves_one_node(),
            scenes::a_hand_over_wakes_one_waiter(60),
            scenes::a_renewal_needs_the_leader(),
            scenes::a_server_that_is_behind_confirms_nothing(),
            scenes::a_read_prolongs_nothing(),
            scenes::a_server_that_is_behind_grants_nothing(),
            scenes::a_session_that_was_shortened_is_not_believed(),
            session_scenes::a_full_session_is_followed_by_another(),
            session_scenes::fences_rise_over_an_ensemble_without_its_data(),
            session_scenes::a_check_after_a_lost_reply_asks(),
        }
    }
}
