//! The part of a store URL before its parameters.

use lock_core::url::decode;
use lock_core::{Error, Result};

/// The port of a member, where the URL names none.
const PORT: u16 = 2379;

/// What a URL says of a cluster.
pub(crate) struct Hosts {
    /// `host:port` of each member.
    pub(crate) members: Vec<String>,
    pub(crate) user: Option<(String, String)>,
    /// Before the names of all locks: empty, or ends with a slash.
    pub(crate) folder: String,
}

/// The form of the URL, for messages.
const FORM: &str = "etcd://[user:password@]host[:2379][,host…][/prefix]";

/// Reads what stands behind `etcd://`. No error shows any of it: a password may stand anywhere.
pub(crate) fn read(rest: &str) -> Result<Hosts> {
    if rest.contains('#') {
        return Err(Error::config(format!(
            "the URL of an etcd cluster has a '#': write it as %23; the form is {FORM}"
        )));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        None => (None, authority),
        Some((user, hosts)) => (Some(read_user(user)?), hosts),
    };
    let members = hosts.split(',').map(read_host).collect::<Result<Vec<_>>>()?;
    for (at, member) in members.iter().enumerate() {
        if members[..at].contains(member) {
            return Err(Error::config("the URL of an etcd cluster names one member twice"));
        }
    }
    Ok(Hosts { members, user, folder: folder(&decode("the prefix", path)?)? })
}

fn read_user(user: &str) -> Result<(String, String)> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let name = decode("the user", name)?;
    if name.is_empty() || password.is_empty() {
        return Err(Error::config(format!(
            "the URL of an etcd cluster has a '@' without a user and a password before it; the form is {FORM}"
        )));
    }
    Ok((name, decode("the password", password)?))
}

fn read_host(host: &str) -> Result<String> {
    let wrong = || {
        Error::config(format!(
            "the URL of an etcd cluster has a member that cannot be read; the form is {FORM}, with IPv6 addresses in brackets and special characters of user and password as %40 for @, %3A for : and %2F for /"
        ))
    };
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (format!("[{address}]"), port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => {
            let (name, port) = host.split_once(':').unwrap_or((host, ""));
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if name.is_empty() || !name.chars().all(known) {
                return Err(wrong());
            }
            (name.to_owned(), Some(port))
        }
    };
    let port = match port.ok_or_else(wrong)? {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
    };
    Ok(format!("{name}:{port}"))
}

/// A prefix as the start of a key: with one slash at its end.
pub(crate) fn folder(prefix: &str) -> Result<String> {
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if prefix.len() > 512 || prefix.chars().any(char::is_control) {
        return Err(Error::config(
            "the prefix of an etcd cluster has more than 512 bytes or a control character: shorten it, or remove the character",
        ));
    }
    Ok(if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix}/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for (rest, members, user, prefix) in [
            ("h", &["h:2379"][..], None, ""),
            ("h1,h2:1,[::1]:7/", &["h1:2379", "h2:1", "[::1]:7"], None, ""),
            ("u:p%40%2F@h/jobs", &["h:2379"], Some(("u", "p@/")), "jobs/"),
            ("[fe80::1]//locks/", &["[fe80::1]:2379"], None, "/locks/"),
        ] {
            let hosts = read(rest).unwrap();
            assert_eq!(hosts.members, members, "{rest}");
            let expected = user.map(|(u, p): (&str, &str)| (u.to_owned(), p.to_owned()));
            assert_eq!(hosts.user, expected, "{rest}");
            assert_eq!(hosts.folder, prefix, "{rest}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for rest in [
            "", "h,,i", "h:x", "h:70000", "h:0", "[::1", "[x]", "[::1]x", "u@h", ":p@h", "h h",
            "h#x", "h,h:2379", "h/%ff", "h/\u{1}",
        ] {
            assert!(read(rest).is_err(), "{rest}");
        }
    }
}
