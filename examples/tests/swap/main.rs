//! One test program, compiled once: every example on every store, changing only the URL.
//!
//! A trial is an example on a store, such as `redis::tasks`, and is run by starting the example's
//! own programs: `cargo test -p distlock-examples --all-features --test swap -- redis`.

mod browser;
mod call;
mod edit_lock;
mod leader;
mod migrate;
mod programs;
mod requests;
mod stock;
mod stores;
mod tasks;
mod web_driver;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};

use stores::Store;

/// How an example is tested on a store.
type Works = fn(&Store);

const EXAMPLES: &[(&str, Works)] = &[
    ("edit_lock", edit_lock::works),
    ("tasks", tasks::works),
    ("stock", stock::works),
    ("leader", leader::works),
    ("call", call::works),
    ("migrate", migrate::works),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They mostly wait for a ttl.
    arguments.test_threads = arguments.test_threads.or(Some(6));
    let mut trials = Vec::new();
    for (name, start) in stores::STORES {
        // Started by the first of its trials, and stopped after the last.
        let store = Arc::new(OnceLock::new());
        for (example, works) in EXAMPLES {
            let store = Arc::clone(&store);
            trials.push(Trial::test(format!("{name}::{example}"), move || {
                let store = store.get_or_init(|| start().map_err(|why| why.to_string()));
                works(store.as_ref().map_err(Failed::from)?);
                Ok(())
            }));
        }
    }
    // The page does not know the store.
    trials.push(Trial::test("browser", || {
        browser::works(&stores::sqlite().map_err(|why| why.to_string())?);
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}
