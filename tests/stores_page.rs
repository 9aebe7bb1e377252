//! The page of the stores in the guide says what the code does.

use std::fs;
use std::path::Path;
use std::time::Duration;

use distlock::{ErrorKind, LockKey};

const PAGE: &str = "docs/guide/stores.md";

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the first row that begins with `first`.
fn row(page: &str, first: &str) -> Vec<String> {
    let begins = format!("| {first} |");
    let row = page.lines().find(|line| line.starts_with(&begins));
    let row = row.unwrap_or_else(|| panic!("no row for {first}"));
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

#[tokio::test]
async fn the_limits_of_every_store_are_those_of_the_page() {
    let page = read(PAGE);
    let cell = |first: &str| row(&page, first).swap_remove(1);
    assert!(cell("name").starts_with(&format!("1 to {} bytes", LockKey::MAX_LEN)));
    assert!(
        cell("prefix (`lock_prefix`)").starts_with(&format!("0 to {} bytes", LockKey::MAX_LEN))
    );
    let locks = distlock::connect("memory://").await.unwrap();
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    let ttl = cell("TTL (`lock_ttl`)");
    assert!(ttl.starts_with(&format!("{} s by default", guard.ttl().as_secs())), "{ttl}");
    assert!(ttl.contains("10 ms to 366 days"), "{ttl}");
    let lock = locks.named("b").unwrap();
    for (wrong, right) in [(9, 10), (366 * 86_400_000 + 1, 366 * 86_400_000)] {
        let asked = |ms| lock.clone().ttl(Duration::from_millis(ms));
        let error = asked(wrong).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let guard = asked(right).try_acquire().await.unwrap();
        guard.unwrap_or_else(|| panic!("{right} ms")).release().await.unwrap();
    }
    let label = |bytes: usize| distlock::builder("memory://").label("x".repeat(bytes)).connect();
    assert!(label(512).await.is_ok() && cell("label (`lock_label`)").contains("512 bytes"));
    assert!(label(513).await.is_err());
}

#[cfg(all(feature = "redis", feature = "redlock", feature = "etcd", feature = "zookeeper"))]
#[test]
fn the_defaults_are_those_of_the_pages() {
    let page = read(PAGE);
    let (_, timeouts) = page.split_once("## Timeouts").unwrap();
    let settings = [
        (
            "Redis",
            "lock-redis/README.md",
            format!("{:?}", distlock::redis::RedisConfig::from_url("redis://h").unwrap()),
            &["connect_timeout", "response_timeout", "grace"][..],
        ),
        (
            "Redlock",
            "lock-redis/REDLOCK.md",
            format!("{:?}", distlock::redis::RedlockConfig::from_url("redlock://a,b,c").unwrap()),
            &["max_ttl", "drift"],
        ),
        (
            "etcd",
            "lock-etcd/README.md",
            format!("{:?}", distlock::etcd::EtcdConfig::from_url("etcd://h").unwrap()),
            &["connect_timeout", "response_timeout"],
        ),
        (
            "ZooKeeper",
            "lock-zk/README.md",
            format!("{:?}", distlock::zookeeper::ZkConfig::from_url("zk://h").unwrap()),
            &["connect_timeout"],
        ),
    ];
    for (store, own_page, config, names) in settings {
        let own_page = read(own_page);
        for name in names {
            let default = row(&own_page, &format!("`lock_{name}`")).pop().unwrap();
            let default = default.trim_matches('`');
            assert!(config.contains(&format!("{name}: {default}")), "{name}: {config}");
            let told = row(timeouts, store);
            assert!(
                match *name {
                    "connect_timeout" => told[1].split(' ').next() == Some(default),
                    "response_timeout" => told[2].ends_with(&format!(", {default}")),
                    _ => true,
                },
                "{PAGE} has another {name} for {store}: {told:?}"
            );
        }
    }
}

/// Each store lists its parameters when one is wrong; its page has a row for each of them.
#[cfg(feature = "full")]
#[tokio::test]
async fn every_parameter_is_on_the_page_of_its_store() {
    for (url, page) in [
        ("sqlite:///x", "lock-sql/README.md"),
        ("postgres://h/d", "lock-sql/README.md"),
        ("mysql://u@h/d", "lock-sql/README.md"),
        ("redis://h", "lock-redis/README.md"),
        ("redis+sentinel://a,b,c/g", "lock-redis/SENTINEL.md"),
        ("redis+sentinel://a,b,c/g?lock_failover=trust", "lock-redis/SENTINEL.md"),
        ("redlock://a,b,c", "lock-redis/REDLOCK.md"),
        ("etcd://h", "lock-etcd/README.md"),
        ("zookeeper://h", "lock-zk/README.md"),
    ] {
        let page_text = read(page);
        let wrong = format!("{url}{}nonsense=1", if url.contains('?') { '&' } else { '?' });
        let error = distlock::connect(&wrong).await.unwrap_err().to_string();
        let list = error.split_once("it has ").unwrap().1.split_once(", and in a URL").unwrap().0;
        for name in list.split(", ") {
            assert!(page_text.contains(&format!("`{name}`")), "{page} has no {name}");
        }
        assert!(list.split(", ").count() >= 4, "{error}");
    }
}

/// What an administrator copies from the guide is what is tested: the tests of the stores take the
/// rights from the stores' own pages.
#[test]
fn the_rights_are_those_of_the_stores_own_pages() {
    let pages = ["lock-sql/README.md", "lock-redis/README.md", "lock-redis/REDLOCK.md"];
    let pages = pages.iter().chain(&["lock-etcd/README.md", "lock-zk/README.md"]);
    let pages: String = pages.map(|page| read(page)).collect();
    let guide = read(PAGE);
    // The first block is the command that opens the page.
    let blocks = guide.split("```").skip(1).step_by(2).skip(1);
    let lines = blocks.flat_map(|block| block.lines().skip(1));
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    assert!(lines.len() > 10, "{lines:?}");
    for line in lines {
        assert!(pages.contains(&format!("\n{line}\n")), "no page of a store has: {line}");
    }
}

/// Every finding that the guide quotes is one that the code can say.
#[test]
fn what_doctor_says_is_what_the_guide_quotes() {
    fn sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, text);
            } else {
                text.push_str(&fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    let mut code = String::new();
    for store in ["lock-core", "lock-sql", "lock-redis", "lock-etcd", "lock-zk"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(store).join("src"), &mut code);
    }
    let page = read(PAGE);
    let quoted = page.lines().filter(|line| line.starts_with("| `") && line.contains("` … |"));
    let quoted: Vec<_> = quoted.collect();
    assert!(quoted.len() > 25, "{quoted:?}");
    for line in quoted {
        let words = line.split('`').nth(1).expect("quoted words");
        assert!(code.contains(words), "no store says: {words}");
    }
}
