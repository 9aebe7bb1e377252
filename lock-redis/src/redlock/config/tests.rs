use super::*;
use lock_core::ErrorKind;

#[test]
fn urls_are_read() {
    let config = RedlockConfig::from_url(
        "redlock://u:p%40@c:1,a,[::1]:7/2?lock_max_ttl=1m&lock_bootstrap=now&lock_recover=manual&lock_drift=0.05",
    )
    .unwrap();
    assert_eq!(config.endpoints().collect::<Vec<_>>(), ["c:1", "a:6379", "::1:7"]);
    assert_eq!(config.max_ttl, Duration::from_secs(60));
    assert_eq!((config.bootstrap, config.recover), (Bootstrap::Now, Recover::Manual));
    assert_eq!(config.fingerprint(), "3 nodes, lock_max_ttl 60000ms, ::1:7,a:6379,c:1");
    for client in &config.nodes {
        assert_eq!(client.get_connection_info().redis_settings().db(), 2);
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (url, part) in [
        ("redlock://a,b", "quorum of 2 nodes"),
        ("redlock://a,b,a:6379", "named twice"),
        ("redlock://a,,c", "empty host"),
        ("redlock://a,b,c?lock_max_tl=1s", "lock_max_ttl"),
        ("redlock://a,b,c?lock_max_ttl=1ms", "lock_max_ttl is 1ms"),
        ("redlock://a,b,c?lock_drift=x", "not a number"),
        ("redlock://a,b,c?lock_drift=0.5", "less than 0.5"),
        ("redlock://a,b,c?lock_bootstrap=soon", "none of wait, now"),
        ("redlock://a,b,c?lock_recover=never", "none of auto, manual"),
        ("redis://a,b,c", "begins with redlock"),
    ] {
        let error = RedlockConfig::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(part), "{url}: {error}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_names_its_feature() {
    let error = RedlockConfig::from_url("redlocks://a,b,c").unwrap_err();
    assert!(error.to_string().contains("feature \"tls\""), "{error}");
}

#[cfg(feature = "tls")]
#[test]
fn every_node_of_a_quorum_with_tls_has_it() {
    let config = RedlockConfig::from_url("redlocks://u:p@a,b:1,c").unwrap();
    assert_eq!(config.endpoints().collect::<Vec<_>>(), ["a:6379", "b:1", "c:6379"]);
    for client in &config.nodes {
        let address = client.get_connection_info().addr();
        let is_checked = matches!(address, redis::ConnectionAddr::TcpTls { insecure: false, .. });
        assert!(is_checked, "{address:?}");
    }
}

#[test]
fn no_secret_is_shown() {
    const SENTINEL: &str = "s3cr3t-sentinel";
    for url in [
        format!("redlock://u:{SENTINEL}@a,b,c"),
        format!("redlock://u:12?{SENTINEL}@a,b,c"),
        format!("redlock://u:{SENTINEL}@a,b"),
        format!("redlock://u:{SENTINEL}#@a,b,c"),
        format!("redlock://u:{SENTINEL}/x@a,b,c"),
        format!("redlock://a,b,c?pw={SENTINEL}"),
        format!("redlock:{SENTINEL}"),
    ] {
        let shown = format!("{:?}", RedlockConfig::from_url(&url));
        assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
    }
}
