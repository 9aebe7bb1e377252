//! The settings for connecting to an etcd cluster.

use std::fmt;
#[cfg(feature = "etcd-client")]
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result};
use lock_kit::endpoint::{Endpoint, Host};
use lock_kit::settings::{Between, Parameter, Text, Words};
use lock_kit::url::{Params, pem_file};
use tonic::transport::{self, Channel};

use crate::wire::connection::Transport;

/// The URL schemes of etcd.
pub const SCHEMES: &[&str] = &["etcd", "etcds"];

/// The URL parameters of this store.
pub const PARAMETERS: &[&str] = &[
    CONNECT_TIMEOUT.name,
    RESPONSE_TIMEOUT.name,
    CA.name,
    CERT.name,
    KEY.name,
    SERVER_NAME.name,
    FENCE.name,
];

const CONNECT_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_connect_timeout",
    text: "the timeout for connecting to one member",
    default: "`1s`",
    values: Duration::from_millis(1)..=LONGEST,
};
const RESPONSE_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_response_timeout",
    text: "the timeout for one response; a call may set a shorter one",
    default: "`2s`",
    values: Duration::from_millis(1)..=LONGEST,
};
const CA: Parameter<Text> = Parameter {
    name: "lock_ca",
    text: "a PEM file with the certificate authorities to trust (`etcds` only)",
    default: "those of the system",
    values: Text,
};
const CERT: Parameter<Text> = Parameter {
    name: "lock_cert",
    text: "a PEM file with the client certificate (`etcds` only)",
    default: "none",
    values: Text,
};
const KEY: Parameter<Text> = Parameter {
    name: "lock_key",
    text: "a PEM file with the key of that certificate (`etcds` only)",
    default: "none",
    values: Text,
};
const SERVER_NAME: Parameter<Text> = Parameter {
    name: "lock_server_name",
    text: "the name expected in the servers' certificates (`etcds` only)",
    default: "the host",
    values: Text,
};
/// Whether fences are bare revisions.
const FENCE: Parameter<Words<bool>> = Parameter {
    name: "lock_fence",
    text: "`clock` for fences above those of every other store, `revision` for bare revisions as in Go",
    default: "`clock`",
    values: &[("clock", false), ("revision", true)],
};

/// The port of a member if the URL names none.
const PORT: u16 = 2379;

/// The form of the URL, for error messages.
const FORM: &str = "etcd://[user:password@]host[:2379][,host…][/prefix]";

/// No connection timeout above this makes sense.
const LONGEST: Duration = Duration::from_secs(60);

/// The settings of an [`EtcdBackend`](crate::EtcdBackend).
///
/// Neither `Debug` nor any error shows the password or the key of the client.
///
/// ```
/// use std::time::Duration;
///
/// let config = lock_etcd::EtcdConfig::from_url("etcd://app:secret@e1,e2:3379,e3/jobs")?;
/// assert_eq!(config.endpoints(), ["e1:2379", "e2:3379", "e3:2379"]);
/// assert!(!format!("{config:?}").contains("secret"));
/// let config = config.response_timeout(Duration::from_millis(500));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct EtcdConfig {
    pub(crate) members: Vec<String>,
    /// In place of connections to them.
    transport: Option<Transport>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) folder: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) tls: Option<TlsFiles>,
    /// Whether fences are bare revisions.
    pub(crate) revision_fences: bool,
}

impl EtcdConfig {
    /// Reads the settings from a URL: `etcd://[user:password@]host[:2379][,host…][/prefix]`, or
    /// `etcds://` for TLS (feature `tls`). The names of all locks are prefixed with the prefix and
    /// a slash. The parameters are listed in the [crate documentation](crate#connecting).
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the URL cannot be read, has an unknown
    /// parameter, or names a file that cannot be read. The message never shows the part of the URL
    /// before the `?`.
    pub fn from_url(url: &str) -> Result<Self> {
        let (base, mut params) = Params::split(url)?;
        let known =
            |scheme: &&str| base.strip_prefix(*scheme).is_some_and(|r| r.starts_with("://"));
        let scheme = SCHEMES.iter().copied().find(known).ok_or_else(|| {
            Error::config(format!(
                "the URL of an etcd cluster begins with one of {}",
                SCHEMES.iter().map(|known| format!("{known}://")).collect::<Vec<_>>().join(", ")
            ))
        })?;
        let secure = scheme == "etcds";
        if secure && !cfg!(feature = "tls") {
            return Err(Error::config(
                "this build cannot use etcds: enable the cargo feature \"tls\" (of lock-etcd or of distlock)",
            ));
        }
        let endpoint = Endpoint::parse(base, PORT, FORM)?.with_distinct_hosts()?;
        let mut config = Self::new(endpoint.hosts().iter().map(Host::to_string))?;
        config.user = match (endpoint.user(), endpoint.password()) {
            (None, None) => None,
            (Some(user), Some(password)) => Some((user.to_owned(), password.to_owned())),
            _ => {
                return Err(Error::config(format!(
                    "the URL of an etcd cluster has an '@' without a user and a password before it; the form is {FORM}"
                )));
            }
        };
        config.folder = folder(endpoint.path())?;
        let limit = CONNECT_TIMEOUT.read(&mut params)?;
        config.connect_timeout = limit.unwrap_or(config.connect_timeout);
        let limit = RESPONSE_TIMEOUT.read(&mut params)?;
        config.response_timeout = limit.unwrap_or(config.response_timeout);
        config.revision_fences = FENCE.read(&mut params)?.unwrap_or(config.revision_fences);
        config.tls = read_tls(&mut params, secure)?;
        params.finish(scheme, PARAMETERS)?;
        config.check()?;
        Ok(config)
    }

