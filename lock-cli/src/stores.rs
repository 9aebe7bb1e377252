//! `distlock stores`: the stores of this build, and the form of their URLs.

use serde_json::json;

use crate::args::StoresArgs;
use crate::exit::Failure;
use crate::output;

/// One kind of store.
struct Kind {
    name: &'static str,
    /// The form of its URL; parts in brackets are optional.
    url: &'static str,
    /// All its URL schemes.
    schemes: &'static [&'static str],
}

/// The stores this version knows. A build has those whose cargo feature, named after the store, is
/// enabled.
const KINDS: [Kind; 8] = [
    Kind { name: "memory", url: "memory://", schemes: &["memory"] },
    Kind { name: "sqlite", url: "sqlite:///path/to/locks.db", schemes: &["sqlite"] },
    Kind {
        name: "postgres",
        url: "postgres://user[:password]@host[:5432]/database",
        schemes: &["postgres", "postgresql"],
    },
    Kind {
        name: "mysql",
        url: "mysql://user[:password]@host[:3306]/database",
        schemes: &["mysql", "mariadb"],
    },
    Kind {
        name: "redis",
        url: "redis://[[user]:password@]host[:6379][/database]",
        schemes: &["redis", "rediss", "redis+unix"],
    },
    Kind {
        name: "redlock",
        url: "redlock://[[user]:password@]host[:6379],host,host",
        schemes: &["redlock", "redlocks"],
    },
    Kind {
        name: "etcd",
        url: "etcd://[user:password@]host[:2379][,host...][/prefix]",
        schemes: &["etcd", "etcds"],
    },
    Kind {
        name: "zookeeper",
        url: "zookeeper://host[:2181][,host...][/root]",
        schemes: &["zookeeper", "zk"],
    },
];

pub(crate) fn stores(args: &StoresArgs) -> Result<u8, Failure> {
    let built = |kind: &Kind| distlock::schemes().contains(&kind.schemes[0]);
    let row = |kind: &Kind| {
        let built = if built(kind) { "yes" } else { "no" };
        [kind.name.to_owned(), built.to_owned(), kind.url.to_owned(), kind.schemes.join(", ")]
    };
    let object = |kind: &Kind| json!({ "name": kind.name, "built": built(kind), "url": kind.url, "schemes": kind.schemes });
    let text = output::table(["STORE", "BUILT", "URL", "SCHEMES"], KINDS.iter().map(row));
    let objects: Vec<_> = KINDS.iter().map(object).collect();
    output::result(args.json, json!({ "stores": objects }), &text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_of_this_build_is_told() {
        let told: Vec<_> = KINDS.iter().flat_map(|kind| kind.schemes).copied().collect();
        let known = distlock::schemes();
        assert!(known.iter().all(|scheme| told.contains(scheme)), "{known:?}");
        for kind in &KINDS {
            let built = kind.schemes.iter().filter(|scheme| known.contains(scheme)).count();
            assert!(built == 0 || built == kind.schemes.len(), "{}", kind.name);
            assert!(kind.url.starts_with(&format!("{}:", kind.schemes[0])), "{}", kind.url);
        }
    }
}
