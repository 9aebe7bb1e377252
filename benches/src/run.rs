//! Measures what was asked for.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::Done;
use crate::args::RunArgs;
use crate::client::Library;
use crate::machine::Machine;
use crate::page;
use crate::parts::{Bench, Plan};
use crate::results::{Part, Results, Row};
use crate::stores::{Store, Subject};

/// What is measured of one store.
#[derive(Clone)]
struct Wanted {
    parts: Vec<Part>,
    library: String,
    plan: Plan,
}

pub(crate) async fn run(args: RunArgs) -> Done {
    let seconds = args.seconds.unwrap_or(if args.short { 0.5 } else { 10.0 });
    let plan = if args.short { Plan::short } else { Plan::full };
    let wanted = Wanted {
        parts: all_or(args.part),
        library: args.library.unwrap_or_default(),
        plan: plan(Duration::from_secs_f64(seconds)),
    };
    let mut results = Results { machine: Machine::here(args.short)?, rows: Vec::new() };
    let mut stores = JoinSet::new();
    for store in all_or(args.store) {
        stores.spawn(measure(store, wanted.clone()));
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

async fn measure(store: Store, wanted: Wanted) -> Done<(String, Vec<Row>)> {
    let (mut version, mut rows) = (String::new(), Vec::new());
    let mut servers: Option<(usize, Box<dyn Subject>)> = None;
    for &part in &wanted.parts {
        for library in Library::on(store) {
            if !library.name().starts_with(&wanted.library) || !part.is_for(store, library) {
                continue;
            }
            eprintln!("{}: {part:?}, {}", store.name(), library.name());
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
    }
    Ok((version, rows))
}
