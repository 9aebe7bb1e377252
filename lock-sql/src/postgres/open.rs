//! Opening a connection, and making sure that it has our table.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::kit::versions::POSTGRES;
use lock_core::{Error, ErrorKind, Result};
use sqlx::postgres::{PgConnectOptions, PgListener, PgRow};
use sqlx::{Acquire, AssertSqlSafe, ConnectOptions, Executor, PgConnection, Row};

use super::config::{Pooler, PostgresTarget, endpoint};
use super::error::{Failure, Place, code};
use super::listener;
use super::value::{Value, inline};
use crate::config::SqlConfig;
use crate::statements::postgres;

/// How often three connections look for a pooler.
const ROUNDS: usize = 5;

/// A database, and how connections to it are made.
pub(super) struct Site {
    pub(super) place: Place,
    pub(super) options: PgConnectOptions,
    create_table: bool,
    /// Whether a pooler gives each transaction to another server connection.
    pooled: AtomicBool,
    /// Whether the table was found and is ours.
    checked: AtomicBool,
}

/// Not derived, since the options have the password.
impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site")
            .field("place", &self.place)
            .field("create_table", &self.create_table)
            .field("pooled", &self.pooled)
            .field("checked", &self.checked)
            .finish_non_exhaustive()
    }
}