    /// Default settings for the members at these addresses, each `host[:2379]`.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if there are no addresses, or one cannot be read. The message
    /// never shows the address.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Self> {
        let addresses = endpoints.into_iter().enumerate();
        let members = addresses.map(|(at, address)| member(at, &address.into()));
        let members = members.collect::<Result<Vec<_>>>()?;
        if members.is_empty() {
            return Err(Error::config("an etcd cluster needs the address of at least one member"));
        }
        Ok(Self::at(members, None))
    }

    /// Default settings for an existing channel of the `tonic` crate, for example one with a connector of its own. The
    /// channel is used as one connection: whether another member is tried when one fails is up to the channel. Give
    /// it a connect timeout, and keep-alives of HTTP/2: with the defaults, a member that is gone is noticed late.
    pub fn from_channel(channel: Channel) -> Self {
        Self::at(vec!["the given channel".to_owned()], Some(Transport::Channel(channel)))
    }

    /// Default settings for an existing client of the `etcd-client` crate (feature `etcd-client`), with its TLS, its
    /// user, its interceptors and its choice of members. It has signed in itself, so [`user`](Self::user) is an error
    /// with it. As for [`from_channel`](Self::from_channel), whether another member is tried when one fails is up to
    /// the client.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use etcd_client::{Client, ConnectOptions};
    /// use lock_etcd::{EtcdBackend, EtcdConfig};
    ///
    /// # async fn connected() -> Result<EtcdBackend, Box<dyn std::error::Error>> {
    /// let options = ConnectOptions::new()
    ///     .with_user("app", "secret")
    ///     // A member that is cut off from the others refuses requests and ends its streams.
    ///     .with_require_leader(true)
    ///     // With the client's defaults, a member that is gone is noticed late.
    ///     .with_connect_timeout(Duration::from_secs(1))
    ///     .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3));
    /// let client = Client::connect(["e1:2379", "e2:2379", "e3:2379"], Some(options)).await?;
    /// let backend = EtcdBackend::connect(EtcdConfig::from_client(client).prefix("jobs")?).await?;
    /// # Ok(backend) }
    /// ```
    #[cfg(feature = "etcd-client")]
    pub fn from_client(client: etcd_client::Client) -> Self {
        let client = Transport::Client(Arc::new(client));
        Self::at(vec!["the given client".to_owned()], Some(client))
    }

    fn at(members: Vec<String>, transport: Option<Transport>) -> Self {
        Self {
            members,
            transport,
            user: None,
            folder: String::new(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(2),
            tls: None,
            revision_fences: false,
        }
    }

    /// Sets the user name and password, for clusters with authentication.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Sets the prefix that, with a slash, precedes the names of all locks; none by default.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if it contains a control character or is longer
    /// than 512 bytes.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.folder = folder(prefix)?;
        Ok(self)
    }

    /// Sets the timeout for connecting to one member; 1 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the timeout for one response; 2 s by default. After a timeout another member is tried.
    #[must_use]
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.response_timeout = limit;
        self
    }

    /// Makes each fencing token the bare create revision of the holder's key, as in Go clients,
    /// instead of one above those of every store used before. For resources shared with such
    /// clients: all clients of a lock must agree on it, and it must not be changed later.
    #[must_use]
    pub fn revision_fences(mut self) -> Self {
        self.revision_fences = true;
        self
    }

    /// The addresses of the members.
    pub fn endpoints(&self) -> &[String] {
        &self.members
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_over_a_client() && self.user.is_some() {
            return Err(Error::config(
                "the given client has signed in itself: give the user to it, and none to EtcdConfig",
            ));
        }
        CONNECT_TIMEOUT.check(self.connect_timeout)?;
        RESPONSE_TIMEOUT.check(self.response_timeout)
    }

    pub(crate) fn is_over_a_client(&self) -> bool {
        self.transport.as_ref().is_some_and(Transport::is_client)
    }

    /// Whether there is a way to each member, since nobody hears of an error when one is left for the next.
    pub(crate) fn check_members(&self) -> Result<()> {
        if self.transport.is_some() {
            return Ok(());
        }
        self.members.iter().try_for_each(|member| self.endpoint(member).map(drop))
    }

    /// The way to a member, which connects with the first request.
    pub(crate) fn transport_to(&self, member: &str) -> Result<Transport> {
        if let Some(transport) = &self.transport {
            return Ok(transport.clone());
        }
        Ok(Transport::Channel(self.endpoint(member)?.connect_lazy()))
    }

    /// The longest that a request takes which has to connect first.
    pub(crate) fn call_limit(&self) -> Duration {
        self.connect_timeout + self.response_timeout
    }

    fn endpoint(&self, member: &str) -> Result<transport::Endpoint> {
        self.driver_endpoint(member).map_err(|error| {
            Error::config(format!("the address {member} of an etcd member cannot be used"))
                .with_source(error)
        })
    }

    /// By the driver's defaults nothing ever times out.
    fn driver_endpoint(&self, member: &str) -> Result<transport::Endpoint, transport::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = transport::Endpoint::new(format!("{scheme}://{member}"))?
            .connect_timeout(self.connect_timeout)
            .timeout(self.call_limit())
            // A member closes connections that ping more often than every 5 s.
            .http2_keep_alive_interval(Duration::from_secs(6))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(false);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return endpoint.tls_config(tls.options());
        }
        Ok(endpoint)
    }
}

