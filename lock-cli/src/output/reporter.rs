//! What `run` and `acquire` write to standard error, and to the file of events. Standard output is for
//! the command, or the lease.

use distlock::admin::HolderInfo;
use serde_json::{Value, json};

use crate::args::WantArgs;
use crate::output::{self, holder, quoted, writers};
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

    /// Shown only if asked for.
    pub(crate) fn detail(&self, event: &str, fields: Value, text: &str) {
        self.report(self.verbose || (self.json && !self.quiet), event, fields, text);
    }

    /// Shown unless `--quiet` is given.
    pub(crate) fn note(&self, event: &str, fields: Value, text: &str) {
        self.report(!self.quiet, event, fields, text);
    }

    /// Always shown, after the name of the lock.
    pub(crate) fn warn(&self, event: &str, fields: Value, text: &str) {
        self.report(true, event, fields, &format!("{}: {text}", self.name()));
    }

    fn report(&self, is_shown: bool, event: &str, mut fields: Value, text: &str) {
        match &self.names[..] {
            [name] => fields["name"] = json!(name),
            names => fields["names"] = json!(names),
        }
        output::event(event, fields, is_shown && self.json);
        if is_shown && !self.json {
            output::stderr_line(&format!("distlock: {text}"));
        }
    }

    /// Whether anybody wants to know about the wait.
    pub(crate) fn tells_of_waiting(&self) -> bool {
        !self.quiet || writers::has_events()
    }

    /// Only the event if a terminal shows the wait already.
    pub(crate) fn waiting(&self, holder: Option<&HolderInfo>, waited_ms: u64, on_terminal: bool) {
        let fields = json!({ "holder": holder.map(holder::holder_json), "waited_ms": waited_ms });
        let by = holder.map(|holder| format!(", held by {}", holder::sentence(holder)));
        let text = format!("waiting for {}{}", self.name(), by.unwrap_or_default());
        self.report(!self.quiet && !on_terminal, "waiting", fields, &text);
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
