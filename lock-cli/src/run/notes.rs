//! What `run` and `acquire` write to standard error. Standard output is for the command, or the
//! lease.

use distlock::HolderInfo;
use serde_json::{Value, json};

use super::protocol::Ended;
use super::signals;
use crate::args::WantArgs;
use crate::holder;
use crate::output::{self, quoted};

/// How much `run` and `acquire` report, and in which form.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    /// The locks that they are about: usually one.
    names: Vec<String>,
    json: bool,
    quiet: bool,
    verbose: bool,
}

impl Notes {
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

    pub(crate) fn json(&self) -> bool {
        self.json
    }

    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// The lock's name in quotes, or all of them.
    pub(crate) fn name(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| quoted(name)).collect();
        names.join(" and ")
    }

    /// Reported only if asked for.
    pub(crate) fn detail(&self, event: &str, fields: Value, text: impl FnOnce() -> String) {
        if self.json && !self.quiet {
            self.event(event, fields);
        } else if self.verbose {
            output::stderr_line(&format!("distlock: {}", text()));
        }
    }

    /// Reported unless `--quiet` is given.
    pub(crate) fn note(&self, event: &str, fields: Value, text: impl FnOnce() -> String) {
        if !self.quiet {
            self.warn(event, fields, text);
        }
    }

    /// Always reported.
    pub(crate) fn warn(&self, event: &str, fields: Value, text: impl FnOnce() -> String) {
        if self.json {
            self.event(event, fields);
        } else {
            output::stderr_line(&format!("distlock: {}", text()));
        }
    }

    pub(crate) fn started(&self, pid: i32) {
        self.detail("started", json!({ "pid": pid }), || {
            format!("the command runs as process {pid}")
        });
    }

    pub(crate) fn waiting(&self, holder: Option<&HolderInfo>, waited_ms: u64) {
        let fields = json!({ "holder": holder.map(holder::holder_json), "waited_ms": waited_ms });
        self.note("waiting", fields, || match holder {
            Some(holder) => {
                format!("waiting for {}, held by {}", self.name(), holder::sentence(holder))
            }
            None => format!("waiting for {}", self.name()),
        });
    }

    pub(crate) fn ended(&self, ended: Ended) {
        let (fields, text) = match ended {
            Ended::Exited(code) => (json!({ "code": code }), format!("exited with {code}")),
            Ended::Signaled(signal) => {
                (json!({ "signal": signal }), format!("was ended by {}", signals::name(signal)))
            }
        };
        self.detail("ended", fields, || format!("the command {text}"));
    }

    fn event(&self, event: &str, mut fields: Value) {
        match &self.names[..] {
            [name] => fields["name"] = json!(name),
            names => fields["names"] = json!(names),
        }
        output::event(event, fields);
    }
}