/// Reads the address of the member at this place in the list. What is wrong may be a password, and is not shown.
fn member(at: usize, address: &str) -> Result<String> {
    let endpoint = Endpoint::parse(&format!("{}://{address}", SCHEMES[0]), PORT, FORM).ok();
    let host = endpoint.filter(|endpoint| {
        let is_alone = endpoint.user().or(endpoint.password()).is_none();
        is_alone && endpoint.path().is_empty() && endpoint.hosts().len() == 1
    });
    let member = host.map(|endpoint| endpoint.hosts()[0].to_string());
    member.filter(|member| member.is_ascii()).ok_or_else(|| {
        let at = at + 1;
        Error::config(format!(
            "address {at} of the etcd members is not host[:{PORT}], in ASCII: user, password and prefix are set separately, and each member has an address of its own"
        ))
    })
}

/// A prefix as the start of a key, ending in one slash.
fn folder(prefix: &str) -> Result<String> {
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

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("members", &self.members)
            .field("prefix", &self.folder)
            .field("with_user", &self.user.is_some())
            .field("tls", &self.tls.is_some())
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// The trusted authorities and the client's identity.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "never made without the feature"))]
#[derive(Clone, Default)]
pub(crate) struct TlsFiles {
    /// In PEM.
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl TlsFiles {
    fn options(&self) -> transport::ClientTlsConfig {
        use transport::{Certificate, ClientTlsConfig, Identity};
        let mut options = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            options = options.domain_name(name);
        }
        options
    }
}

/// Reads the parameters for TLS, which only `secure` URLs have.
fn read_tls(params: &mut Params, secure: bool) -> Result<Option<TlsFiles>> {
    let (ca, server_name) = (CA.read(params)?, SERVER_NAME.read(params)?);
    let (cert, key) = (CERT.read(params)?, KEY.read(params)?);
    if !secure {
        if ca.is_some() || cert.is_some() || key.is_some() || server_name.is_some() {
            return Err(Error::config(
                "lock_ca, lock_cert, lock_key and lock_server_name belong to etcds://; etcd:// does not use TLS",
            ));
        }
        return Ok(None);
    }
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => {
            let certificate = pem_file(CERT.name, &cert, "CERTIFICATE")?;
            Some((certificate, pem_file(KEY.name, &key, "PRIVATE KEY")?))
        }
        (None, None) => None,
        _ => {
            return Err(Error::config(
                "lock_cert and lock_key belong together: the certificate of this client, and its key",
            ));
        }
    };
    let ca = ca.map(|path| pem_file(CA.name, &path, "CERTIFICATE")).transpose()?;
    Ok(Some(TlsFiles { ca, identity, server_name }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ErrorKind;

    const SENTINEL: &str = "s3cr3t-sentinel";

    #[test]
    fn urls_are_read() {
        for (rest, members, user, prefix) in [
            ("h1,h2:1,[::1]:7/", &["h1:2379", "h2:1", "[::1]:7"][..], None, ""),
            ("u:p%40%2F@h/jobs", &["h:2379"], Some(("u", "p@/")), "jobs/"),
            ("h//locks/", &["h:2379"], None, "/locks/"),
        ] {
            let url =
                format!("etcd://{rest}?lock_response_timeout=200ms&lock_connect_timeout=30ms");
            let config = EtcdConfig::from_url(&url).unwrap();
            assert_eq!(config.endpoints(), members, "{rest}");
            let expected = user.map(|(u, p): (&str, &str)| (u.to_owned(), p.to_owned()));
            assert_eq!(config.user, expected, "{rest}");
            assert_eq!(config.folder, prefix, "{rest}");
            assert_eq!(config.response_timeout, Duration::from_millis(200));
            assert_eq!(config.connect_timeout, Duration::from_millis(30));
        }
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [
            CONNECT_TIMEOUT.row(),
            RESPONSE_TIMEOUT.row(),
            CA.row(),
            CERT.row(),
            KEY.row(),
            SERVER_NAME.row(),
            FENCE.row(),
        ];
        assert!(include_str!("../README.md").contains(&rows.concat()), "{}", rows.concat());
        let config = EtcdConfig::new(["h"]).unwrap();
        assert_eq!(CONNECT_TIMEOUT.default, format!("`{:?}`", config.connect_timeout));
        assert_eq!(RESPONSE_TIMEOUT.default, format!("`{:?}`", config.response_timeout));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, part) in [
            ("etcd://h?lock_respnse_timeout=1s", "lock_response_timeout"),
            ("etcd://h?lock_response_timeout=1", "not a duration"),
            ("etcd://h?lock_response_timeout=2min", "the response timeout is 120s"),
            ("etcd://h?lock_ca=/x", "belong to etcds://"),
            ("etcd://h?lock_fence=rev", "lock_fence=\"rev\" is none of clock, revision"),
            ("etcd://h:x", "a port that is no number"),
            ("etcd://h,h:2379", "is named twice"),
            ("etcd://u@h", "without a user and a password"),
            ("etcd://:p@h", "without a user and a password"),
            ("etcd://h/\u{1}", "a control character"),
            ("etcd://a,b\u{fc}cher", "address 2 of the etcd members"),
            ("http://h", "begins with one of etcd://"),
            ("etcd:h", "begins with one of etcd://"),
        ] {
            let error = EtcdConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn the_address_of_each_member_is_read_before_any_is_used() {
        let config = EtcdConfig::new(["e1", "e2:1", "[::1]"]).unwrap();
        assert_eq!(config.endpoints(), ["e1:2379", "e2:1", "[::1]:2379"]);
        for wrong in [
            " e2:2379",
            "e2:2379 ",
            "http://e2:2379",
            &format!("app:{SENTINEL}@e2:2379"),
            &format!("{SENTINEL}@e2"),
            &format!("app:x/{SENTINEL}@e2"),
            "e2:2379,e3:2379",
            "e2:2379/jobs",
            "e2:0",
            "e2:2379?x",
            "b\u{fc}cher:2379",
            "::1:2379",
            "",
        ] {
            let error = EtcdConfig::new(["e1:2379", wrong]).expect_err(wrong);
            assert_eq!(error.kind(), ErrorKind::Config, "{wrong}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("address 2 of the etcd members"), "{wrong}: {shown}");
            assert!(!shown.contains(SENTINEL), "{wrong}: {shown}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            format!("etcd://u:{SENTINEL}@h"),
            format!("etcd://u:12?{SENTINEL}@h"),
            format!("etcd://h?password={SENTINEL}"),
            SENTINEL.to_owned(),
        ] {
            let shown = format!("{:?}", EtcdConfig::from_url(&url));
            assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let error = EtcdConfig::from_url("etcds://h").unwrap_err();
        assert!(error.to_string().contains("feature \"tls\""), "{error}");
    }

    /// The driver takes names for TLS only that a certificate can have.
    #[cfg(feature = "tls")]
    #[test]
    fn there_is_a_way_to_each_member_or_none_is_used() {
        for (url, is_sound) in [("etcds://e1,e2", true), ("etcds://e1,a..b", false)] {
            let mut config = EtcdConfig::from_url(url).unwrap();
            // Without the authorities of the system, which a machine may not have.
            config.tls = Some(TlsFiles { ca: Some(Vec::new()), ..TlsFiles::default() });
            let checked = config.check_members();
            assert_eq!(checked.is_ok(), is_sound, "{url}: {checked:?}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(error.to_string().contains("a..b"), "{error}");
            }
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_certificate_needs_its_key_and_files_must_be_there() {
        let error = EtcdConfig::from_url("etcds://h?lock_cert=/x").unwrap_err();
        assert!(error.to_string().contains("belong together"), "{error}");
        let error = EtcdConfig::from_url("etcds://h?lock_ca=/not/there").unwrap_err();
        assert!(error.to_string().contains("lock_ca=\"/not/there\""), "{error}");
    }
}
