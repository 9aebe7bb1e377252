//! Lua scripts, called by their digest.

use std::borrow::Cow;

use lock_core::Victim;
use redis::Cmd;

/// A script of this crate. Its digest is computed once.
#[derive(Debug)]
pub(crate) struct Script {
    name: &'static str,
    /// Never contains user input: names and values are passed as `KEYS` and `ARGV`.
    text: String,
    sha: String,
}

pub(crate) fn compiled(name: &'static str, text: &str) -> Script {
    let text = crate::seams::text_of(name, text);
    let sha = redis::Script::new(&text).get_hash().to_owned();
    Script { name, text, sha }
}

/// Makes a static [`Script`] of each name by concatenating its files.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($file:literal)+;)+) => {$(
        $(#[$doc])*
        pub(crate) static $name: std::sync::LazyLock<crate::node::Script> =
            std::sync::LazyLock::new(|| {
                let text = concat!($(include_str!(concat!($file, ".lua")), "\n"),+);
                crate::node::compiled(stringify!($name), text)
            });
    )+};
}
pub(crate) use scripts;

impl Script {
    /// A call of this script, to which keys and arguments are added.
    pub(crate) fn call(&self) -> ScriptCall<'_> {
        let (keys, args) = (Vec::with_capacity(8), Vec::with_capacity(12));
        ScriptCall { script: self, keys, args, is_of_process: false }
    }
}

/// One call of a script.
#[derive(Debug)]
#[must_use = "a call does nothing until a node runs it"]
pub(crate) struct ScriptCall<'a> {
    script: &'a Script,
    keys: Vec<Cow<'a, [u8]>>,
    args: Vec<Cow<'a, [u8]>>,
    is_of_process: bool,
}

impl<'a> ScriptCall<'a> {
    /// Adds a last argument: the run id of the process to which the connection leads.
    pub(crate) fn of_process(mut self) -> Self {
        self.is_of_process = true;
        self
    }

    pub(crate) fn is_of_process(&self) -> bool {
        self.is_of_process
    }

    pub(crate) fn key(mut self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.keys.push(Cow::Borrowed(key.as_ref()));
        self
    }

    pub(crate) fn keys<K: AsRef<[u8]> + 'a>(
        mut self,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> Self {
        self.keys.extend(keys.into_iter().map(|key| Cow::Borrowed(key.as_ref())));
        self
    }

    pub(crate) fn arg(mut self, arg: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.args.push(Cow::Borrowed(arg.as_ref()));
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.args.push(Cow::Owned(number.to_string().into_bytes()));
        self
    }

    /// A number, or nothing.
    pub(crate) fn maybe(self, number: Option<u64>) -> Self {
        match number {
            Some(number) => self.number(number),
            None => self.arg(""),
        }
    }

    /// What a hold must be named to be released by force: `=` and its mark, or `any`.
    pub(crate) fn victim(mut self, victim: &Victim) -> Self {
        let Victim::Shown(mark) = victim else { return self.arg("any") };
        self.args.push(Cow::Owned([b"=", mark.as_bytes()].concat()));
        self
    }

    pub(crate) fn flag(self, flag: bool) -> Self {
        self.arg(if flag { "1" } else { "0" })
    }

    /// The name of the script.
    pub(crate) fn name(&self) -> &'static str {
        self.script.name
    }

    /// By digest: short, for a script in the server's cache.
    pub(crate) fn by_digest(&self, process: Option<&str>) -> Cmd {
        self.command("EVALSHA", &self.script.sha, process)
    }

    /// By text, for a server that does not know the script (any more). It stays in the cache, so one
    /// round trip repairs a `SCRIPT FLUSH`, and this form cannot meet `NOSCRIPT` again.
    pub(crate) fn by_text(&self, process: Option<&str>) -> Cmd {
        self.command("EVAL", &self.script.text, process)
    }

    fn command(&self, name: &str, script: &str, process: Option<&str>) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for part in self.keys.iter().chain(&self.args) {
            command.arg(part.as_ref());
        }
        // None adds nothing.
        command.arg(process);
        command
    }
}
