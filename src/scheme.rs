//! The table of URL schemes: which backend serves them, and which cargo feature brings it.

/// One kind of store.
pub(crate) struct Scheme {
    /// The scheme and its aliases.
    pub(crate) names: &'static [&'static str],
    /// The cargo feature that brings it; `None` for what is always there.
    pub(crate) feature: Option<&'static str>,
    /// `None` if it was left out of this build.
    pub(crate) kind: Option<Kind>,
}

pub(crate) enum Kind {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "redlock")]
    Redlock,
}

/// A row of the table whose store is there if its feature is.
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
    scheme!(&["sqlite"], "sqlite", Sqlite),
    scheme!(&["redis", "rediss", "redis+unix"], "redis", Redis),
    scheme!(&["redlock"], "redlock", Redlock),
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
    use super::*;

    /// Whether the row with the first of `names` has just these, so that an alias of a backend is not
    /// forgotten here.
    #[cfg(any(feature = "sqlite", feature = "redis", feature = "redlock"))]
    fn has_row(names: &[&str]) -> bool {
        SCHEMES.iter().any(|scheme| scheme.names == names)
    }

    #[test]
    fn the_table_knows_the_schemes_of_every_backend() {
        assert!(schemes().contains(&"memory"));
        #[cfg(feature = "sqlite")]
        assert!(has_row(lock_sql::SCHEMES));
        #[cfg(feature = "redis")]
        assert!(has_row(lock_redis::SCHEMES));
        #[cfg(feature = "redlock")]
        assert!(has_row(lock_redis::REDLOCK_SCHEMES));
    }
}
