//! What other clients of the cluster do, and what its operator does, through etcd's JSON gateway:
//! it shares no code with the store that is tested.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why a request has failed: what the server said.
pub(crate) type Refused = String;

/// A client of one member.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    member: SocketAddr,
    /// Whose name and password each request is sent with.
    user: Option<(String, String)>,
}

/// A key as the server shows it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: i64,
    pub(crate) created: i64,
    /// When it was written last.
    pub(crate) written: i64,
}

impl Client {
    pub(crate) fn new(member: SocketAddr) -> Self {
        Self { member, user: None }
    }

    pub(crate) fn signed_in(self, user: &str, password: &str) -> Self {
        Self { user: Some((user.to_owned(), password.to_owned())), ..self }
    }

    pub(crate) async fn put(&self, key: impl AsRef<[u8]>, value: &str) {
        self.try_put(key, value, 0).await.unwrap();
    }

    /// Binds the key to a lease.
    pub(crate) async fn put_with(&self, key: impl AsRef<[u8]>, value: &str, lease: i64) {
        self.try_put(key, value, lease).await.unwrap();
    }

    /// A lease of 0 is none.
    pub(crate) async fn try_put(
        &self,
        key: impl AsRef<[u8]>,
        value: &str,
        lease: i64,
    ) -> Result<(), Refused> {
        let lease = lease.to_string();
        let body = json!({"key": encoded(key), "value": encoded(value), "lease": lease});
        self.ask("kv/put", &body).await.map(drop)
    }

    pub(crate) async fn delete(&self, key: impl AsRef<[u8]>) {
        self.call("kv/deleterange", &json!({"key": encoded(key)})).await;
    }

    pub(crate) async fn get(&self, key: &str) -> Option<Found> {
        self.range(&json!({"key": encoded(key)})).await.pop()
    }

    /// All keys that begin with `prefix`, the oldest first.
    pub(crate) async fn all(&self, prefix: &str) -> Vec<Found> {
        let mut found = self.range(&under(prefix)).await;
        found.sort_by_key(|found| found.created);
        found
    }

    async fn range(&self, body: &Value) -> Vec<Found> {
        let answer = self.call("kv/range", body).await;
        answer["kvs"].as_array().into_iter().flatten().map(Found::read).collect()
    }

    pub(crate) async fn revision(&self) -> i64 {
        let answer = self.call("kv/range", &json!({"key": encoded("any")})).await;
        number(&answer["header"]["revision"])
    }

    pub(crate) async fn compact(&self, revision: i64) {
        self.call("kv/compaction", &json!({"revision": revision.to_string()})).await;
    }

    /// Forgets all old values, gives their room back, and ends the alarm of a member that was full.
    pub(crate) async fn make_room(&self) {
        let revision = self.revision().await.to_string();
        self.call("kv/compaction", &json!({"revision": revision, "physical": true})).await;
        self.call("maintenance/defragment", &json!({})).await;
        let (_, member) = self.status().await;
        let alarm = json!({"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"});
        self.call("maintenance/alarm", &alarm).await;
    }

    pub(crate) async fn lease_grant(&self, seconds: i64) -> i64 {
        number(&self.call("lease/grant", &json!({"TTL": seconds.to_string()})).await["ID"])
    }

    pub(crate) async fn lease_revoke(&self, lease: i64) {
        self.call("lease/revoke", &json!({"ID": lease.to_string()})).await;
    }

    /// How many seconds a lease has left; negative if it has ended.
    pub(crate) async fn left(&self, lease: i64) -> i64 {
        number(&self.call("lease/timetolive", &json!({"ID": lease.to_string()})).await["TTL"])
    }

    pub(crate) async fn leases(&self) -> Vec<i64> {
        let answer = self.call("lease/leases", &json!({})).await;
        let leases = answer["leases"].as_array().into_iter().flatten();
        leases.map(|lease| number(&lease["ID"])).collect()
    }

