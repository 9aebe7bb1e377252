//! The part of a store URL before its parameters: user, password, hosts and path.
//!
//! ```
//! use lock_kit::endpoint::Endpoint;
//! use lock_kit::url::Params;
//!
//! let (base, params) = Params::split("demo://app:s%40cret@db1,[::1]:7000/jobs?lock_grace=1s")?;
//! let endpoint = Endpoint::parse(base, 6000, "demo://[user:password@]host[:6000][,host…][/path]")?;
//! assert_eq!((endpoint.user(), endpoint.password()), (Some("app"), Some("s@cret")));
//! assert_eq!(endpoint.hosts()[0].to_string(), "db1:6000");
//! assert_eq!(endpoint.path(), "jobs");
//! assert_eq!(endpoint.to_string(), "db1:6000,[::1]:7000/jobs");
//! # Ok::<(), lock_core::Error>(())
//! ```
//!
//! No error quotes the URL, since a password that is not percent-encoded may end up anywhere in it.

use std::fmt;
use std::net::Ipv6Addr;

use super::decode;
use lock_core::{Error, Result};

/// The servers and the user that a URL names. `Debug` and `Display` show neither user nor password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<Host>,
    path: String,
}

/// A host and its port. `Display` puts an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// Never 0.
    pub port: u16,
}

impl Endpoint {
    /// Reads `scheme://[user[:password]@]host[:port][,host…][/path]`, without parameters: see
    /// [`Params::split`](super::Params::split). `port` is for hosts without one; `form` is the
    /// correct form, to be shown in errors.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if it cannot be parsed or percent-decoded. The message
    /// names the part that is wrong and does not quote it.
    pub fn parse(url: &str, port: u16, form: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::config(format!(
                "the store URL has {what}: its form is {form}, with IPv6 addresses in brackets and special characters of user and password percent-encoded: %40 for `@`, %3A for `:`, %2F for `/`, %3F for `?`, %23 for `#`"
            ))
        };
        let (_, rest) = url.split_once("://").ok_or_else(|| wrong("no `://`"))?;
        if rest.contains('#') {
            return Err(wrong("a `#`"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // What looks like a path is then the end of a password, or a whole URL.
        if path.contains('@') {
            return Err(wrong("an `@` after a `/`"));
        }
        // The last one: a password that is not encoded may contain an `@`, and must not become a
        // host.
        let (who, hosts) = match authority.rsplit_once('@') {
            Some((who, hosts)) => (Some(who), hosts),
            None => (None, authority),
        };
        let (user, password) = match who.map(|who| who.split_once(':').unwrap_or((who, ""))) {
            Some((user, password)) => {
                (decode("the user", user)?, decode("the password", password)?)
            }
            None => Default::default(),
        };
        if who.is_some() && user.is_empty() && password.is_empty() {
            return Err(wrong("an `@` with nothing before it"));
        }
        let hosts = hosts.split(',').map(|host| Host::parse(host, port).map_err(wrong));
        let known = |text: String| (!text.is_empty()).then_some(text);
        Ok(Self {
            user: known(user),
            password: known(password),
            hosts: hosts.collect::<Result<_>>()?,
            path: decode("the path", path)?,
        })
    }

    /// Refuses a host that is named twice, for stores where each one counts.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config), naming the host.
    pub fn with_distinct_hosts(self) -> Result<Self> {
        for (at, host) in self.hosts.iter().enumerate() {
            if self.hosts[..at].contains(host) {
                return Err(Error::config(format!("the host {host} is named twice: keep one")));
            }
        }
        Ok(self)
    }

    /// The user; `None` if the URL names none.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password; `None` if it is missing or empty.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// At least one host, in the order of the URL.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The part after the slash behind the hosts, percent-decoded; empty if there is none.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Host {
    /// Reads `host[:port]`; the error says what is wrong with the text.
    fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or("a `[` without its `]`")?;
                name.parse::<Ipv6Addr>().map_err(|_| "brackets without an IPv6 address")?;
                let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
                (name, port.ok_or("something after a `]` that is not a port")?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        if name.is_empty() {
            return Err("an empty host");
        }
        let is_address = text.starts_with('[');
        if !is_address && !name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c)) {
            return Err("a host with an invalid character");
        }
        let port = match port {
            "" => default_port,
            port => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or("a port that is no number from 1 to 65535")?,
        };
        Ok(Self { name: name.to_owned(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        f.write_str(&hosts.join(","))?;
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "demo://host";

    fn parse(rest: &str) -> Result<Endpoint> {
        Endpoint::parse(&format!("demo://{rest}"), 6000, FORM)
    }

    #[test]
    fn urls_are_read() {
        for (url, shown, user, password) in [
            ("h", "h:6000", None, None),
            ("h:", "h:6000", None, None),
            ("h1,h2:1,[::1]:7/", "h1:6000,h2:1,[::1]:7", None, None),
            ("u:p%40%2F@h/jobs", "h:6000/jobs", Some("u"), Some("p@/")),
            ("u@h", "h:6000", Some("u"), None),
            (":p@h", "h:6000", None, Some("p")),
            ("u:p@q@h", "h:6000", Some("u"), Some("p@q")),
            ("[fe80::1]//a%20b/", "[fe80::1]:6000//a b/", None, None),
        ] {
            let endpoint = parse(url).unwrap();
            assert_eq!(endpoint.to_string(), shown, "{url}");
            assert_eq!((endpoint.user(), endpoint.password()), (user, password), "{url}");
            assert_eq!(format!("{endpoint:?}"), format!("Endpoint({shown})"));
            assert_eq!(endpoint.hosts().len(), url.split(',').count(), "{url}");
            assert_eq!(endpoint.path(), shown.split_once('/').unwrap_or_default().1, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for url in [
            "", "/x", "h,,i", "h:x", "h:70000", "h:0", "[::1", "[x]", "[::1]x", "@h", ":@h", "h h",
            "h#x", "h/%ff", "h/a@b", "h%", "%zz@h", "h:1:2",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), lock_core::ErrorKind::Config, "{url}");
        }
        assert!(Endpoint::parse("demo:h", 1, FORM).is_err());
        let error = parse("a,b,a:6000").unwrap().with_distinct_hosts().unwrap_err().to_string();
        assert!(error.contains("a:6000 is named twice"), "{error}");
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            "hunter:hunter@h",
            "u:hunter#@h",
            "u:hunter/x@h",
            "u:x@hunter%@h",
            "hunter 2",
            "u:1/hunter@h",
            "h/u:hunter@h",
        ] {
            let shown = match parse(url) {
                Ok(endpoint) => format!("{endpoint} {endpoint:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter"), "{url} gave {shown}");
        }
    }
}
