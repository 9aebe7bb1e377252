//! Where the URL of the store comes from.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::args::StoreArgs;
use crate::exit::ExitError;

/// The variables with the store's URL, or with the file that holds it, if the command line names neither.
const VARIABLE: &str = "DISTLOCK_STORE";
const FILE_VARIABLE: &str = "DISTLOCK_STORE_FILE";
/// Set where the command of `run` does not get its store: with no store at all, a `distlock` in there would
/// take locks in the default file, which excludes nobody on other machines.
const WITHHELD: &str = "DISTLOCK_STORE_WITHHELD";
/// More than any URL has, in bytes.
const LONGEST: u64 = 1 << 16;

/// What `command` must not inherit with the environment: the store's URL, if it may have a password, and any other
/// store than that of an option.
pub(crate) fn withhold(args: &StoreArgs, command: &mut tokio::process::Command) {
    let url = std::env::var_os(VARIABLE).unwrap_or_default();
    if is_option(args) {
        command.env_remove(VARIABLE).env_remove(FILE_VARIABLE).env(WITHHELD, "1");
    } else if may_have_password(&url.to_string_lossy()) {
        command.env_remove(VARIABLE).env(WITHHELD, "1");
    }
}

/// A password stands before an '@', or in a parameter such as `password`, `pass` or `lock_sentinel_password`. A path
/// with these letters does no harm here.
fn may_have_password(url: &str) -> bool {
    url.contains('@') || url.to_ascii_lowercase().contains("pass")
}

/// Lets `command` inherit the store, also if an option names it.
pub(crate) fn pass_on(args: &StoreArgs, command: &mut tokio::process::Command) {
    if is_option(args) {
        command.env_remove(VARIABLE).env_remove(FILE_VARIABLE);
    }
    if let Some(url) = &args.store {
        command.env(VARIABLE, url);
    }
    if let Some(file) = &args.store_file {
        command.env(FILE_VARIABLE, std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    }
}

fn is_option(args: &StoreArgs) -> bool {
    args.store.is_some() || args.store_file.is_some()
}

/// The URL of the store, which may contain a password, and where it came from.
pub(crate) fn choose(
    args: &StoreArgs,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(String, String), ExitError> {
    if let Some(url) = &args.store {
        return Ok((url.clone(), "--store".to_owned()));
    }
    if let Some(file) = &args.store_file {
        return read(file, format!("--store-file {}", file.display()));
    }
    let given = |name| variable(name).filter(|value| !value.is_empty());
    match (given(VARIABLE), given(FILE_VARIABLE)) {
        (Some(_), Some(_)) => Err(ExitError::config(format!(
            "${VARIABLE} and ${FILE_VARIABLE} are both set: unset one of them"
        ))),
        (Some(url), None) => match url.into_string() {
            Ok(url) => Ok((url, format!("${VARIABLE}"))),
            Err(_) => Err(ExitError::config(format!("${VARIABLE} is not valid UTF-8"))),
        },
        (None, Some(file)) => {
            let file = Path::new(&file);
            read(file, format!("${FILE_VARIABLE}, {}", file.display()))
        }
        (None, None) if given(WITHHELD).is_some() => Err(ExitError::config(
            "no store is given, and `distlock run` did not pass its own store to this command",
        )
        .with_hint(format!(
            "start `distlock run` with --pass-store, or put the URL into a file and name it in ${FILE_VARIABLE}"
        ))),
        // Somebody wanted to give one: the default file would exclude nobody on other machines.
        (None, None) => match [VARIABLE, FILE_VARIABLE].into_iter().find(|name| variable(name).is_some()) {
            Some(empty) => Err(ExitError::config(format!("${empty} is empty"))
                .with_hint("set it, or unset it for the default, a file of this machine only")),
            None => default(variable),
        },
    }
}

/// The URL in a file that holds nothing else.
fn read(file: &Path, origin: String) -> Result<(String, String), ExitError> {
    let refuse = |why: &str| ExitError::config(format!("the store's URL, of {origin}: {why}"));
    let mut text = String::new();
    let opened = File::open(file).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text));
    let read = opened.map_err(|error| {
        refuse(&format!("cannot read the file: {error}"))
            .with_hint("it has to be readable for the user that runs distlock, and UTF-8")
    })?;
    let url = text.trim();
    let why = if read as u64 > LONGEST {
        "the file is longer than 64 KiB"
    } else if url.is_empty() {
        "the file is empty"
    } else if url.contains('\n') {
        "the file has several lines"
    } else if url.starts_with(VARIABLE) {
        "the file sets a variable"
    } else {
        return Ok((url.to_owned(), origin));
    };
    Err(refuse(why).with_hint("write the URL into the file, on one line, and nothing else"))
}

fn default(variable: impl Fn(&str) -> Option<OsString>) -> Result<(String, String), ExitError> {
    if !cfg!(feature = "sqlite") {
        return Err(ExitError::config(format!(
            "no store is given, and this build has no SQLite for the default store: pass --store or set ${VARIABLE}"
        )));
    }
    let folder = state_folder(variable)?;
    make_folder(&folder)?;
    let file = folder.join("locks.db");
    Ok((sqlite_url(&file)?, format!("the default, {}", file.display())))
}