    /// The version of the member, and its id.
    pub(crate) async fn status(&self) -> (String, String) {
        let answer = self.call("maintenance/status", &json!({})).await;
        (text(&answer["version"]), text(&answer["header"]["member_id"]))
    }

    pub(crate) async fn member_remove(&self, id: &str) -> Result<(), Refused> {
        self.ask("cluster/member/remove", &json!({"ID": id})).await.map(drop)
    }

    pub(crate) async fn role_add(&self, name: &str) {
        self.call("auth/role/add", &json!({"name": name})).await;
    }

    /// Adds a user with one role.
    pub(crate) async fn user_add(&self, name: &str, password: &str, role: &str) {
        self.call("auth/user/add", &json!({"name": name, "password": password})).await;
        self.call("auth/user/grant", &json!({"user": name, "role": role})).await;
    }

    /// Permits the role to read and write a key.
    pub(crate) async fn permit(&self, role: &str, key: &str) {
        self.grant(role, json!({"key": encoded(key)})).await;
    }

    /// Permits the role to read and write all keys that begin with `prefix`.
    pub(crate) async fn permit_all(&self, role: &str, prefix: &str) {
        self.grant(role, under(prefix)).await;
    }

    async fn grant(&self, role: &str, mut keys: Value) {
        keys["permType"] = json!("READWRITE");
        self.call("auth/role/grant", &json!({"name": role, "perm": keys})).await;
    }

    /// Takes back what [`permit_all`](Self::permit_all) has permitted.
    pub(crate) async fn forbid_all(&self, role: &str, prefix: &str) {
        let mut keys = under(prefix);
        keys["role"] = json!(role);
        self.call("auth/role/revoke", &keys).await;
    }

    pub(crate) async fn auth_enable(&self) {
        self.call("auth/enable", &json!({})).await;
    }

    pub(crate) async fn auth_disable(&self) {
        self.call("auth/disable", &json!({})).await;
    }

    async fn call(&self, method: &str, body: &Value) -> Value {
        self.ask(method, body).await.unwrap_or_else(|refused| panic!("{method}: {refused}"))
    }

    async fn ask(&self, method: &str, body: &Value) -> Result<Value, Refused> {
        let token = match &self.user {
            None => String::new(),
            Some((name, password)) => {
                let user = json!({"name": name, "password": password});
                let answer = self.post("auth/authenticate", "", &user).await?;
                format!("Authorization: {}\r\n", text(&answer["token"]))
            }
        };
        self.post(method, &token, body).await
    }

    /// `token`: the whole line of the head, or nothing: an empty token is refused.
    async fn post(&self, method: &str, token: &str, body: &Value) -> Result<Value, Refused> {
        let body = body.to_string();
        let request = format!(
            "POST /v3/{method} HTTP/1.0\r\nContent-Type: application/json\r\n{token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.exchange(&request).await.map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| answer.clone())?;
        match serde_json::from_str(body) {
            Ok(answer) if head.contains(" 200 ") => Ok(answer),
            _ => Err(answer),
        }
    }

    async fn exchange(&self, request: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.member).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

impl Found {
    fn read(shown: &Value) -> Self {
        let bytes = |field: &str| BASE64.decode(text(&shown[field])).unwrap();
        let plain = |field: &str| String::from_utf8_lossy(&bytes(field)).into_owned();
        Self {
            key: plain("key"),
            value: plain("value"),
            lease: number(&shown["lease"]),
            created: number(&shown["create_revision"]),
            written: number(&shown["mod_revision"]),
        }
    }
}

/// The range of all keys that begin with `prefix`, which ends in no byte that cannot rise; of all keys without one.
fn under(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => return json!({"key": encoded([0]), "range_end": encoded([0])}),
    }
    json!({"key": encoded(prefix), "range_end": encoded(end)})
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

/// The gateway leaves out what is empty or zero.
fn text(field: &Value) -> String {
    field.as_str().unwrap_or_default().to_owned()
}

/// The gateway writes numbers as text.
fn number(field: &Value) -> i64 {
    field.as_str().map_or(0, |number| number.parse().unwrap())
}
