//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::signals;

const AFTER_HELP: &str = "\
Exit codes: of `run` the command's own; 128+N if signal N killed it, which then ends `run` too; 64 wrong usage; 69 the store \
cannot be reached or refused us; 70 internal error; 75 not acquired; 78 wrong configuration; 79 the \
lock was lost while the command ran or before --min-hold had passed, --max-hold was reached, or a lease has expired; 126 the command cannot be executed; \
127 the command was not found; 130 or 143 interrupted while waiting.";

/// Run a command under a distributed lock, and see who holds what.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
    /// Whether errors are printed as JSON too.
    #[arg(skip)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Take one or more locks, run a command, release them
    Run(RunArgs),
    /// Show who holds a lock, of whatever kind: exclusively, permits, to read, to write
    Status {
        /// The name of the lock
        name: String,
        #[command(flatten)]
        store: StoreArgs,
        /// How many permits there are, to be shown beside those that are held: it is kept nowhere
        #[arg(long, value_name = "N", value_parser = permits())]
        permits: Option<u32>,
        /// Print nothing; exit 0 if the lock is held, 1 if it is free
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
    },
    /// List the locks that are held or waited for
    List {
        /// Only names that start with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        #[command(flatten)]
        store: StoreArgs,
        /// The order
        #[arg(long, value_enum, default_value = "name")]
        sort: SortBy,
    },
    /// Take the lock, print its lease, and exit: for scripts that cannot be run under `run`
    Acquire {
        /// The name of the lock: 1 to 512 bytes without control characters
        name: String,
        #[command(flatten)]
        want: WantArgs,
    },
    /// Renew a lock taken by `acquire`
    Renew {
        #[command(flatten)]
        lease: LeaseArgs,
        /// How long the store keeps the lock from now on. Default: 30s, whatever ttl `acquire` was
        /// given
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Release a lock taken by `acquire`, or take a lock away from its holder
    Release(ReleaseArgs),
    /// Show who holds these locks, again and again: a table on a terminal, else a line of JSON for
    /// each change
    Watch {
        /// The names of the locks
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        store: StoreArgs,
        /// How many permits there are, to be shown beside those that are held: it is kept nowhere
        #[arg(long, value_name = "N", value_parser = permits())]
        permits: Option<u32>,
        /// How often the store is asked
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "500ms")]
        every: Duration,
    },
    /// Find out whether the store can keep locks, what is wrong with it, and what to do about it
    Doctor {
        /// The lock that is taken and released to prove the rights; a new name by default. Name one if
        /// your rights cover certain names only
        name: Option<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Measure how long locks take, beside a bare round trip to the store
    Bench {
        #[command(flatten)]
        store: StoreArgs,
        /// How often each call is measured
        #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        rounds: u32,
        /// How often the hand-over to a waiting client is measured
        #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        hand_overs: u32,
    },
    /// Judge a store by the conformance suite of this library. Its locks end with the run; use a
    /// server on which some load does no harm
    #[cfg(feature = "conformance")]
    Conformance(ConformanceArgs),
    /// Let a Redlock quorum serve again that waits for a person, since its nodes have lost their data
    Recover {
        #[command(flatten)]
        store: StoreArgs,
        /// Repeat it until the store serves again, for at most this long
        #[arg(short, long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Show the stores of this build, and the form of their URLs
    Stores {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, as roff: distlock man | man -l -
    Man {
        /// The page of this subcommand
        subcommand: Option<String>,
    },
    /// The resident half of `run`; not for direct use
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// The end by a signal; not for direct use
    #[command(hide = true)]
    Die { signal: i32 },
}

impl Cli {
    /// # Errors
    ///
    /// As clap shows them, help among them.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> clap::error::Result<Self> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(words)?;
        let mut cli =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let Some((_, given)) = matches.subcommand() else { return Ok(cli) };
        cli.json = matches!(given.try_get_one("json"), Ok(Some(true)));
        if let CliCommand::Run(args) = &mut cli.command
            && args.shell.is_some()
        {
            let line = given.index_of("shell");
            let names = given.indices_of("names").into_iter().flatten();
            args.name_after_line = names.skip(1).any(|name| Some(name) > line);
        }
        Ok(cli)
    }
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store of the locks, such as sqlite:///var/lib/app/locks.db. Default: $DISTLOCK_STORE,
    /// else an SQLite file in your state directory. Put a URL with a password in the variable:
    /// other users can see command lines
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Print JSON: results on standard output; the events of `run`, and errors, on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a lock is asked for.
#[derive(Debug, Args)]
pub(crate) struct WantArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How long the store keeps the lock without a renewal. If this machine dies, others wait this
    /// long. Default: 30s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Give up after waiting this long. Default: wait forever
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if another client holds the lock
    #[arg(short, long)]
    pub(crate) nonblock: bool,
    /// Exit with this code, instead of 75, if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Who holds the lock, as shown by `status` and `list`. Default: host name and process id
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Print nothing about waiting or about not getting the lock
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report when the lock is acquired, with its fencing token, and when it is released
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The name of the lock: 1 to 512 bytes without control characters. With several names, the
    /// command runs when all of them are held
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) want: WantArgs,
    /// Take one of this many permits of the name, so that at most this many commands run at a time. The
    /// number of the permit, from 0, is in $DISTLOCK_SLOT
    #[arg(long, value_name = "N", value_parser = permits(), conflicts_with_all = ["read", "write"])]
    pub(crate) permits: Option<u32>,
    /// Run beside others with --read, while nobody runs with --write
    #[arg(long, conflicts_with = "write")]
    pub(crate) read: bool,
    /// Run while nobody else runs with --read or --write
    #[arg(long)]
    pub(crate) write: bool,
    /// Stop the command when it has held the lock this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock at least this long, even if the command ends sooner: for a job that must not
    /// be run again by a machine whose clock is behind. A signal ends the wait for that, and leaves the
    /// lock to its --ttl
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Keep others away this long after the lock was lost because it could not be renewed: for requests
    /// of the command that are still on their way. At most ten times the --ttl
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,
    /// How long the command has between the first signal and SIGKILL when it must stop. When its
    /// lease is ending, that is a third of the ttl at most
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) kill_after: Duration,
    /// The signal that asks the command to stop: TERM, INT, HUP, QUIT, USR1, USR2 or KILL
    #[arg(short, long, value_name = "SIGNAL", value_parser = signals::parse, default_value = "TERM")]
    pub(crate) signal: i32,
    /// What happens to the command when the lock is lost. It is not certain then that it is the only
    /// one that runs
    #[arg(long, value_enum, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Whether a second name comes after `-c LINE`, where `sh` has arguments.
    #[arg(skip)]
    pub(crate) name_after_line: bool,
    /// Run this line with /bin/sh instead of a command
    #[arg(short = 'c', long = "shell", value_name = "LINE", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,
    /// The command and its arguments, after `--`, executed without a shell
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// It gets --signal, and SIGKILL --kill-after later
    Term,
    /// It gets SIGKILL
    Kill,
    /// It goes on without the lock; the exit code is 79 all the same
    Ignore,
}

