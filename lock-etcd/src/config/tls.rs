//! What `etcds://` needs besides the addresses.

use lock_core::url::{Params, pem_file};
use lock_core::{Error, Result};

/// The trusted authorities and the client's identity.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "never made without the feature"))]
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// In PEM.
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

#[cfg(feature = "tls")]
impl Tls {
    pub(super) fn options(&self) -> tonic::transport::ClientTlsConfig {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};
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
pub(super) fn read(params: &mut Params, secure: bool) -> Result<Option<Tls>> {
    let (ca, server_name) = (params.text("lock_ca")?, params.text("lock_server_name")?);
    let (cert, key) = (params.text("lock_cert")?, params.text("lock_key")?);
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
            let certificate = pem_file("lock_cert", &cert, "CERTIFICATE")?;
            Some((certificate, pem_file("lock_key", &key, "PRIVATE KEY")?))
        }
        (None, None) => None,
        _ => {
            return Err(Error::config(
                "lock_cert and lock_key belong together: the certificate of this client, and its key",
            ));
        }
    };
    let ca = ca.map(|path| pem_file("lock_ca", &path, "CERTIFICATE")).transpose()?;
    Ok(Some(Tls { ca, identity, server_name }))
}
