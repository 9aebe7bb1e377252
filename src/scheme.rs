//! The table of URL schemes: which backend serves each, and which cargo feature enables it.

/// One kind of store.
pub(crate) struct Scheme {
    /// The scheme and its aliases.
    pub(crate) names: &'static [&'static str],
    /// The cargo feature that enables it; `None` if it is always available.
    pub(crate) feature: Option<&'static str>,
    /// `None` if it is not part of this build.
    pub(crate) kind: Option<Kind>,
}

pub(crate) enum Kind {
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

/// A row of the table whose store is available if its feature is enabled.
macro_rules! scheme {
    ($names:expr, $feature:literal, $kind:ident) => {
        Scheme {
            names: $names,
            feature: Some($feature),
            #[cfg(feature = $feature)]
            kind: Some(Kind::$kind),
            #[cfg(not(feature = $feature))]
            kind: None,
        }
    };
}

pub(crate) const SCHEMES: &[Scheme] = &[
    Scheme { names: &["memory"], feature: None, kind: Some(Kind::Memory) },
    scheme!(&["sqlite"], "sqlite", Sql),
    scheme!(&["postgres", "postgresql"], "postgres", Sql),
    scheme!(&["mysql", "mariadb"], "mysql", Sql),
    scheme!(&["redis", "rediss", "redis+unix"], "redis", Redis),
    scheme!(&["redlock", "redlocks"], "redlock", Redlock),
    scheme!(&["etcd", "etcds"], "etcd", Etcd),
    scheme!(&["zookeeper", "zk"], "zookeeper", ZooKeeper),
];

/// The URL schemes that this build can [`connect`](crate::connect()) to.
///
/// ```
/// assert!(distlock::schemes().contains(&"memory"));
/// ```
pub fn schemes() -> Vec<&'static str> {
    let built = SCHEMES.iter().filter(|scheme| scheme.kind.is_some());
    built.flat_map(|scheme| scheme.names.iter().copied()).collect()
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
}
