//! What an etcd holds, and how to make it hold that again. Asked through its JSON gateway, on its socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// What a store holds from the moment on at which its API server is complete.
const COMPLETE: [&str; 5] = [
    "/registry/namespaces/default",
    "/registry/namespaces/kube-system",
    "/registry/namespaces/kube-public",
    "/registry/namespaces/kube-node-lease",
    "/registry/services/specs/default/kubernetes",
];
/// What stays, whatever a snapshot says: a server works for seconds on each definition that comes or goes,
/// and everybody who wants one makes it what it should be.
const LASTING: [&str; 2] = [
    "/registry/apiextensions.k8s.io/customresourcedefinitions/",
    "/registry/apiregistration.k8s.io/apiservices/",
];
/// Longest answer of a store on this machine.
const ANSWER: Duration = Duration::from_secs(30);
/// Operations in one transaction; etcd takes 128.
const AT_ONCE: usize = 100;

/// The keys of a store and their values, both as etcd's JSON has them.
pub struct Snapshot(BTreeMap<String, String>);

impl Snapshot {
    /// What the etcd behind this socket holds, once all is there that a new API server writes.
    pub fn of(socket: &Path) -> anyhow::Result<Option<Self>> {
        let now = read(socket)?;
        let complete = COMPLETE.iter().all(|key| now.contains_key(&encoded(key)));
        Ok(complete.then_some(Self(now)))
    }

    /// Makes the store hold this again, and beside it definitions alone. The API server follows by its watches.
    pub fn restore(&self, socket: &Path) -> anyhow::Result<()> {
        let now = read(socket)?;
        let gone = now
            .iter()
            .filter(|(key, value)| !self.0.contains_key(*key) && !lasts(key, value))
            .map(|(key, _)| json!({ "requestDeleteRange": { "key": key } }));
        let other = self
            .0
            .iter()
            .filter(|(key, value)| now.get(*key) != Some(value))
            .map(|(key, value)| json!({ "requestPut": { "key": key, "value": value } }));
        let operations: Vec<Value> = gone.chain(other).collect();
        for some in operations.chunks(AT_ONCE) {
            ask(socket, "/v3/kv/txn", &json!({ "success": some }))?;
        }
        Ok(())
    }
}

/// Whether an object stays that a snapshot does not have. One that is being deleted goes.
fn lasts(key: &str, value: &str) -> bool {
    let text = |encoded: &str| {
        let bytes = BASE64_STANDARD.decode(encoded).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let key = text(key);
    LASTING.iter().any(|prefix| key.starts_with(prefix))
        && !text(value).contains("deletionTimestamp")
}

fn encoded(key: &str) -> String {
    BASE64_STANDARD.encode(key)
}

fn read(socket: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let all = json!({ "key": encoded("/registry/"), "range_end": encoded("/registry0") });
    let mut answer = ask(socket, "/v3/kv/range", &all)?;
    let pairs = match answer["kvs"].take() {
        Value::Array(pairs) => pairs,
        _ => Vec::new(),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(pairs
        .iter()
        .map(|pair| (text(&pair["key"]), text(&pair["value"])))
        .collect())
}

/// One request to etcd's JSON gateway. HTTP/1.0, so that the end of the answer is the end of the connection.
fn ask(socket: &Path, path: &str, body: &Value) -> anyhow::Result<Value> {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = ask().with_context(|| format!("asking {} for {path}", socket.display()))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("etcd answered {path} with {status}: {body}");
    }
    serde_json::from_str(body).with_context(|| format!("reading etcd's answer to {path}"))
}
