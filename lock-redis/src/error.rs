//! Maps the driver's errors to ours.

use lock_core::{Error, ErrorKind};
use lock_kit::server::MinimumVersion;
use redis::{RedisError, ServerErrorKind};

/// `EVALSHA` with effects replication is the default since Redis 5; 6.0 is the oldest that was tested.
pub(crate) const REDIS: MinimumVersion =
    MinimumVersion::new("Redis", [6, 0, 0], "scripts were not tested on older ones");

/// How far the request had got when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStage {
    /// Nothing of it was sent.
    Connecting,
    /// It was handed to the connection: the server may have acted, or may act later.
    Sent,
}

/// Describes `error` of the server at `endpoint`. The driver's own text names neither user nor
/// password; the server's text does not either.
pub(crate) fn from_redis(error: RedisError, stage: RequestStage, endpoint: &str) -> Error {
    let code = code_of(&error);
    let kind = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => ErrorKind::Denied,
        _ if lacks_hello(&error) => {
            return Error::unsupported(format!(
                "the Redis server at {endpoint} does not know HELLO: use {REDIS} or newer"
            ))
            .with_source_shown_as(error, "");
        }
        _ if runs_no_scripts(&error) => {
            return Error::unsupported(format!(
                "the Redis server at {endpoint} does not know EVALSHA: it is probably a Sentinel, which keeps no locks. Use {}, or give the address of the server itself",
                sentinel_url(endpoint)
            ))
            .with_source_shown_as(error, "");
        }
        redis::ErrorKind::Server(ServerErrorKind::CrossSlot | ServerErrorKind::Moved) => {
            return Error::config(format!(
                "the Redis server at {endpoint} is a node of a Redis Cluster, where no script may use the lock and the mark for all names together. redis:// is for one server, and redis+sentinel:// for a master with replicas; a cluster is not supported"
            ))
            .with_source_shown_as(error, "");
        }
        redis::ErrorKind::InvalidClientConfig => ErrorKind::Config,
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => ErrorKind::Store,
        _ => match code {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => ErrorKind::Denied,
            _ if error.detail().is_some_and(tells_of_a_right) => ErrorKind::Denied,
            code if TRANSIENT.contains(&code) => ErrorKind::Unavailable,
            "" => ErrorKind::Unavailable,
            _ => ErrorKind::Store,
        },
    };
    // A refusal before the first write of a script leaves nothing behind. `OOM` and `MISCONF` are
    // met at the first write, since a script that has written once may go on.
    let refused = TRANSIENT.contains(&code)
        || matches!(code, "NOAUTH" | "WRONGPASS")
        || is_refused_before_it_runs(&error);
    let what = match (stage, kind) {
        (RequestStage::Connecting, ErrorKind::Denied) => "refused the credentials",
        (RequestStage::Connecting, _) if is_about_a_certificate(&error) => CERTIFICATES,
        (RequestStage::Connecting, _) if hangs_up(&error) => HANGS_UP,
        (RequestStage::Connecting, _) => "cannot be reached",
        (RequestStage::Sent, ErrorKind::Denied) if is_about_a_key(&error) => KEYS,
        (RequestStage::Sent, ErrorKind::Denied) => "denied a right that locks need",
        (RequestStage::Sent, ErrorKind::Unavailable) => "did not serve the request",
        (RequestStage::Sent, _) => "answered with an error",
    };
    let described =
        Error::new(kind, format!("the Redis server at {endpoint} {what}")).with_source(error);
    match stage {
        // Nothing was sent.
        RequestStage::Connecting => described,
        RequestStage::Sent if refused => described,
        RequestStage::Sent => described.with_unknown_effect(),
    }
}

/// Whether the server is older than RESP3. The driver knows the words of Redis 5 only.
pub(crate) fn lacks_hello(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.detail().is_some_and(|detail| detail.starts_with("unknown command 'HELLO'"))
}

/// A Sentinel answers on a port of its own, and knows few commands.
fn runs_no_scripts(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("unknown command 'EVALSHA'"))
}

/// How an endpoint ends that expects TLS.
pub(crate) const OVER_TLS: &str = " over TLS";

/// The URL of what a sentinel at this endpoint watches.
fn sentinel_url(endpoint: &str) -> String {
    let (scheme, address) = match endpoint.strip_suffix(OVER_TLS) {
        Some(address) => ("rediss+sentinel", address),
        None => ("redis+sentinel", endpoint),
    };
    match address.rsplit_once(':').filter(|(host, _)| host.contains(':')) {
        Some((host, port)) => format!("{scheme}://[{host}]:{port}/GROUP"),
        None => format!("{scheme}://{address}/GROUP"),
    }
}

/// The server's error code; empty if the server sent none. Before Redis 7 an error that ends a
/// script is an `ERR`, and the code follows the position in the script.
fn code_of(error: &RedisError) -> &str {
    match error.code() {
        Some("ERR") => error.detail().and_then(script_code).unwrap_or("ERR"),
        code => code.unwrap_or_default(),
    }
}