/// `$XDG_STATE_HOME/distlock`, else `~/.local/state/distlock`. The XDG base directory specification
/// says that a relative path there is to be ignored.
fn state_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, ExitError> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        path("XDG_STATE_HOME").or_else(|| path("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("distlock")).ok_or_else(|| {
        ExitError::config(format!(
            "no store is given, and the default needs $XDG_STATE_HOME or $HOME: pass --store or set ${VARIABLE}"
        ))
    })
}

fn make_folder(folder: &Path) -> Result<(), ExitError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        ExitError::new(
            crate::exit::code::UNAVAILABLE,
            "unavailable",
            format!("cannot create {} for the default store: {error}", folder.display()),
        )
        .with_hint(format!("create it yourself, pass --store, or set ${VARIABLE}"))
    })
}

/// A URL in which no part of the path can be mistaken for a parameter.
fn sqlite_url(file: &Path) -> Result<String, ExitError> {
    let path = file.to_str().ok_or_else(|| {
        ExitError::config(format!(
            "the state directory {} is not UTF-8: pass --store or set ${VARIABLE}",
            file.display()
        ))
    })?;
    let mut url = "sqlite://".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(store: Option<&str>, file: Option<&Path>) -> StoreArgs {
        let (store, store_file) = (store.map(str::to_owned), file.map(Path::to_owned));
        StoreArgs { store, store_file, json: false }
    }

    fn environment<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn an_option_wins_over_a_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        std::fs::write(&file, " memory://c\n").unwrap();
        let set = [(VARIABLE, "memory://b")];
        let chosen = |args, set: &[_]| choose(&args, environment(set)).unwrap().0;
        assert_eq!(chosen(options(Some("memory://a"), None), &set), "memory://a");
        assert_eq!(chosen(options(None, Some(&file)), &set), "memory://c");
        assert_eq!(chosen(options(None, None), &set), "memory://b");
        let set = [(VARIABLE, ""), (FILE_VARIABLE, file.to_str().unwrap())];
        assert_eq!(chosen(options(None, None), &set), "memory://c");
        let set = [(VARIABLE, "memory://b"), set[1]];
        let error = choose(&options(None, None), environment(&set)).unwrap_err();
        assert!(error.message.contains("both set"), "{error:?}");
    }

    #[test]
    fn a_file_holds_a_url_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        let long = "x".repeat(usize::try_from(LONGEST).unwrap() + 1);
        for (content, why) in [
            (&b"  \n"[..], "is empty"),
            (b"memory://a\nmemory://b\n", "several lines"),
            (b"DISTLOCK_STORE=redis://:secret@a\n", "sets a variable"),
            (b"redis://:secret@\xff", "UTF-8"),
            (long.as_bytes(), "64 KiB"),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = choose(&options(None, Some(&file)), environment(&[])).unwrap_err();
            let text = format!("{} {}", error.message, error.hint.unwrap_or_default());
            assert!(text.contains(why) && !text.contains("secret"), "{why}: {text}");
        }
    }

    #[test]
    fn a_url_that_was_withheld_is_not_replaced_by_the_default() {
        let set = [(WITHHELD, "1"), ("HOME", "/h")];
        let error = choose(&options(None, None), environment(&set)).unwrap_err();
        assert!(error.hint.unwrap().contains("--pass-store"));
        let set = [(WITHHELD, "1"), (VARIABLE, "memory://b")];
        assert_eq!(choose(&options(None, None), environment(&set)).unwrap().0, "memory://b");
    }

    #[test]
    fn a_password_can_stand_in_several_places() {
        for url in [
            "redis://:x@host",
            "redis+unix:///run/redis.sock?user=u&pass=x",
            "redis+sentinel://s1/orders?lock_sentinel_password=x",
            "postgres://db/app?user=u&PassWord=x",
        ] {
            assert!(may_have_password(url), "{url}");
        }
        assert!(!may_have_password("postgres://db/app?user=u&lock_table=locks"));
    }

    #[test]
    fn an_empty_variable_is_no_choice_of_the_default() {
        for name in [VARIABLE, FILE_VARIABLE] {
            let set = [(name, ""), ("HOME", "/h")];
            let error = choose(&options(None, None), environment(&set)).unwrap_err();
            assert!(error.message.contains(name) && error.message.contains("empty"), "{error:?}");
        }
    }

    #[test]
    fn the_state_folder_is_where_xdg_says() {
        let both = [("XDG_STATE_HOME", "/s"), ("HOME", "/h")];
        assert_eq!(state_folder(environment(&both)).unwrap(), Path::new("/s/distlock"));
        let relative = [("XDG_STATE_HOME", "s"), ("HOME", "/h")];
        assert_eq!(
            state_folder(environment(&relative)).unwrap(),
            Path::new("/h/.local/state/distlock")
        );
        assert!(state_folder(environment(&[])).is_err());
    }

    #[test]
    fn a_path_stays_a_path() {
        let url = sqlite_url(Path::new("/a b/c?d#e%f/ü.db")).unwrap();
        assert_eq!(url, "sqlite:///a%20b/c%3Fd%23e%25f/%C3%BC.db");
    }
}
