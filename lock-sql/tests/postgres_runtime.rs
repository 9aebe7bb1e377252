//! What the application's runtime must have.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lock_core::{Error, ErrorKind};
use lock_sql::{SqlBackend, SqlConfig};
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Builder;

const URL: &str = "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable";

fn refused(error: &Error, remedy: &str) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(text.contains("PostgreSQL") && text.contains(remedy), "{text}");
}

#[test]
fn outside_of_a_runtime_is_an_error() {
    let connecting = pin!(lock_sql::connect(URL));
    let Poll::Ready(answer) = connecting.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for something")
    };
    refused(&answer.unwrap_err(), "call from within one");
}

#[test]
fn a_runtime_without_what_is_needed_is_an_error() {
    for (mut builder, what) in
        [(Builder::new_current_thread(), "timers"), (Builder::new_multi_thread(), "sockets")]
    {
        if what == "sockets" {
            builder.enable_time();
        }
        let runtime = builder.build().unwrap();
        let error = runtime.block_on(lock_sql::connect(URL)).unwrap_err();
        refused(&error, "enable_all");
        assert!(error.to_string().contains(what), "{error}");
    }
    // A pool from another runtime.
    let whole = Builder::new_current_thread().enable_all().build().unwrap();
    let pool = whole.block_on(async { PgPoolOptions::new().connect_lazy(URL).unwrap() });
    let runtime = Builder::new_current_thread().build().unwrap();
    let opened = runtime.block_on(SqlBackend::from_pool(pool, SqlConfig::default()));
    refused(&opened.unwrap_err(), "enable_all");
}
