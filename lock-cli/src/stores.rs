//! `distlock stores`: the stores of this build, and the form of their URLs.

use distlock::StoreKind;
use serde_json::json;

use crate::args::StoresArgs;
use crate::exit::Failure;
use crate::output;

pub(crate) fn stores(args: &StoresArgs) -> Result<u8, Failure> {
    let row = |kind: &StoreKind| {
        let built = if kind.is_built() { "yes" } else { "no" };
        [kind.name(), built, kind.url(), &kind.schemes().join(", ")].map(str::to_owned)
    };
    let object = |kind: &StoreKind| json!({ "name": kind.name(), "built": kind.is_built(), "url": kind.url(), "schemes": kind.schemes() });
    let stores = distlock::stores();
    let text = output::table(["STORE", "BUILT", "URL", "SCHEMES"], stores.iter().map(row));
    let objects: Vec<_> = stores.iter().map(object).collect();
    output::result(args.json, json!({ "stores": objects }), &text)?;
    Ok(0)
}
