//! The table of URL schemes: which backend serves them, and which cargo feature brings it.

/// One kind of store.
pub(crate) struct Scheme {
    /// The scheme and its aliases.
    pub(crate) names: &'static [&'static str],
    /// The cargo feature that brings it; `None` for what is always there.
    pub(crate) feature: Option<&'static str>,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// Left out of this build.
    Missing,
}

pub(crate) const SCHEMES: &[Scheme] = &[
    Scheme { names: &["memory"], feature: None, kind: Kind::Memory },
    Scheme {
        names: &["sqlite"],
        feature: Some("sqlite"),
        #[cfg(feature = "sqlite")]
        kind: Kind::Sqlite,
        #[cfg(not(feature = "sqlite"))]
        kind: Kind::Missing,
    },
];

/// The URL schemes that this build can [`connect`](crate::connect()) to.
///
/// ```
/// assert!(distlock::schemes().contains(&"memory"));
/// ```
pub fn schemes() -> Vec<&'static str> {
    let built = SCHEMES.iter().filter(|scheme| !matches!(scheme.kind, Kind::Missing));
    built.flat_map(|scheme| scheme.names.iter().copied()).collect()
}