impl RunArgs {
    /// The program that is executed, and its arguments.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        match &self.shell {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }
}

/// A lock that is held by anyone who knows its lease.
#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    /// The name of the lock
    pub(crate) name: String,
    /// The lease printed by `acquire`, or - to read it from standard input. Default:
    /// $DISTLOCK_LEASE. It is a secret, and other users can see command lines
    pub(crate) lease: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Release it no matter who holds it: the holder is not asked, and keeps working until it
    /// notices. Of a name with permits, or with readers and a writer, all that are held, each reported
    #[arg(long, conflicts_with = "lease")]
    pub(crate) force: bool,
    /// Release it, or the parts of it, only if this owner holds them: the id that `status` shows, or its beginning
    #[arg(long, value_name = "ID", value_parser = owner, requires = "force")]
    pub(crate) owner: Option<String>,
    /// Release only the permit with this number
    #[arg(long, value_name = "N", requires = "force")]
    pub(crate) slot: Option<u32>,
    /// Do not ask for confirmation
    #[arg(long, short, requires = "force")]
    pub(crate) yes: bool,
}

/// What `run` passes to its supervisor at the start; the rest goes over the socket.
#[derive(Debug, Args)]
pub(crate) struct SuperviseArgs {
    /// The process that watches the lease.
    #[arg(long)]
    pub(crate) parent: i32,
    /// The abstract socket on which it listens.
    #[arg(long)]
    pub(crate) socket: String,
    /// Whether the command shares our process group with others, so that the group must not be
    /// signalled.
    #[arg(long)]
    pub(crate) shared_group: bool,
    #[arg(long)]
    pub(crate) signal: i32,
    #[arg(long)]
    pub(crate) kill_after_ns: u64,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// How many permits a name can have.
fn permits() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=256)
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write a number and a unit, such as 30s, 500ms or 1h30m"))
}

fn owner(text: &str) -> Result<String, String> {
    let hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if hex && (8..=32).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err("an owner is 8 to 32 lower-case hexadecimal digits, as `distlock status` shows it"
        .to_owned())
}

#[cfg(feature = "conformance")]
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Only cases whose names begin with one of these, such as c03 or s01
    pub(crate) cases: Vec<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The form of the report on standard output. --json is short for json
    #[arg(long, value_enum, default_value = "text", conflicts_with = "json")]
    pub(crate) report: ReportForm,
    /// How many cases run at the same time; they mostly sleep
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
}

#[cfg(feature = "conformance")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// Failures and a summary, for people
    Text,
    /// One object with all cases
    Json,
    /// The XML that build servers read
    Junit,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// By name
    Name,
    /// The lock that has been held longest first
    Age,
    /// The lease that ends first
    Left,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_owner_is_hexadecimal() {
        assert!(owner("0123abcd").is_ok());
        for bad in ["", "0123abc", "0123ABCD", "0123abcg", &"a".repeat(33)] {
            assert!(owner(bad).is_err(), "{bad}");
        }
    }
}