/// `READONLY` in `@user_script: 7: -READONLY You can't …`.
fn script_code(text: &str) -> Option<&str> {
    let (_, place) = text.rsplit_once("@user_script: ")?;
    let (line, said) = place.split_once(": -")?;
    line.bytes().all(|byte| byte.is_ascii_digit()).then_some(said.split(' ').next()?)
}

/// A right that a script lacks has no error code, only a text that differs between versions; and
/// the driver wraps the server's error when it selects the database.
fn tells_of_a_right(detail: &str) -> bool {
    ["The user executing the script can't", "ACL failure in script", "has no permissions to"]
        .iter()
        .any(|words| detail.contains(words))
}

/// What to grant for a key. The names of locks follow the prefix, with or without a brace before it.
const KEYS: &str = "denied a key that locks need: grant this user ~<lock_prefix>* and ~{<lock_prefix>* for the locks and ~distlock?* and ~{distlock?* for this library, or correct lock_prefix";

/// What to look at when one side does not trust the other.
const CERTIFICATES: &str = "cannot be reached with these certificates: lock_ca names the authority of the server's, and lock_cert and lock_key are this client's";

/// Both sides end the alert or the verdict of rustls with the name of what is wrong.
fn is_about_a_certificate(error: &RedisError) -> bool {
    let said = error.to_string();
    said.contains("certificate") || said.contains("received fatal alert")
}

/// What a server does that hears TLS and expects none, or the reverse.
const HANGS_UP: &str = "cannot be reached, because it closes the connection: rediss:// and redlocks:// are for servers that expect TLS, redis:// and redlock:// for those that do not";

/// Whether somebody was there and closed the connection. The driver also calls it dropped where nobody
/// listens.
fn hangs_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// In the words of Redis 6 and 7.0, of 7.2, and of its scripts.
fn is_about_a_key(error: &RedisError) -> bool {
    let words = ["one of the keys", "to access a key", "' key"];
    error.detail().is_some_and(|detail| words.iter().any(|words| detail.contains(words)))
}

/// Whether the user may not send the command at all: then it, or its script, was not begun.
fn is_refused_before_it_runs(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
        && !error.detail().is_some_and(|detail| detail.contains("script"))
}

/// The error for a refused probe: each entry is a command, a colon and the server's reason. A
/// server that is a replica, is loading or is full may recover; a missing right has to be granted.
pub(crate) fn refusal(endpoint: &str, refused: &[String], page: &str) -> Error {
    let passes = |text: &String| {
        let said = text.split_once(": ").map_or("", |(_command, said)| said);
        let code = script_code(said).or_else(|| said.split(' ').next()).unwrap_or_default();
        TRANSIENT.contains(&code)
    };
    let list = refused.join("; ");
    if refused.iter().all(passes) {
        let text = format!("the Redis server at {endpoint} does not serve locks now: {list}");
        return Error::new(ErrorKind::Unavailable, text);
    }
    let text = format!("the Redis server at {endpoint} refuses what locks need: {list}. {page}");
    Error::new(ErrorKind::Denied, text)
}

/// The codes of transient refusals.
const TRANSIENT: &[&str] = &[
    "READONLY",
    "MISCONF",
    "OOM",
    "NOREPLICAS",
    "MASTERDOWN",
    "LOADING",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
];

/// Whether a new connection may lead to another server that can write: this one is a replica by now, or a master that its
/// replicas have left, of which sentinels alone know a successor.
pub(crate) fn may_be_replaced(error: &RedisError, is_led: bool) -> bool {
    match code_of(error) {
        "READONLY" => true,
        "NOREPLICAS" => is_led,
        _ => false,
    }
}

