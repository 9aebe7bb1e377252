//! TLS on every store that has it: who is trusted, and who is not.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::any::Any;
use std::time::Duration;

use conformance_tests::server::Port;
use distlock::{Error, ErrorKind};
use lock_testkit::certificates::Certificates;
use lock_testkit::networked::Networked;
use lock_testkit::servers::{EtcdCluster, MariaDbServer, PostgresServer, RedisServer};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Redlock is on as few nodes as make a quorum of more than one.
const STORES: [Networked; 5] = [
    Networked::Redis,
    Networked::Redlock,
    Networked::Etcd,
    Networked::Postgres,
    Networked::MariaDb,
];
/// Everything takes less, on a busy machine, too.
const LIMIT: Duration = Duration::from_secs(30);
/// What the limits of the stores are raised to, for a busy machine.
const PATIENT: &str = "lock_connect_timeout=10s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_who_trust_each_other_lock() {
    let certificates = Box::leak(Box::new(Certificates::make().await.unwrap()));
    let mut checking = JoinSet::new();
    for store in STORES {
        checking.spawn(faults(store, certificates));
    }
    let faults: Vec<_> = checking.join_all().await.concat();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// How the certificate in the name of a case is to be judged.
enum Judged {
    Trusted,
    Refused,
    /// The error says that it is about a certificate; that of Redis, whose driver tells what is wrong, in this word.
    Distrusted(&'static str),
}

use Judged::{Distrusted, Refused, Trusted};

async fn faults(store: Networked, certificates: &Certificates) -> Vec<String> {
    let plain = Secured::start(store, certificates, Shown::Nothing).await;
    let good = Secured::start(store, certificates, Shown::Certificate("server")).await;
    let expired = Secured::start(store, certificates, Shown::Certificate("expired")).await;
    let mutual = Secured::start(store, certificates, Shown::ToClients("server")).await;
    let url = |server: &Secured, host: &str, ca: &str, identity: Option<&str>| {
        server.url(host, certificates, ca, identity)
    };
    let mut faults = Vec::new();
    for (what, judged, url) in [
        ("the right authority", Trusted, url(&good, "localhost", "ca", None)),
        (
            "a certificate that nobody asks for",
            Trusted,
            url(&good, "localhost", "ca", Some("client")),
        ),
        ("another authority", Distrusted("certificate"), url(&good, "localhost", "other", None)),
        ("another host", Distrusted("certificate"), url(&good, "127.0.0.1", "ca", None)),
        ("an expired certificate", Distrusted("expired"), url(&expired, "localhost", "ca", None)),
        ("a server without TLS", Refused, url(&plain, "localhost", "ca", None)),
        ("a server that insists on TLS", Refused, good.plain_url()),
        ("the client's certificate", Trusted, url(&mutual, "localhost", "ca", Some("client"))),
        ("no certificate of the client", Refused, url(&mutual, "localhost", "ca", None)),
        ("a stranger's certificate", Refused, url(&mutual, "localhost", "ca", Some("stranger"))),
    ] {
        let outcome = timeout(LIMIT, lock_once(&url)).await;
        let fault = match (outcome, judged) {
            (Err(_), _) => Some(format!("takes more than {LIMIT:?}")),
            (Ok(Ok(())), Trusted) => None,
            (Ok(Ok(())), _) => Some("is trusted".to_owned()),
            (Ok(Err(error)), judged) => fault_of(store, &error, &judged),
        };
        faults.extend(fault.map(|fault| format!("{store:?}: {what} {fault}")));
    }
    faults
}

fn fault_of(store: Networked, error: &Error, judged: &Judged) -> Option<String> {
    let text = error.to_string().to_lowercase();
    println!("{text}");
    let is_of_redis = matches!(store, Networked::Redis | Networked::Redlock);
    let is_refusal = match error.kind() {
        ErrorKind::Unavailable => true,
        // A silence does not say what is wrong.
        ErrorKind::NoAnswer => !(is_of_redis && matches!(judged, Distrusted(_))),
        // To a database, whoever does not use TLS lacks a right.
        ErrorKind::Denied => matches!(store, Networked::Postgres | Networked::MariaDb),
        _ => false,
    };
    let says_why = match judged {
        Trusted => false,
        Refused => true,
        // It names the server, and that it is reached over TLS.
        Distrusted(why) if is_of_redis => text.contains(why),
        Distrusted(_) => text.contains("certificate") || text.contains("tls"),
    };
    (!(is_refusal && says_why)).then(|| format!("leads to {:?}: {error}", error.kind()))
}

async fn lock_once(url: &str) -> distlock::Result<()> {
    let locks = distlock::connect(url).await?;
    let guard = locks.named("a")?.acquire_timeout(LIMIT).await?;
    guard.renew().await?;
    guard.release().await.map(drop)
}

/// What the servers show.
#[derive(Clone, Copy)]
enum Shown {
    /// They do not speak TLS.
    Nothing,
    Certificate(&'static str),
    /// The same, and clients have to show one, too.
    ToClients(&'static str),
}

/// Servers that speak TLS, or do not.
struct Secured {
    store: Networked,
    ports: Vec<u16>,
    _servers: Box<dyn Any + Send + Sync>,
}

impl Secured {
    async fn start(store: Networked, certificates: &Certificates, shown: Shown) -> Self {
        let (ports, servers) = match store {
            Networked::Redis => redis(1, certificates, shown).await,
            Networked::Redlock => redis(3, certificates, shown).await,
            Networked::Etcd => etcd(certificates, shown).await,
            Networked::Postgres => postgres(certificates, shown).await,
            Networked::MariaDb => mariadb(certificates, shown).await,
            Networked::ZooKeeper => unreachable!("it has no URL for TLS"),
        };
        Self { store, ports, _servers: servers }
    }

    fn hosts(&self, host: &str) -> String {
        self.ports.iter().map(|port| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
    }

    /// The URL of a client that trusts `ca` alone, and shows who it is.
    fn url(
        &self,
        host: &str,
        certificates: &Certificates,
        ca: &str,
        identity: Option<&str>,
    ) -> String {
        let (start, [ca_is, cert_is, key_is]) = match self.store {
            Networked::Postgres => (
                "postgres://postgres@{}/template1?sslmode=verify-full",
                ["sslrootcert", "sslcert", "sslkey"],
            ),
            Networked::MariaDb => {
                ("mysql://app@{}/locks?ssl-mode=VERIFY_IDENTITY", ["ssl-ca", "ssl-cert", "ssl-key"])
            }
            Networked::Etcd => ("etcds://{}?", ["lock_ca", "lock_cert", "lock_key"]),
            Networked::Redlock => (
                "redlocks://{}?lock_quorum_name=q&lock_bootstrap=now",
                ["lock_ca", "lock_cert", "lock_key"],
            ),
            _ => ("rediss://{}?", ["lock_ca", "lock_cert", "lock_key"]),
        };
        let mut url = start.replace("{}", &self.hosts(host));
        url += &format!("&{PATIENT}&{ca_is}={}", certificates.of(ca));
        if let Some(name) = identity {
            let (cert, key) = (certificates.of(name), certificates.key(name));
            url += &format!("&{cert_is}={cert}&{key_is}={key}");
        }
        url
    }

    /// The URL of a client that does not speak TLS.
    fn plain_url(&self) -> String {
        let hosts = self.hosts("127.0.0.1");
        match self.store {
            Networked::Postgres => format!("postgres://postgres@{hosts}/template1?sslmode=disable"),
            Networked::MariaDb => format!("mysql://app@{hosts}/locks?ssl-mode=DISABLED"),
            Networked::Etcd => format!("etcd://{hosts}"),
            Networked::Redlock => {
                format!("redlock://{hosts}?lock_quorum_name=q&lock_bootstrap=now")
            }
            _ => format!("redis://{hosts}"),
        }
    }
}

type Started = (Vec<u16>, Box<dyn Any + Send + Sync>);

async fn redis(nodes: usize, certificates: &Certificates, shown: Shown) -> Started {
    let (mut servers, mut ports) = (Vec::new(), Vec::new());
    for _ in 0..nodes {
        let tls = Port::reserve().unwrap();
        let builder = RedisServer::builder();
        let (name, asks) = match shown {
            Shown::Nothing => {
                let server = builder.start().await.unwrap();
                ports.push(server.address().unwrap().port());
                servers.push((server, tls));
                continue;
            }
            Shown::Certificate(name) => (name, "no"),
            Shown::ToClients(name) => (name, "yes"),
        };
        let server = builder
            .option("tls-port", &tls.to_string())
            .option("tls-cert-file", &certificates.of(name))
            .option("tls-key-file", &certificates.key(name))
            .option("tls-ca-cert-file", &certificates.of("ca"))
            .option("tls-auth-clients", asks);
        ports.push(tls.number());
        servers.push((server.start().await.unwrap(), tls));
    }
    (ports, Box::new(servers))
}

async fn etcd(certificates: &Certificates, shown: Shown) -> Started {
    let (name, asks) = match shown {
        Shown::Nothing => {
            let server = EtcdCluster::builder().start().await.unwrap();
            return (vec![server.address(0).unwrap().port()], Box::new(server));
        }
        Shown::Certificate(name) => (name, "false"),
        Shown::ToClients(name) => (name, "true"),
    };
    let mut builder = EtcdCluster::builder()
        .tls()
        .option("cert-file", &certificates.of(name))
        .option("key-file", &certificates.key(name))
        .option("client-cert-auth", asks);
    if asks == "true" {
        builder = builder.option("trusted-ca-file", &certificates.of("ca"));
    }
    let server = builder.start().await.unwrap();
    (vec![server.tls_port(0).unwrap()], Box::new(server))
}

/// The test waits for it in the clear, in the database `postgres`; in all others it insists on TLS.
async fn postgres(certificates: &Certificates, shown: Shown) -> Started {
    let (name, asks) = match shown {
        Shown::Nothing => {
            let server = PostgresServer::builder().start().await.unwrap();
            return (vec![server.address().unwrap().port()], Box::new(server));
        }
        Shown::Certificate(name) => (name, ""),
        Shown::ToClients(name) => (name, "clientcert=verify-ca"),
    };
    let rules = tempfile::Builder::new().prefix("hba").tempfile().unwrap();
    let all = "all 127.0.0.1/32 trust";
    std::fs::write(&rules, format!("host postgres {all}\nhostssl all {all} {asks}\n")).unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&rules, readable).unwrap();
    let server = PostgresServer::builder()
        .option("ssl", "on")
        .option("ssl_cert_file", &certificates.of(name))
        .option("ssl_key_file", &certificates.key_for_postgres(name))
        .option("ssl_ca_file", &certificates.of("ca"))
        .option("hba_file", &rules.path().display().to_string())
        .start()
        .await
        .unwrap();
    (vec![server.address().unwrap().port()], Box::new((server, rules)))
}

async fn mariadb(certificates: &Certificates, shown: Shown) -> Started {
    let asks = if matches!(shown, Shown::ToClients(_)) { "REQUIRE X509" } else { "" };
    let users = tempfile::Builder::new().prefix("users").tempfile().unwrap();
    std::fs::write(&users, format!("CREATE USER app {asks};\nGRANT ALL ON locks.* TO app;\n"))
        .unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&users, readable).unwrap();
    let builder = MariaDbServer::builder().option("init-file", &users.path().display().to_string());
    let builder = match shown {
        Shown::Nothing => builder.option("skip-ssl", "1"),
        Shown::Certificate(name) | Shown::ToClients(name) => builder
            .option("require-secure-transport", "ON")
            .option("ssl-ca", &certificates.of("ca"))
            .option("ssl-cert", &certificates.of(name))
            .option("ssl-key", &certificates.key(name)),
    };
    let server = builder.start().await.unwrap();
    (vec![server.address().unwrap().port()], Box::new((server, users)))
}
