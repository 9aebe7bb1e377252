//! How `connect` answers good and bad URLs, before anything is sent.

use std::time::Duration;

use distlock::{Error, ErrorKind, connect, schemes};

async fn refused(url: &str) -> Error {
    connect(url).await.map(|locks| locks.backend_name()).expect_err(url)
}

#[tokio::test]
async fn memory_is_private_without_a_name_and_shared_with_one() {
    let (a, b) = (connect("memory://").await.unwrap(), connect("memory://").await.unwrap());
    let _held = a.named("x").unwrap().acquire().await.unwrap();
    assert!(b.named("x").unwrap().try_acquire().await.unwrap().is_some());

    let (a, b) = (connect("memory://shop").await.unwrap(), connect("memory://shop").await.unwrap());
    let _held = a.named("x").unwrap().acquire().await.unwrap();
    assert!(b.named("x").unwrap().try_acquire().await.unwrap().is_none());
    let other = connect("memory://office").await.unwrap();
    assert!(other.named("x").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_common_parameters_are_understood() {
    let url = "memory://common?lock_ttl=7s&lock_prefix=a%20b&lock_label=me&lock_call_timeout=1s";
    let locks = connect(url).await.unwrap();
    let lock = locks.named("x").unwrap();
    assert_eq!(lock.key().prefix(), "a b");
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl().as_secs(), 7);
    let info = locks.inspect("x").await.unwrap().unwrap();
    assert_eq!(info.holder.unwrap().label.as_deref(), Some("me"));
}

#[tokio::test]
async fn a_cohort_is_set_by_the_url_or_by_the_program() {
    let url = "memory://?lock_cohort=4";
    for (locks, fences) in [
        (connect(url).await.unwrap(), 4),
        (distlock::builder(url).cohort(7).connect().await.unwrap(), 7),
    ] {
        let lock = locks.named("x").unwrap();
        let first = lock.acquire().await.unwrap();
        let token = first.token().unwrap().get();
        first.release().await.unwrap();
        let next = lock.acquire().await.unwrap().token().unwrap().get();
        assert_eq!(next - token, fences, "a grant has a block of fences");
    }
    assert_eq!(refused("memory://?lock_cohort=many").await.kind(), ErrorKind::Config);
    assert_eq!(refused("memory://?lock_cohort=0").await.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_delay_and_a_least_hold_are_set_by_the_url_or_by_the_program() {
    let url = "memory://?lock_ttl=10s&lock_delay=20s&lock_min_hold=60s";
    let second = Duration::from_secs(1);
    let program = distlock::builder(url).lock_delay(30 * second).min_hold(90 * second);
    for (locks, delay, least) in
        [(connect(url).await.unwrap(), 20, 60), (program.connect().await.unwrap(), 30, 90)]
    {
        let lock = locks.named("x").unwrap();
        let guard = lock.acquire().await.unwrap();
        let kept = locks.inspect("x").await.unwrap().unwrap().holder.unwrap().expires_in.unwrap();
        assert!(guard.remaining() <= 10 * second && kept > (9 + delay) * second, "{kept:?}");
        assert_eq!(locks.min_hold(), least * second);
        drop(guard);
        let waits = lock.acquire_timeout(Duration::from_millis(50)).await;
        assert_eq!(waits.unwrap_err().kind(), ErrorKind::NotAcquired);
    }
    assert_eq!(refused("memory://?lock_delay=long").await.kind(), ErrorKind::Config);
    assert_eq!(refused("memory://?lock_min_hold=2").await.kind(), ErrorKind::Config);
    let far = connect("memory://?lock_ttl=1s&lock_delay=11s").await.unwrap();
    let error = far.named("x").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test]
async fn an_unknown_scheme_names_the_known_ones() {
    for url in ["gopher://x", "memory", "", "://"] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        for scheme in schemes() {
            assert!(error.to_string().contains(scheme), "{url}: {error}");
        }
    }
}

#[tokio::test]
async fn an_unknown_or_unreadable_parameter_is_an_error() {
    let error = refused("memory://?lock_tttl=3s").await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("lock_tttl") && error.to_string().contains("lock_ttl"));
    assert!(connect("Memory://?lock_ttl=3s").await.is_ok(), "schemes are case-insensitive");
    for bad in [
        "lock_ttl=3s&lock_ttl=4s",
        "lock_ttl=30",
        "lock_ttl=",
        "lock_ttl=0s",
        "lock_ttl=-1s",
        "lock_ttl=soon",
    ] {
        let error = refused(&format!("memory://?{bad}")).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        let remedy = if bad.contains('&') { "keep one" } else { "30s" };
        assert!(error.to_string().contains(remedy), "the remedy is named: {error}");
    }
    assert_eq!(refused("memory://?lock_prefix=%00").await.kind(), ErrorKind::Config);
    assert_eq!(refused("memory://?lock_prefix=%ff").await.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn no_error_shows_a_password() {
    const SECRET: &str = "s3cr3t-hunter2";
    for url in [
        format!("gopher://user:{SECRET}@host/db"),
        format!("user:{SECRET}@host"),
        format!("{SECRET}:6379"),
        format!("memory://user:{SECRET}@host?password={SECRET}"),
        format!("memory://?password={SECRET}&x"),
        format!("sqlite://user:{SECRET}@host/missing/folder/x.db?password={SECRET}"),
    ] {
        match connect(&url).await {
            Ok(locks) => assert!(!format!("{locks:?}").contains(SECRET), "{url}"),
            Err(error) => {
                assert!(!error.to_string().contains(SECRET), "{error}");
                assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
            }
        }
    }
}
