//! The statements, on a real server, with a clock that the test sets.

mod leases;
mod renewals;
mod sweep;

use lock_core::{LockKey, OsRng, OwnerId, Released, Renewal};
use lock_testkit::servers::MariaDbServer;
use sqlx::mysql::MySqlPoolOptions;

use super::statements::Statements;
use super::*;
use crate::engine::entry::Secret;
use crate::engine::operations::Operations;
use crate::engine::renewals::Renew;

const TTL: Duration = Duration::from_secs(10);

/// A server, and a user whose connections have the time that [`Server::set_clock`] says.
struct Server {
    server: MariaDbServer,
    admin: MySqlPool,
}

impl Server {
    async fn start() -> Self {
        let server = MariaDbServer::builder().start().await.unwrap();
        let admin = MySqlPoolOptions::new().max_connections(2).connect(server.url()).await.unwrap();
        let this = Self { server, admin };
        this.run("CREATE USER app; GRANT ALL ON locks.* TO app").await;
        this
    }

    async fn run(&self, sql: &str) {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(&self.admin).await.unwrap();
    }

    /// The clock stands still at this second of 1970 and after, for connections made from now on.
    async fn set_clock(&self, seconds: u64) {
        self.run(&format!("SET GLOBAL init_connect = 'SET timestamp = {seconds}'")).await;
    }

    async fn store(&self, retention: Duration) -> MySqlStore {
        let url = self.server.url().replace("root@", "app@");
        let config = SqlConfig::from_url(&url).unwrap().retention(retention);
        let crate::config::Target::MySql(target) = &config.target else { panic!("{url}") };
        let store = connect(target, &config).await.unwrap();
        // Only when a test says so.
        store.sweeper.stop();
        store
    }

    /// As [`store`](Self::store), with statements that are changed as a proxy would change their answers.
    async fn store_with(&self, change: impl FnOnce(&mut Statements)) -> MySqlStore {
        let url = self.server.url().replace("root@", "app@");
        let config = SqlConfig::from_url(&url).unwrap();
        let crate::config::Target::MySql(target) = &config.target else { panic!("{url}") };
        let source = Source::Options(Arc::new(target.options.clone()));
        let mut server = server(target.endpoint.clone(), source, &config);
        change(&mut server.statements);
        let store = on(server, &config);
        store.sweeper.stop();
        store
    }

    async fn names(&self) -> Vec<String> {
        let names: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT name FROM distlock WHERE name <> x'0166656E6365' ORDER BY name",
        )
        .fetch_all(&self.admin)
        .await
        .unwrap();
        names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
    }
}

fn entry(name: &str) -> Entry {
    entry_for(name, TTL)
}

fn entry_for(name: &str, ttl: Duration) -> Entry {
    Entry {
        name: name.to_owned(),
        owner: Secret(OwnerId::generate(&OsRng).unwrap().to_hex()),
        ttl,
        call_timeout: Duration::from_secs(5),
        label: None,
        taken_over: None,
        waiter: None,
    }
}

fn granted(attempt: Result<Attempt>) -> i64 {
    match attempt.unwrap() {
        Attempt::Granted { token, .. } => token.as_i64(),
        other => panic!("not granted: {other:?}"),
    }
}

fn time_left(attempt: Result<Attempt>) -> Duration {
    match attempt.unwrap() {
        Attempt::Busy { retry_after: Some(left), .. } => left,
        other => panic!("not busy: {other:?}"),
    }
}

fn token(fence: i64) -> Option<FencingToken> {
    Some(FencingToken::answered(fence).unwrap())
}

async fn renew(store: &MySqlStore, entry: &Entry, fence: Option<FencingToken>) -> Outcome {
    store.renew(&[Due { entry, fence }], TTL).await.unwrap()[0]
}
