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
}

pub(crate) const SCHEMES: &[Scheme] = &[
    Scheme { names: &["memory"], feature: None, kind: Some(Kind::Memory) },
    Scheme {
        names: &["sqlite"],
        feature: Some("sqlite"),
        #[cfg(feature = "sqlite")]
        kind: Some(Kind::Sqlite),
        #[cfg(not(feature = "sqlite"))]
        kind: None,
    },
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
