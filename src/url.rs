//! What a URL says: which store, and with which settings.

use std::sync::Arc;

use lock_core::{Error, LocksBuilder, Result};
use lock_kit::url::Params;

use crate::stores::{Opener, schemes, stores};

/// A setting waits for the store, since the core's builder starts with one.
pub(crate) type Setting = Arc<dyn Fn(LocksBuilder) -> LocksBuilder + Send + Sync>;

/// Reads a URL: what connects to its store, and its settings. Nothing is sent.
pub(crate) fn parse(url: &str) -> Result<(Opener, Vec<Setting>)> {
    let (scheme, rest) = url.split_once(':').ok_or_else(|| {
        Error::config(format!(
            "a store URL begins with a scheme and a colon; this build has {}",
            schemes().join(", ")
        ))
    })?;
    // RFC 3986, section 3.1: schemes are case-insensitive.
    let scheme = &scheme.to_ascii_lowercase();
    let known = stores().iter().find(|kind| kind.schemes().contains(&scheme.as_str()));
    let known = known.ok_or_else(|| unknown_scheme(scheme, rest))?;
    let (base, mut params) = Params::split(rest)?;
    let settings = common(&mut params)?;
    let read = known.read.ok_or_else(|| missing_feature(scheme, known.feature()))?;
    let opener = read(&format!("{scheme}:{}", params.rejoin(base)))?;
    Ok((opener, settings))
}

/// Takes out the parameters that every store has: [`COMMON`](lock_kit::url::COMMON).
fn common(params: &mut Params) -> Result<Vec<Setting>> {
    let mut settings: Vec<Setting> = Vec::new();
    if let Some(prefix) = params.text("lock_prefix")? {
        settings.push(Arc::new(move |locks| locks.prefix(&prefix)));
    }
    if let Some(ttl) = params.duration("lock_ttl")? {
        settings.push(Arc::new(move |locks| locks.default_ttl(ttl)));
    }
    if let Some(delay) = params.duration("lock_delay")? {
        settings.push(Arc::new(move |locks| locks.lock_delay(delay)));
    }
    if let Some(least) = params.duration("lock_min_hold")? {
        settings.push(Arc::new(move |locks| locks.min_hold(least)));
    }
    if let Some(limit) = params.duration("lock_call_timeout")? {
        settings.push(Arc::new(move |locks| locks.call_timeout(limit)));
    }
    if let Some(limit) = params.duration("lock_unavailable_after")? {
        settings.push(Arc::new(move |locks| locks.unavailable_after(limit)));
    }
    if let Some(holders) = params.number("lock_cohort")? {
        settings.push(Arc::new(move |locks| locks.cohort(holders)));
    }
    if let Some(label) = params.text("lock_label")? {
        settings.push(Arc::new(move |locks| locks.label(&label)));
    }
    Ok(settings)
}

fn unknown_scheme(scheme: &str, rest: &str) -> Error {
    let left_out = stores().iter().filter(|kind| !kind.is_built());
    let left_out: Vec<_> = left_out
        .filter_map(|kind| {
            Some(format!("{} (feature {:?})", kind.schemes().join("/"), kind.feature()?))
        })
        .collect();
    // The scheme is the part before the first colon. If the real one was forgotten, that may be a
    // password, so it is shown only if the rest looks like a URL.
    let shown = if rest.starts_with("//") && scheme.len() <= 20 {
        format!("{scheme:?}")
    } else {
        "of this URL".to_owned()
    };
    let mut message =
        format!("unknown store scheme {shown}: this build has {}", schemes().join(", "));
    if !left_out.is_empty() {
        message.push_str("; it can be built with ");
        message.push_str(&left_out.join(", "));
    }
    Error::config(message)
}

fn missing_feature(scheme: &str, feature: Option<&str>) -> Error {
    let feature = feature.unwrap_or("full");
    Error::config(format!(
        "this build cannot use {scheme}: it has {}. Enable the cargo feature {feature:?} of distlock",
        schemes().join(", ")
    ))
}
