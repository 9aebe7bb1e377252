//! Mutation tests: known mistakes of locks on ZooKeeper, and the scene that finds each.
//!
//! `RUSTFLAGS="--cfg distlock_mutants" cargo test -p lock-zk --test mutants`

use std::process::ExitCode;

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built()
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

    use conformance_tests::mutation;
    use lock_zk::mutants::MUTANTS;

    use crate::common::scenes::Seen;
    use crate::common::{all_scenes, look_scenes, scenes, session_scenes};

    macro_rules! play {
        ($($module:ident::$name:ident($($argument:expr)?),)*) => {
            fn play(scene: &str) -> Seen {
                let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
                match scene {
                    $(stringify!($name) => runtime.block_on($module::$name($($argument)?)),)*
                    other => panic!("there is no scene {other}"),
                }
            }
        };
    }
    all_scenes!(play);

    pub(crate) fn main() -> ExitCode {
        let suite = || panic!("no case of the suite is a killer");
        mutation::main(MUTANTS.iter().copied(), suite, play)
    }
}
