//! Making sure that the table exists, and is ours.
//!
//! Preparing our statements shows whether the columns exist and whether we have the rights. The
//! rest is queried: whether it is a table, its key, and how names are compared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{Error, ErrorKind};

use super::dialect::Driver;
use super::error::Failure;
use super::statement::{Places, Query, Statement, Values};
use super::table::TableName;

/// How often the table is looked up while other clients create it.
const TRIES: usize = 10;

/// The table to look for.
#[derive(Debug)]
pub(crate) struct Schema {
    /// As the database looks it up.
    table: String,
    create_table: bool,
    /// table → what is wrong with it, or NULL. No row if it does not exist.
    look: Statement,
    /// The codes that mean that we may not create it, and that another client is creating it.
    codes: [&'static [&'static str]; 2],
    /// It was found, and is ours.
    checked: AtomicBool,
}

impl Schema {
    pub(crate) fn new(
        table: &TableName,
        create_table: bool,
        (style, look): (Places, &str),
        codes: [&'static [&'static str]; 2],
    ) -> Self {
        let table = match style {
            Places::Dollars => table.quoted(),
            _ => table.as_str().to_owned(),
        };
        let look = Statement::new(style, 0, look);
        Self { table, create_table, look, codes, checked: AtomicBool::new(false) }
    }

    pub(crate) fn table(&self) -> Values {
        Values::default().with("table", &*self.table)
    }

    /// The next connection looks for the table again.
    pub(crate) fn look_again(&self) {
        self.checked.store(false, Ordering::Release);
    }

    /// Runs once for all connections, and again after [`look_again`](Self::look_again). Any number
    /// of processes may do this at the same time. True if this call ran it.
    pub(crate) async fn ensure_once<D: Driver>(
        &self,
        driver: &D,
        connection: &mut D::Connection,
    ) -> Result<bool, Failure> {
        if self.checked.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.ensure(driver, connection).await?;
        self.checked.store(true, Ordering::Release);
        Ok(true)
    }

    pub(crate) async fn ensure<D: Driver>(
        &self,
        driver: &D,
        connection: &mut D::Connection,
    ) -> Result<(), Failure> {
        driver.check_server(connection).await?;
        let names = driver.names();
        let mut tries = 0;
        loop {
            let rows = driver.ask(connection, self.look.bind(&self.table())).await?;
            match rows.first() {
                Some(row) => match row.optional_text(0)? {
                    Some(fault) => return Err(names.other_shape(fault).into()),
                    None => break,
                },
                None if !self.create_table => {
                    return Err(names.no_table("lock_create_table=false").into());
                }
                // The right to create a table does not include the right to read it.
                None if tries == TRIES => return Err(self.no_rights(driver).into()),
                None => self.create(driver, connection).await?,
            }
            tries += 1;
        }
        for statement in driver.statements() {
            let proof = driver.prove(connection, statement).await;
            proof.map_err(|error| Self::refused(driver, error))?;
        }
        Ok(())
    }

    async fn create<D: Driver>(
        &self,
        driver: &D,
        connection: &mut D::Connection,
    ) -> Result<(), Failure> {
        let names = driver.names();
        let create = Query { sql: names.create.as_str().into(), values: Vec::new() };
        let Err(error) = driver.run(connection, create).await else { return Ok(()) };
        let code = driver.code(&error).unwrap_or_default();
        let [forbidden, races] = self.codes;
        if forbidden.contains(&&*code) {
            let refused = names.no_table("this user may not create it, or has no schema for it");
            return Err(refused.with_source(error).into());
        }
        if !races.contains(&&*code) {
            return Err(driver.failure(error, false));
        }
        // Another client was creating it: IF NOT EXISTS does not cover that.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }

    fn no_rights<D: Driver>(&self, driver: &D) -> Error {
        let names = driver.names();
        let text = format!("this user has no rights on {}: {}", names.table, names.grant);
        Error::new(ErrorKind::Denied, text)
    }

    /// The database's own message says best what is missing.
    fn refused<D: Driver>(driver: &D, error: sqlx::Error) -> Failure {
        let words = error.as_database_error().map(|error| error.message().to_owned());
        let failure = driver.failure(error, false);
        match words {
            Some(words) if failure.error.kind() == ErrorKind::Store => {
                driver.names().other_shape(&words).with_source(failure.error).into()
            }
            _ => failure,
        }
    }
}