impl Site {
    pub(super) fn new(target: &PostgresTarget, config: &SqlConfig) -> Self {
        Self {
            place: Place { endpoint: endpoint(&target.options), table: config.table.clone() },
            options: target.options.clone(),
            create_table: config.create_table,
            pooled: AtomicBool::new(target.pooler == Pooler::Transaction),
            checked: AtomicBool::new(false),
        }
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    pub(super) fn set_pooled(&self) {
        if !self.pooled.swap(true, Ordering::AcqRel) {
            tracing::info!(target: "distlock", at = %self.place.endpoint, "there is a pooler that gives each transaction to another server connection: statements are sent in one piece");
        }
    }

    /// The next connection looks for the table again.
    pub(super) fn look_again(&self) {
        self.checked.store(false, Ordering::Release);
    }

    /// A connection with the table there and checked.
    pub(super) async fn open(&self) -> Result<PgConnection, Failure> {
        let connection = self.connect().await?;
        self.make_ours(connection).await
    }

    async fn make_ours(&self, mut connection: PgConnection) -> Result<PgConnection, Failure> {
        if !self.is_pooled() {
            let settings = format!("{}; {}", postgres::KEEP_ALIVE, postgres::SESSION);
            let set = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(settings))).await;
            set.map_err(|error| self.place.failure(error, true))?;
        }
        if !self.checked.load(Ordering::Acquire) {
            self.prepare(&mut connection).await?;
            self.checked.store(true, Ordering::Release);
        }
        Ok(connection)
    }

    async fn connect(&self) -> Result<PgConnection, Failure> {
        self.options.connect().await.map_err(|error| self.place.failure(error, true))
    }

    /// The first connections, whether there is a pooler, and a connection that can listen if one was
    /// needed to find that out.
    pub(super) async fn open_first(
        &self,
        pooler: Pooler,
        limit: Duration,
    ) -> Result<(Vec<PgConnection>, Option<PgListener>), Failure> {
        match pooler {
            Pooler::Auto => {
                let ([first, second], third) = self.look_for_pooler(limit).await?;
                let ours = vec![self.make_ours(first).await?, self.make_ours(second).await?];
                Ok((ours, Some(third)))
            }
            Pooler::Transaction | Pooler::None => Ok((vec![self.open().await?], None)),
        }
    }

    /// Finds out whether there is a pooler: connections of ours that share a connection of the server,
    /// or one that is now this and now that one.
    ///
    /// It must not be overlooked. Prepared statements are called by their names, and on a shared
    /// connection a name may stand for the statement of somebody else.
    async fn look_for_pooler(
        &self,
        limit: Duration,
    ) -> Result<([PgConnection; 2], PgListener), Failure> {
        let failed = |error| self.place.failure(error, true);
        let listening = async { listener::connect(self, limit).await.map_err(failed) };
        let (mut first, mut second, mut listening) =
            tokio::try_join!(self.connect(), self.connect(), listening)?;
        let third = listening.acquire().await.map_err(failed)?;
        let mut connections = [(&mut first, 0), (&mut second, 0), (third, 0)];
        let mut pooled = false;
        for round in 0..ROUNDS {
            // One of them is inside of a transaction, which keeps its server connection from the
            // others, and gives it back as the last one that was used. Not at first: a pooler may have
            // but one or two.
            let holder = round.checked_sub(1).map(|round| round % connections.len());
            if let Some(holder) = holder {
                self.run(connections[holder].0, "BEGIN").await?;
            }
            let mut seen = Vec::new();
            for (connection, before) in &mut connections {
                let now = self.backend(connection).await?;
                pooled |= seen.contains(&now) || (round > 0 && now != *before);
                seen.push(now);
                *before = now;
            }
            if let Some(holder) = holder {
                self.run(connections[holder].0, "COMMIT").await?;
            }
            if pooled {
                self.set_pooled();
                break;
            }
        }
        Ok(([first, second], listening))
    }

    async fn run(&self, connection: &mut PgConnection, sql: &'static str) -> Result<(), Failure> {
        let done = connection.execute(sqlx::raw_sql(sql)).await;
        done.map(drop).map_err(|error| self.place.failure(error, true))
    }

    async fn backend(&self, connection: &mut PgConnection) -> Result<i32, Failure> {
        let row = connection.fetch_one(sqlx::raw_sql(postgres::BACKEND_PID)).await;
        row.and_then(|row| row.try_get(0)).map_err(|error| self.place.failure(error, true))
    }

    /// Any number of processes may do this at the same time: what one finds done by another is fine.
    async fn prepare(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        self.check_server(connection).await?;
        let mut tries = 0;
        while !self.table_is_there(connection).await? {
            if !self.create_table {
                return Err(self.no_table("lock_create_table=false").into());
            }
            tries += 1;
            let ddl = postgres::create_table(&self.place.table);
            match connection.execute(sqlx::raw_sql(AssertSqlSafe(ddl))).await {
                Ok(_) => {}
                Err(error) => match code(&error).as_deref() {
                    Some("42501") => {
                        return Err(self
                            .no_table("this role may not create it")
                            .with_source(error)
                            .into());
                    }
                    Some("3F000") => {
                        return Err(self
                            .no_table("the search_path names no schema that is there")
                            .with_source(error)
                            .into());
                    }
                    // Somebody else was creating it: IF NOT EXISTS does not cover that.
                    Some("42P07" | "23505" | "42710" | "XX000") if tries < 10 => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    _ => return Err(self.place.failure(error, true)),
                },
            }
        }
        self.check_table(connection).await
    }

    async fn check_server(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let at = &self.place.endpoint;
        let rows = self.ask(connection, postgres::SERVER, &[]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (version, encoding, commit): (String, String, String) =
            (self.get(row, 0)?, self.get(row, 1)?, self.get(row, 2)?);
        POSTGRES.check(&version)?;
        if encoding != "UTF8" {
            return Err(Error::config(format!(
                "the encoding of {at} is {encoding}, which cannot store every lock name: use a database with ENCODING 'UTF8'"
            ))
            .into());
        }
        if commit == "off" {
            tracing::warn!(target: "distlock", %at, "synchronous_commit is off: a crash of the server may forget the last locks. Switch it on for this role");
        }
        Ok(())
    }

    async fn table_is_there(&self, connection: &mut PgConnection) -> Result<bool, Failure> {
        let rows = self.ask(connection, postgres::TABLE, &[self.table_name()]).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (kind, persistence, missing): (String, String, String) =
            (self.get(row, 0)?, self.get(row, 1)?, self.get(row, 2)?);
        match (&*kind, &*persistence) {
            // A partitioned table is one, too.
            ("r" | "p", "p") => {}
            ("r" | "p", "u") => {
                tracing::warn!(target: "distlock", at = %self.place.endpoint, "the lock table is UNLOGGED: a crash of the server forgets all locks");
            }
            ("r" | "p", _) => return Err(self.other_shape("it is a temporary table").into()),
            _ => return Err(self.other_shape("it is no table").into()),
        }
        if !missing.is_empty() {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "{}: this role lacks rights on the lock table: GRANT {missing} ON {} TO {}",
                    self.place.endpoint,
                    self.place.table.quoted(),
                    self.options.get_username()
                ),
            )
            .into());
        }
        Ok(true)
    }

    /// Checks what the statements rely on. Further columns are fine if they may be left out.
    async fn check_table(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let mut wanted = postgres::COLUMNS.to_vec();
        for row in &self.ask(connection, postgres::TABLE_COLUMNS, &[self.table_name()]).await? {
            let (name, kind): (String, String) = (self.get(row, 0)?, self.get(row, 1)?);
            let (not_null, needed, loose): (bool, bool, bool) =
                (self.get(row, 2)?, self.get(row, 3)?, self.get(row, 4)?);
            let Some(at) = wanted.iter().position(|column| column.0 == name) else {
                if needed {
                    let what = format!("it has a column {name} that we cannot fill");
                    return Err(self.other_shape(&what).into());
                }
                continue;
            };
            let column = wanted.swap_remove(at);
            if kind != column.1 || (not_null && !column.2) {
                return Err(self.other_shape(&format!("its column {name} differs")).into());
            }
            if loose && (name == "name" || name == "owner") {
                return Err(self
                    .other_shape(&format!(
                        "its column {name} has a collation for which different texts are equal"
                    ))
                    .into());
            }
        }
        if let Some(missing) = wanted.first() {
            return Err(self.other_shape(&format!("it has no column {}", missing.0)).into());
        }
        let rows = self.ask(connection, postgres::TABLE_KEY, &[self.table_name()]).await?;
        if !rows.first().map(|row| self.get(row, 0)).transpose()?.unwrap_or(false) {
            return Err(self.other_shape("its name is not a primary key").into());
        }
        Ok(())
    }

    fn table_name(&self) -> Value {
        Value::from(&*self.place.table.quoted())
    }

    async fn ask(
        &self,
        connection: &mut PgConnection,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<PgRow>, Failure> {
        let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(inline(sql, values)))).await;
        rows.map_err(|error| self.place.failure(error, true))
    }

    fn get<'r, T>(&self, row: &'r PgRow, column: usize) -> Result<T, Failure>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        row.try_get(column).map_err(|error| self.place.failure(error, true))
    }

    fn no_table(&self, why: &str) -> Error {
        let (at, table) = (&self.place.endpoint, self.place.table.as_str());
        let text = format!(
            "{at} has no table {table:?}, and {why}: create it with\n{};\nGRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {};",
            postgres::create_table(&self.place.table),
            self.place.table.quoted(),
            self.options.get_username(),
        );
        Error::config(text)
    }

    fn other_shape(&self, how: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "the table {:?} in {} is not our lock table: {how}. {}",
                self.place.table.as_str(),
                self.place.endpoint,
                self.place.remedy()
            ),
        )
    }
}
