//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::exit::{MovableFailure, MovedCode};
use crate::signals;

const AFTER_HELP: &str = "\
Exit codes: `run` exits with the command's own code; if signal N killed the command, the same signal then ends `run` \
(128+N in a shell). 64 wrong usage; 69 the store cannot be reached, or refused the request; 70 internal error; \
75 not acquired; 78 wrong configuration; 79 the lock was lost while the command ran or before --min-hold had passed, \
or --max-hold was reached, or a lease has expired; 126 the command cannot be executed; 127 the command was not found; \
130 or 143 interrupted while waiting.";

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
        /// How many permits there are, shown next to those that are held: the store does not keep this
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
        /// The order of the list
        #[arg(long, value_enum, default_value = "name")]
        sort: SortBy,
    },
    /// Take a lock, print its lease and exit: for scripts that cannot be run under `run`
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
        /// How long the store keeps the lock from now on. Default: 30s, whatever the --ttl of
        /// `acquire` was
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Release a lock taken by `acquire`, or take a lock away from its holder
    Release(ReleaseArgs),
    /// Watch locks: a table on a terminal, otherwise a line of JSON for each change
    Watch {
        /// The names of the locks
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        store: StoreArgs,
        /// How many permits there are, shown next to those that are held: the store does not keep this
        #[arg(long, value_name = "N", value_parser = permits())]
        permits: Option<u32>,
        /// How often to query the store
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "500ms")]
        every: Duration,
    },
    /// Check whether the store can keep locks, and suggest a fix for what is wrong
    Doctor {
        /// The lock to take and release, to check your access rights. Default: a new name. Give one if
        /// your rights cover certain names only
        name: Option<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Measure how long locking takes, compared with a bare round trip to the store
    Bench {
        #[command(flatten)]
        store: StoreArgs,
        /// How many times to measure each call
        #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        rounds: u32,
        /// How many times to measure the hand-over to a waiting client
        #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        hand_overs: u32,
    },
    /// Test a store with the conformance suite of this library. It leaves no locks behind, but puts
    /// some load on the server
    #[cfg(feature = "conformance")]
    Conformance(ConformanceArgs),
    /// Let a Redlock quorum that has lost data, and is waiting for an operator, vote again
    Recover {
        #[command(flatten)]
        store: StoreArgs,
        /// Keep trying until the store grants locks again, for at most this long
        #[arg(short, long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// List the stores in this build and what their URLs look like
    Stores {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page as roff: distlock man | man -l -
    Man {
        /// The subcommand whose page to print. Default: the page of distlock itself
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
        let matches = command.try_get_matches_from_mut(words).map_err(with_hint)?;
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

/// Without `--`, the command was read as the name of a second lock.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.as_slice(),
        _ => &[],
    };
    if error.kind() == ErrorKind::MissingRequiredArgument
        && missing.iter().any(|argument| argument.contains("COMMAND"))
    {
        let hint = "the command comes after `--`: distlock run NAME -- COMMAND";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The URL of the store, such as sqlite:///var/lib/app/locks.db. Default: $DISTLOCK_STORE, or an
    /// SQLite file in your state directory. Do not write a password here: other users can see
    /// command lines
    #[arg(long, value_name = "URL", conflicts_with = "store_file")]
    pub(crate) store: Option<String>,
    /// A file that holds the URL of the store, for a URL with a password. Default:
    /// $DISTLOCK_STORE_FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) store_file: Option<PathBuf>,
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
    /// Give up after waiting this long. Default: wait for as long as the store answers, and exit with 69 if it
    /// has been silent for lock_unavailable_after (30s on most stores). 0s is the same as --nonblock
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if another client holds the lock
    #[arg(short, long)]
    pub(crate) nonblock: bool,
    /// Exit with this code, instead of 75, if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Exit with another code for a failure of distlock itself, such as unavailable=200. WHAT is not-acquired (75),
    /// unavailable (69), denied (69), config (78), internal (70) or lost (79). Useful if your command itself exits
    /// with one of these codes
    #[arg(long, value_name = "WHAT=CODE", value_parser = MovedCode::parse)]
    pub(crate) exit_code: Vec<MovedCode>,
    /// Append what happens to this file, as lines of JSON. It may be a pipe, or /dev/fd/3. Standard error remains
    /// for people
    #[arg(long, value_name = "FILE")]
    pub(crate) events: Option<PathBuf>,
    /// The name that `status` and `list` show for you. Default: host name and process id
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Print nothing about waiting or about not getting the lock
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report when the lock is acquired, with its fencing token, and when it is released
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl WantArgs {
    /// Whether nothing is waited for.
    pub(crate) fn is_try(&self) -> bool {
        self.nonblock || self.wait == Some(Duration::ZERO)
    }

    /// Where several are about the same, the last one counts.
    pub(crate) fn moved_codes(&self) -> Vec<MovedCode> {
        let conflict = self.conflict_exit_code;
        let conflict = conflict.map(|code| MovedCode { what: MovableFailure::NotAcquired, code });
        self.exit_code.iter().copied().chain(conflict).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The name of the lock: 1 to 512 bytes without control characters, or 506 with --permits, --read or
    /// --write. With several names, the command runs once all the locks are held
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) want: WantArgs,
    /// Take one of N permits, so that at most N commands run at a time. $DISTLOCK_SLOT is the number of
    /// the permit, from 0
    #[arg(long, value_name = "N", value_parser = permits(), conflicts_with_all = ["read", "write"])]
    pub(crate) permits: Option<u32>,
    /// Run alongside other commands with --read, while none runs with --write
    #[arg(long, conflicts_with = "write")]
    pub(crate) read: bool,
    /// Run while no other command runs with --read or --write
    #[arg(long)]
    pub(crate) write: bool,
    /// Stop the command when it has held the lock this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock at least this long, even if the command ends sooner, so that a machine whose
    /// clock is behind does not run the job again. A signal ends this wait, and leaves the lock to its
    /// --ttl; after INT, QUIT or TERM to the running command there is no wait
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Keep others away this long after the lock was lost because it could not be renewed: for requests
    /// of the command that are still on their way. At most ten times the --ttl
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,
    /// When the command must stop: the time between the first signal and SIGKILL. At most a third of
    /// the TTL if its lease is about to end
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) kill_after: Duration,
    /// The signal that asks the command to stop: TERM, INT, HUP, QUIT, USR1, USR2 or KILL
    #[arg(short, long, value_name = "SIGNAL", value_parser = signals::parse, default_value = "TERM")]
    pub(crate) signal: i32,
    /// What to do with the command when the lock is lost: another copy may already be running
    #[arg(long, value_enum, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Let the command inherit the store that --store or --store-file names, $DISTLOCK_STORE even if it
    /// may have a password, and $DISTLOCK_LEASE
    #[arg(long)]
    pub(crate) pass_store: bool,
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
    /// Send it --signal, and SIGKILL after --kill-after
    Term,
    /// Send it SIGKILL
    Kill,
    /// Let it continue without the lock; the exit code is still 79
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
    /// $DISTLOCK_LEASE. It is a secret: other users can see command lines
    pub(crate) lease: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Take the lock away from its holder, which keeps working until it notices. Of a name with permits,
    /// or with readers and a writer, all holds end, and each is reported
    #[arg(long, conflicts_with = "lease")]
    pub(crate) force: bool,
    /// Release only what this owner holds. ID is the 8 digits that `status` shows, or more of the owner id
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
    /// Run only the cases whose names begin with one of these, such as c03 or s01
    pub(crate) cases: Vec<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The format of the report on standard output, unless --json is given
    #[arg(long, value_enum, default_value = "text", conflicts_with = "json")]
    pub(crate) report: ReportForm,
    /// How many cases to run at a time; cases spend most of their time asleep
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
}

#[cfg(feature = "conformance")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// Failures and a summary, to read
    Text,
    /// JUnit XML, for build servers
    Junit,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// By name
    Name,
    /// The lock held for the longest time first
    Age,
    /// The lease that ends soonest first
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
