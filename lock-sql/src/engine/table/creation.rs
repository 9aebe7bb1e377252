//! Making sure that the table exists, and is ours.
//!
//! Preparing our statements shows whether the columns exist and whether we have the rights. The
//! rest is queried: whether it is a table, its key, and how names are compared.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::{Error, ErrorKind};

use crate::engine::table::lock_table::StatementName;
use crate::engine::wire::driver::SqlDriver;
use crate::engine::wire::errors::StatementFailure;
use crate::engine::wire::statement::Query;

/// How often the table is looked up while other clients create it.
const TRIES: usize = 10;

/// Runs once for all connections, and again if the table has gone. Any number of processes may do
/// this at the same time. True if this call ran it.
pub(crate) async fn ensure_once<D: SqlDriver>(
    driver: &D,
    connection: &mut D::Connection,
) -> Result<bool, StatementFailure> {
    if driver.table().checked.load(Ordering::Acquire) {
        return Ok(false);
    }
    ensure(driver, connection).await?;
    driver.table().checked.store(true, Ordering::Release);
    Ok(true)
}

pub(crate) async fn ensure<D: SqlDriver>(
    driver: &D,
    connection: &mut D::Connection,
) -> Result<(), StatementFailure> {
    driver.check_server(connection).await?;
    let table = driver.table();
    let mut tries = 0;
    loop {
        let rows = driver.ask(connection, table.look.bind(&table.values())).await?;
        match rows.first() {
            Some(row) => match row.optional_text(0)? {
                Some(fault) => return Err(table.names.other_shape(fault).into()),
                None => break,
            },
            None if table.stays_gone.load(Ordering::Acquire) => return Err(table.names.gone()),
            None if !table.may_create => {
                return Err(table.names.no_table("lock_create_table=false").into());
            }
            // The right to create a table does not include the right to read it.
            None if tries == TRIES => return Err(no_rights(driver).into()),
            None => create(driver, connection).await?,
        }
        tries += 1;
    }
    for (name, size, statement) in &table.statements {
        // Each once, in its smallest size. The number of dead rows is good to know, and not needed.
        if *name == StatementName::DeadRows || *size != name.sizes()[0] {
            continue;
        }
        let proof = driver.explain(connection, statement).await;
        proof.map_err(|error| refused(driver, error))?;
    }
    Ok(())
}

async fn create<D: SqlDriver>(
    driver: &D,
    connection: &mut D::Connection,
) -> Result<(), StatementFailure> {
    let table = driver.table();
    let create = Query::new(table.names.create.as_str(), Vec::new());
    let Err(error) = driver.run(connection, create).await else { return Ok(()) };
    let code = driver.code(&error).unwrap_or_default();
    let [forbidden, races] = table.creating;
    if forbidden.contains(&&*code) {
        let why = "this user may not create it, or has no schema for it";
        return Err(table.names.no_table(why).with_source(error).into());
    }
    if !races.contains(&&*code) {
        return Err(driver.failure(error, false));
    }
    // Another client was creating it: IF NOT EXISTS does not cover that.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

fn no_rights(driver: &impl SqlDriver) -> Error {
    let names = &driver.table().names;
    let text = format!("this user has no rights on {}: {}", names.table, names.grant);
    Error::new(ErrorKind::Denied, text)
}

/// The database's own message says best what is missing.
fn refused(driver: &impl SqlDriver, error: sqlx::Error) -> StatementFailure {
    let words = error.as_database_error().map(|error| error.message().to_owned());
    let failure = driver.failure(error, false);
    match words {
        Some(words) if failure.error.kind() == ErrorKind::Store => {
            driver.table().names.other_shape(&words).with_source(failure.error).into()
        }
        _ => failure,
    }
}
