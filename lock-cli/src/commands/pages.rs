//! What is known without a store: `distlock completions`, `distlock man` and `distlock stores`.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use distlock::StoreKind;
use serde_json::json;

use crate::args::Cli;
use crate::exit::ExitError;
use crate::output::{self, quoted};

pub(crate) fn completions(shell: Shell) -> Result<u8, ExitError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "distlock", &mut text);
    output::page(&text)?;
    Ok(0)
}

pub(crate) fn man(subcommand: Option<&str>) -> Result<u8, ExitError> {
    let mut command = command();
    command.build();
    let page = match subcommand {
        None => &command,
        Some(name) => command.find_subcommand(name).ok_or_else(|| {
            ExitError::usage(format!("there is no subcommand {}", quoted(name)))
                .with_hint("`distlock help` lists them")
        })?,
    };
    let title = page.get_display_name().unwrap_or("distlock").to_owned();
    let mut text = Vec::new();
    let written = Man::new(page.clone()).title(title).render(&mut text);
    written.map_err(|error| ExitError::internal(format!("cannot render the page: {error}")))?;
    output::page(&text)?;
    Ok(0)
}

/// The command line without its hidden subcommands.
fn command() -> clap::Command {
    let whole = Cli::command();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let shown: Vec<_> = shown.collect();
    let about = whole.get_about().cloned().unwrap_or_default();
    let after = whole.get_after_help().cloned().unwrap_or_default();
    let empty = clap::Command::new("distlock").version(env!("CARGO_PKG_VERSION"));
    empty.about(about).after_help(after).subcommands(shown)
}

pub(crate) fn stores(as_json: bool) -> Result<u8, ExitError> {
    let row = |kind: &StoreKind| {
        let built = if kind.is_built() { "yes" } else { "no" };
        [kind.name(), built, kind.url_pattern(), &kind.schemes().join(", ")].map(str::to_owned)
    };
    let object = |kind: &StoreKind| json!({ "name": kind.name(), "built": kind.is_built(), "url": kind.url_pattern(), "schemes": kind.schemes() });
    let stores = distlock::stores();
    let text = output::table(["STORE", "BUILT", "URL", "SCHEMES"], stores.iter().map(row));
    let objects: Vec<_> = stores.iter().map(object).collect();
    output::result(as_json, json!({ "stores": objects }), &text)
}
