//! The parts of a URL that name servers, a user, and a node.

use lock_core::url::decode;
use lock_core::{Error, Result};

/// User and password of the scheme `digest`.
#[derive(Clone)]
pub(crate) struct Auth {
    pub(super) user: String,
    pub(super) password: String,
}

impl Auth {
    pub(crate) fn digest(&self) -> String {
        format!("{}:{}", self.user, self.password)
    }
}

/// The URL is not shown: a password may stand anywhere in it.
pub(super) fn unreadable() -> Error {
    Error::config(
        "the URL of the ZooKeeper ensemble cannot be read: it is zookeeper://[user:password@]host[:port][,host…][/root], with special characters of user and password as %40 for @, %3A for : and %2F for /",
    )
}

pub(super) fn auth_of(text: &str) -> Result<Auth> {
    let (user, password) = text.split_once(':').ok_or_else(unreadable)?;
    let (user, password) = (decode("the user", user)?, decode("the password", password)?);
    if user.is_empty() || user.contains(':') || password.is_empty() {
        return Err(unreadable());
    }
    Ok(Auth { user, password })
}

pub(super) fn host(text: &str) -> Result<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(unreadable)?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => Some(2181),
        Some(port) => port.parse().ok().filter(|port| *port != 0),
    };
    match port {
        Some(port)
            if !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/') =>
        {
            Ok((host.to_owned(), port))
        }
        _ => Err(unreadable()),
    }
}

/// What ZooKeeper accepts as a path, and may be ours.
pub(super) fn check_root(root: &str) -> Result<()> {
    let bad = root[1..].split('/').any(|step| {
        step.is_empty() || step == "." || step == ".." || step.chars().any(|c| c.is_control())
    });
    if bad {
        return Err(Error::config(format!(
            "{root:?} is no path of ZooKeeper: its steps must not be empty, \".\" or \"..\", and have no control characters"
        )));
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(Error::config("/zookeeper belongs to ZooKeeper itself: choose another root"));
    }
    Ok(())
}
