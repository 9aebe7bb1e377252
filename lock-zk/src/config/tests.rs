use super::*;
use lock_core::ErrorKind;

const SENTINEL: &str = "s3cr3t-sentinel";

#[test]
fn urls_are_read() {
    for (url, endpoint, root) in [
        ("zookeeper://h", "h:2181", "/locks"),
        ("zk://h/", "h:2181", "/locks"),
        ("zk://a,b:1,[::1]:7/shop/locks/", "a:2181,b:1,[::1]:7", "/shop/locks"),
        ("zookeeper://u:p%40@[::1]/a%20b", "[::1]:2181", "/a b"),
    ] {
        let config = ZkConfig::from_url(url).unwrap();
        assert_eq!((config.endpoint().as_str(), config.root.as_str()), (endpoint, root), "{url}");
    }
    let config = ZkConfig::from_url("zk://u:p%3A%40@h?lock_session_timeout=8s").unwrap();
    assert_eq!(config.digest().unwrap(), "u:p:@");
    assert_eq!(config.granted_acl(), Acl::Creator);
    assert_eq!(config.session_timeout, Some(Duration::from_secs(8)));
    assert_eq!(config.fence, Fence::Based);
    let key = LockKey::new("", "order:42").unwrap();
    let config = ZkConfig::from_url("zk://h/shop").unwrap();
    assert_eq!(config.path_of(&key), format!("/shop/{}", names::encode(&key)));
    assert_eq!(config.fence_base_path(), format!("/shop/{}", names::FENCE_BASE));
    for limit in ["10ms", "1h"] {
        ZkConfig::from_url(&format!("zk://h?lock_connect_timeout={limit}")).unwrap();
    }
    let config = ZkConfig::from_url("zk://u:p@h?lock_acl=open&lock_fence=revision").unwrap();
    assert_eq!((config.granted_acl(), config.fence), (Acl::Open, Fence::Revision));
}

#[test]
fn what_is_wrong_is_named() {
    for (url, part) in [
        ("zk://h?lock_sesion_timeout=1s", "lock_session_timeout"),
        ("zk://h?lock_session_timeout=10ms", "the session timeout is 10ms"),
        ("zk://h?lock_connect_timeout=2h", "the connect timeout is 7200s"),
        ("zk://h?lock_tick_time=2000", "not a duration"),
        ("zk://h?lock_acl=maybe", "none of creator, open"),
        ("zk://h?lock_fence=czxid", "revision"),
        ("zk://h?lock_acl=creator", "user and a password"),
        ("zk://u@h", "a password, or neither"),
        ("zk://a%3Ab:p@h", "without a colon"),
        ("zk://h/a//b", "not a ZooKeeper path"),
        ("zk://h/a/../b", "not a ZooKeeper path"),
        ("zk://h/zookeeper", "belongs to ZooKeeper"),
        ("http://h", "begins with one of zookeeper"),
    ] {
        let error = ZkConfig::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(part), "{url}: {error}");
    }
}

#[test]
fn no_secret_is_shown() {
    for url in [
        format!("zk://u:{SENTINEL}@h"),
        format!("zk://app:2181?{SENTINEL}@h/locks"),
        format!("zk://u:{SENTINEL}@h:x"),
        format!("zk://{SENTINEL}@h"),
        format!("zk://u:{SENTINEL}/x@h"),
        format!("zk://h?password={SENTINEL}"),
        format!("{SENTINEL}://h"),
        format!("zk:{SENTINEL}"),
    ] {
        let shown = format!("{:?}", ZkConfig::from_url(&url));
        assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
    }
}