/// The error for an answer that is not in the expected form.
pub(crate) fn unexpected(what: &str, value: &redis::Value) -> Error {
    let mut shown = format!("{value:?}");
    if let Some((cut, _)) = shown.char_indices().nth(200) {
        shown.truncate(cut);
    }
    Error::new(ErrorKind::Store, format!("the Redis server answered {what} with {shown}"))
        .with_unknown_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::Effect;

    fn server(code: ServerErrorKind, detail: &str) -> RedisError {
        RedisError::from((redis::ErrorKind::Server(code), "said", detail.to_owned()))
    }

    #[test]
    fn the_error_of_the_driver_can_be_reached() {
        use std::error::Error as _;

        for (code, detail, shows) in [
            (ServerErrorKind::NoPerm, "no permissions", true),
            (ServerErrorKind::Moved, "1 h:2", false),
            (ServerErrorKind::ResponseError, "unknown command 'EVALSHA'", false),
            (ServerErrorKind::ResponseError, "unknown command 'HELLO'", false),
        ] {
            let error = from_redis(server(code, detail), RequestStage::Sent, "h:1");
            assert_eq!(error.to_string().contains(detail), shows, "{error}");
            let driver: Option<&RedisError> = error.source().and_then(|it| it.downcast_ref());
            assert_eq!(driver.and_then(RedisError::detail), Some(detail), "{error}");
        }
    }

    #[test]
    fn a_node_of_a_cluster_is_refused() {
        for code in [ServerErrorKind::CrossSlot, ServerErrorKind::Moved] {
            let error = from_redis(server(code, "x"), RequestStage::Sent, "h:1");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false));
            assert!(error.to_string().contains("Cluster"), "{error}");
        }
    }

    #[test]
    fn a_key_that_is_denied_and_a_sentinel_are_told_with_the_remedy() {
        // Before Redis 7.2, since then, and in a script, which may have written before.
        for (code, denied, effect) in [
            (
                ServerErrorKind::NoPerm,
                "this user has no permissions to access one of the keys used as arguments",
                Effect::None,
            ),
            (ServerErrorKind::NoPerm, "No permissions to access a key", Effect::None),
            (
                ServerErrorKind::ResponseError,
                "ACL failure in script: User app has no permissions to access the 'x' key",
                Effect::Unknown,
            ),
        ] {
            let error = from_redis(server(code, denied), RequestStage::Sent, "h:1");
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, effect), "{error}");
            assert!(error.to_string().contains("~{<lock_prefix>*"), "{error}");
        }
        for (endpoint, url) in [
            ("h:1", "redis+sentinel://h:1/GROUP,"),
            ("::1:7", "redis+sentinel://[::1]:7/GROUP,"),
            ("h:1 over TLS", "rediss+sentinel://h:1/GROUP,"),
        ] {
            let unknown = "unknown command 'EVALSHA', with args beginning with: 'x'";
            let unknown = server(ServerErrorKind::ResponseError, unknown);
            let error = from_redis(unknown, RequestStage::Sent, endpoint);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(url), "{error}");
        }
    }

    #[test]
    fn a_right_that_a_script_lacks_is_denied_in_every_version() {
        for words in [
            "The user executing the script can't run this command or subcommand",
            "Error running script: @user_script:7: The user executing the script can't run this",
            "ACL failure in script: User app has no permissions to run the 'get' command",
        ] {
            let error = from_redis(
                server(ServerErrorKind::ResponseError, words),
                RequestStage::Sent,
                "h:1",
            );
            assert_eq!(error.kind(), ErrorKind::Denied, "{words}");
        }
    }

    /// The texts of Redis 6.0.16, where the reason is in the middle; 7 puts it first.
    #[test]
    fn what_ends_a_script_may_be_tried_again_in_every_version() {
        const PLACE: &str = "Error running script (call to f_db8d8f6383e1a67ce23db65efd679a334c123806): @user_script:1: @user_script: 1: ";
        for said in [
            "-READONLY You can't write against a read only replica.",
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "-NOREPLICAS Not enough good replicas to write.",
            "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk. Commands that may modify the data set are disabled",
        ] {
            let wrapped = server(ServerErrorKind::ResponseError, &format!("{PLACE}{said}"));
            let is_replica = said.starts_with("-READONLY");
            assert_eq!(may_be_replaced(&wrapped, false), is_replica, "{said}");
            let replaced = is_replica || said.starts_with("-NOREPLICAS");
            assert_eq!(may_be_replaced(&wrapped, true), replaced, "{said}");
            let error = from_redis(wrapped, RequestStage::Sent, "h:1");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
            assert_eq!(error.effect(), Effect::None, "refused before its first write: {said}");
        }
        // Anything other than a refusal by the server stays final.
        for said in [
            "user_script:1: DISTLOCK the fence mark is not a number: -READONLY",
            "Wrong number of args calling Redis command From Lua script",
        ] {
            let wrapped = server(ServerErrorKind::ResponseError, &format!("{PLACE}{said}"));
            assert_eq!(
                from_redis(wrapped, RequestStage::Sent, "h:1").kind(),
                ErrorKind::Store,
                "{said}"
            );
        }
    }

    #[test]
    fn what_passes_may_be_tried_again() {
        for (refused, kind) in [
            (
                &["SET: READONLY You can't write against a read only replica."][..],
                ErrorKind::Unavailable,
            ),
            (&["SET: @user_script: 5: -MISCONF Redis is configured to"], ErrorKind::Unavailable),
            (&["SET: READONLY You can't", "GET: NOPERM this user"], ErrorKind::Denied),
            (&["GET: NOPERM this user BLOOM has no permissions"], ErrorKind::Denied),
            (&["GET: NOPERM User OOM has no permissions to run 'get'"], ErrorKind::Denied),
        ] {
            let refused: Vec<_> = refused.iter().map(|text| (*text).to_owned()).collect();
            let error = refusal("h:1", &refused, "See the page");
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
