//! The scripts of a Redlock node.

use std::sync::LazyLock;

use crate::script::Script;

/// All scripts, with their digests.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) raise: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) look: Script,
    pub(crate) force: Script,
    pub(crate) report: Script,
    pub(crate) begin: Script,
    pub(crate) admit: Script,
}

macro_rules! script {
    ($file:literal) => {
        Script::new(include_str!(concat!("scripts/", $file, ".lua")))
    };
    (common $file:literal) => {
        Script::new(concat!(
            include_str!("scripts/common.lua"),
            "\n",
            include_str!(concat!("scripts/", $file, ".lua"))
        ))
    };
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: script!(common "acquire"),
    raise: script!(common "raise"),
    renew: script!(common "renew"),
    release: script!(common "release"),
    look: script!("look"),
    force: script!("force"),
    report: script!("report"),
    begin: script!("begin"),
    admit: script!("admit"),
});
