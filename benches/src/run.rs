//! Measures what was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::Done;
use crate::args::RunArgs;
use crate::client::Library;
use crate::machine::Machine;
use crate::page;
use crate::parts::{Bench, Plan};
use crate::process::now;
use crate::results::{Part, Results, Row};
use crate::stores::{Store, Subject};

/// What is measured of each store.
#[derive(Clone)]
struct Wanted {
    parts: Vec<Part>,
    library: String,
    plan: Plan,
}

impl Wanted {
    /// What is measured of this store, in this order.
    fn of(&self, store: Store) -> Vec<(Part, Library)> {
        let each =
            |&part: &Part| Library::on(store).into_iter().map(move |library| (part, library));
        let mut all: Vec<_> = self.parts.iter().flat_map(each).collect();
        all.retain(|&(part, library)| {
            library.name().starts_with(&self.library) && part.is_for(store, library)
        });
        all
    }
}

/// How far a run has come.
struct Progress {
    all: usize,
    begun: AtomicUsize,
    since: u64,
}

impl Progress {
    fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, begun: AtomicUsize::new(0), since: now() })
    }

    fn begins(&self, store: Store, part: Part, library: Library) {
        let before = self.begun.fetch_add(1, Relaxed);
        let left = time_left(Duration::from_nanos(now() - self.since), before, self.all);
        let (all, title) = (self.all, part.title().to_lowercase());
        eprintln!("[{}/{all}{left}] {}, {}: {title}", before + 1, store.name(), library.name());
    }
}

/// How long the rest takes, if it takes as long as what is done.
fn time_left(elapsed: Duration, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let left = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
    format!(", {:.0} min left", (left / 60.0).ceil())
}

pub(crate) async fn run(args: RunArgs) -> Done {
    let seconds = args.seconds.unwrap_or(if args.short { 0.2 } else { 10.0 });
    let plan = if args.short { Plan::short } else { Plan::full };
    let wanted = Wanted {
        parts: all_or(args.part),
        library: args.library.unwrap_or_default(),
        plan: plan(Duration::from_secs_f64(seconds)),
    };
    let all = all_or(args.store);
    let progress = Progress::new(all.iter().map(|store| wanted.of(*store).len()).sum());
    let mut results = Results { machine: Machine::here(args.short)?, rows: Vec::new() };
    let mut stores = JoinSet::new();
    for store in all {
        stores.spawn(measure(store, wanted.clone(), Arc::clone(&progress)));
        if !args.short {
            collect(&mut stores, &mut results).await?;
        }
    }
    collect(&mut stores, &mut results).await?;
    results.rows.sort_by_key(|row| (row.part, row.store));
    print!("{}", page::tables(&results));
    if let Some(file) = args.json {
        std::fs::write(file, serde_json::to_string_pretty(&results)?)?;
    }
    // That a peer cannot do something is a result.
    let failed =
        |row: &&Row| row.failed.is_some() && row.library.starts_with(Library::Distlock.name());
    match results.rows.iter().filter(failed).count() {
        0 if results.rows.is_empty() => Err("nothing is measured by this choice".into()),
        0 => Ok(()),
        failed => Err(format!("{failed} parts have failed: see their rows").into()),
    }
}

fn all_or<T: clap::ValueEnum>(wanted: Vec<T>) -> Vec<T> {
    if wanted.is_empty() { T::value_variants().to_vec() } else { wanted }
}

async fn collect(stores: &mut JoinSet<Done<(String, Vec<Row>)>>, results: &mut Results) -> Done {
    while let Some(store) = stores.join_next().await {
        let (version, rows) = store??;
        results.machine.servers.insert(version);
        results.rows.extend(rows);
    }
    Ok(())
}

async fn measure(
    store: Store,
    wanted: Wanted,
    progress: Arc<Progress>,
) -> Done<(String, Vec<Row>)> {
    let (mut version, mut rows) = (String::new(), Vec::new());
    let mut servers: Option<(usize, Box<dyn Subject>)> = None;
    for (part, library) in wanted.of(store) {
        progress.begins(store, part, library);
        let (plan, members) = (&wanted.plan, part.members());
        servers = servers.filter(|(number, _)| !plan.fresh && *number == members);
        let (_, subject) = match &mut servers {
            Some(servers) => servers,
            none => none.insert((members, store.start(members).await?)),
        };
        version = subject.version().await?;
        let mut bench = Bench { part, store, library, plan, subject: &mut **subject };
        match bench.run().await {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                let failed = Some(error.to_string());
                rows.push(Row { failed, ..Row::new(part, store, library.name(), "failed") });
            }
        }
    }
    Ok((version, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_said_to_take_as_long_as_what_is_done() {
        assert_eq!(time_left(Duration::from_secs(60), 0, 10), "");
        assert_eq!(time_left(Duration::from_secs(60), 2, 10), ", 4 min left");
        assert_eq!(time_left(Duration::from_secs(61), 1, 2), ", 2 min left");
    }
}
