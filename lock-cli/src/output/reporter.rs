//! What `run` and `acquire` write to standard error. Standard output is for the command, or the
//! lease.

use distlock::HolderInfo;
use serde_json::{Value, json};

use crate::args::WantArgs;
use crate::output::holder;
use crate::output::{self, quoted};
use crate::run::supervisor::protocol::CommandExit;
use crate::signals;

/// How much `run` and `acquire` report, and in which form.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    /// The locks that they are about: usually one.
    names: Vec<String>,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    verbose: bool,
}

impl Reporter {
    pub(crate) fn new(names: &[String], args: &WantArgs) -> Self {
        Self {
            names: names.to_vec(),
            json: args.store.json,
            quiet: args.quiet,
            verbose: args.verbose,
        }
    }

    /// Those about one lock.
    pub(crate) fn of(&self, name: &str) -> Self {
        Self { names: vec![name.to_owned()], ..self.clone() }
    }

    /// The lock's name in quotes, or all of them.
    pub(crate) fn name(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| quoted(name)).collect();
        names.join(" and ")
    }

    /// Reported only if asked for.
    pub(crate) fn detail(&self, event: &str, fields: Value, text: &str) {
        if self.verbose || (self.json && !self.quiet) {
            self.report(event, fields, text);
        }
    }

    /// Reported unless `--quiet` is given.
    pub(crate) fn note(&self, event: &str, fields: Value, text: &str) {
        if !self.quiet {
            self.report(event, fields, text);
        }
    }

    /// Always reported, after the name of the lock.
    pub(crate) fn warn(&self, event: &str, fields: Value, text: &str) {
        self.report(event, fields, &format!("{}: {text}", self.name()));
    }

    fn report(&self, event: &str, mut fields: Value, text: &str) {
        if !self.json {
            return output::stderr_line(&format!("distlock: {text}"));
        }
        match &self.names[..] {
            [name] => fields["name"] = json!(name),
            names => fields["names"] = json!(names),
        }
        output::event(event, fields);
    }

    pub(crate) fn waiting(&self, holder: Option<&HolderInfo>, waited_ms: u64) {
        let fields = json!({ "holder": holder.map(holder::holder_json), "waited_ms": waited_ms });
        let by = holder.map(|holder| format!(", held by {}", holder::sentence(holder)));
        let text = format!("waiting for {}{}", self.name(), by.unwrap_or_default());
        self.note("waiting", fields, &text);
    }

    pub(crate) fn ended(&self, ended: CommandExit) {
        let (fields, text) = match ended {
            CommandExit::Exited(code) => (json!({ "code": code }), format!("exited with {code}")),
            CommandExit::Signaled(signal) => {
                (json!({ "signal": signal }), format!("was ended by {}", signals::name(signal)))
            }
        };
        self.detail("ended", fields, &format!("the command {text}"));
    }
}
