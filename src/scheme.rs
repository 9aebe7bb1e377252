//! The table of stores: the schemes and the form of their URLs, and which cargo feature enables each.

/// A kind of store that a URL can name, whether or not this build has it: see [`stores`].
#[derive(Clone, Copy, Debug)]
pub struct StoreKind {
    name: &'static str,
    url: &'static str,
    schemes: &'static [&'static str],
    feature: Option<&'static str>,
    /// `None` if it is not part of this build.
    pub(crate) opens: Option<Opens>,
}

/// What opens a store of this kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opens {
    Memory,
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    Sql,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "redlock")]
    Redlock,
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

impl StoreKind {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The form of its URL; parts in brackets are optional.
    pub const fn url(&self) -> &'static str {
        self.url
    }

    /// All schemes of its URLs, the one that [`url`](Self::url) shows first.
    pub const fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    /// The cargo feature of distlock that enables it; `None` if it is always available.
    pub const fn feature(&self) -> Option<&'static str> {
        self.feature
    }

    /// Whether this build can [`connect`](crate::connect()) to it.
    pub const fn is_built(&self) -> bool {
        self.opens.is_some()
    }
}

/// A row of the table: a store that is named like the feature that enables it.
macro_rules! kind {
    ($feature:literal, $url:literal, $schemes:expr, $opens:ident) => {
        StoreKind {
            name: $feature,
            url: $url,
            schemes: $schemes,
            feature: Some($feature),
            #[cfg(feature = $feature)]
            opens: Some(Opens::$opens),
            #[cfg(not(feature = $feature))]
            opens: None,
        }
    };
}

const KINDS: &[StoreKind] = &[
    StoreKind {
        name: "memory",
        url: "memory://",
        schemes: &["memory"],
        feature: None,
        opens: Some(Opens::Memory),
    },
    kind!("sqlite", "sqlite:///path/to/locks.db", &["sqlite"], Sql),
    kind!(
        "postgres",
        "postgres://user[:password]@host[:5432]/database",
        &["postgres", "postgresql"],
        Sql
    ),
    kind!("mysql", "mysql://user[:password]@host[:3306]/database", &["mysql", "mariadb"], Sql),
    kind!(
        "redis",
        "redis://[[user]:password@]host[:6379][/database]",
        &["redis", "rediss", "redis+unix"],
        Redis
    ),
    kind!(
        "redlock",
        "redlock://[[user]:password@]host[:6379],host,host",
        &["redlock", "redlocks"],
        Redlock
    ),
    kind!(
        "etcd",
        "etcd://[user:password@]host[:2379][,host...][/prefix]",
        &["etcd", "etcds"],
        Etcd
    ),
    kind!("zookeeper", "zookeeper://host[:2181][,host...][/root]", &["zookeeper", "zk"], ZooKeeper),
];

/// All kinds of stores that this version knows, those included that this build leaves out: for a
/// program that tells its users which URLs it takes.
///
/// ```
/// let memory = distlock::stores().iter().find(|kind| kind.name() == "memory").unwrap();
/// assert!(memory.is_built() && memory.feature().is_none());
/// ```
pub const fn stores() -> &'static [StoreKind] {
    KINDS
}

/// The URL schemes that this build can [`connect`](crate::connect()) to.
///
/// ```
/// assert!(distlock::schemes().contains(&"memory"));
/// ```
pub fn schemes() -> Vec<&'static str> {
    let built = KINDS.iter().filter(|kind| kind.is_built());
    built.flat_map(|kind| kind.schemes.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each backend says what it serves, so no alias is forgotten here, nor one too many promised.
    #[test]
    fn the_table_knows_the_schemes_of_every_backend() {
        let backends: &[&[&str]] = &[
            &["memory"],
            #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
            lock_sql::SCHEMES,
            #[cfg(feature = "redis")]
            lock_redis::SCHEMES,
            #[cfg(feature = "redlock")]
            lock_redis::REDLOCK_SCHEMES,
            #[cfg(feature = "etcd")]
            lock_etcd::SCHEMES,
            #[cfg(feature = "zookeeper")]
            lock_zk::SCHEMES,
        ];
        let served: BTreeSet<_> = backends.concat().into_iter().collect();
        assert_eq!(served, schemes().into_iter().collect());
    }

    #[test]
    fn the_form_of_a_url_begins_with_the_first_scheme() {
        for kind in stores() {
            assert!(kind.url.starts_with(&format!("{}://", kind.schemes[0])), "{}", kind.url);
        }
    }
}
