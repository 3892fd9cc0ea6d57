//! Runs scripts against a server.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::normal;
use super::script::{Script, Step, Until};

/// Longest wait for an event, or for what a controller does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server and its administrator's token.
pub struct Target {
    client: Client,
    token: String,
}

/// What a step was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub media: String,
    pub warnings: Vec<String>,
    pub body: Value,
}

impl Answer {
    pub fn to_json(&self) -> Value {
        let mut value = json!({"code": self.code, "body": self.body});
        if self.media != "application/json" {
            value["type"] = json!(self.media);
        }
        if !self.warnings.is_empty() {
            value["warnings"] = json!(self.warnings);
        }
        value
    }
}

struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Target {
    pub fn new(client: Client, token: impl Into<String>) -> Self {
        Self {
            client,
            token: token.into(),
        }
    }

    async fn open(&self, step: &Step, known: &Variables) -> (Answer, Body) {
        let request = known.fill(step.request.as_deref().unwrap());
        let (method, path) = request.split_once(' ').unwrap();
        let mut builder = Request::builder()
            .method(method)
            .uri(path)
            .header("user-agent", "differential/1");
        let headers: BTreeMap<String, String> = step
            .headers
            .iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), known.fill(v)))
            .collect();
        if !headers.contains_key("authorization") {
            builder = builder.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in &headers {
            if !value.is_empty() {
                builder = builder.header(name, value);
            }
        }
        if let Some(user) = &step.user {
            builder = builder.header("impersonate-user", known.fill(user));
        }
        if let Some(accept) = &step.accept {
            builder = builder.header("accept", accepted(accept));
        }
        let body = match (&step.body, &step.text) {
            (Some(Value::Array(items)), _) => {
                let items: Vec<Value> = items.iter().map(|v| known.fill_value(v)).collect();
                let items = vec![items; step.repeat].concat();
                Some(json!(items).to_string())
            }
            (Some(value), _) => Some(known.fill_value(value).to_string()),
            (None, Some(text)) => Some(known.fill(text).repeat(step.repeat)),
            (None, None) => None,
        };
        if body.is_some() || step.media.is_some() {
            let media = media(step.media.as_deref().unwrap_or("json"));
            if !media.is_empty() {
                builder = builder.header("content-type", media);
            }
        }
        let body = Body::from(body.unwrap_or_default().into_bytes());
        let response = self.client.send(builder.body(body).unwrap()).await;
        let Ok(response) = response else {
            // A server that stumbles over a request does not answer.
            return (Watch::refused(), Body::empty());
        };
        let (parts, body) = response.into_parts();
        let texts = |name: &str| {
            let values = parts.headers.get_all(name).iter();
            let texts = values.map(|v| v.to_str().unwrap().to_owned());
            texts.collect::<Vec<_>>()
        };
        let answer = Answer {
            code: parts.status.as_u16(),
            media: texts("content-type").concat(),
            warnings: texts("warning"),
            body: Value::Null,
        };
        (answer, body)
    }

    async fn ask(&self, step: &Step, known: &Variables) -> Answer {
        let (mut answer, body) = self.open(step, known).await;
        let bytes = body.collect().await.unwrap().to_bytes();
        answer.body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        answer
    }

    async fn ask_until(&self, step: &Step, until: &Until, known: &Variables) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(step, known).await;
            let reached = answer.code == until.code
                && until
                    .values
                    .iter()
                    .all(|(at, value)| answer.body.pointer(at).unwrap_or(&Value::Null) == value);
            if reached || Instant::now() >= deadline {
                return answer;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Gives the script its namespace, then runs it.
pub async fn script(target: &Target, script: &Script) -> Vec<(String, Answer)> {
    let known = Variables::default();
    let namespace: Vec<Step> = serde_saphyr::from_str(&format!(
        "- {{do: POST /api/v1/namespaces, body: {{apiVersion: v1, kind: Namespace, metadata: {{name: {0}}}}}}}\n\
         - {{do: GET /api/v1/namespaces/{0}/serviceaccounts/default, until: {{code: 200}}}}",
        script.name
    ))
    .unwrap();
    let made = target.ask(&namespace[0], &known).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let account = target
        .ask_until(&namespace[1], namespace[1].until.as_ref().unwrap(), &known)
        .await;
    assert_eq!(account.code, 200, "{}", account.body);

    let mut known = Variables::default();
    known.set("ns", &script.name);
    let mut watches: BTreeMap<String, Watch> = BTreeMap::new();
    let mut answers = Vec::new();
    for (name, step) in script.named() {
        let answer = if let Some(watch) = &step.events {
            match watches.get_mut(watch) {
                Some(watch) => watch.events(step.count).await,
                None => Watch::refused(),
            }
        } else if let Some(id) = &step.watch {
            let (mut answer, body) = target.open(step, &known).await;
            let mut watch = Watch {
                body,
                rest: Vec::new(),
            };
            if answer.code == 200 {
                watches.insert(id.clone(), watch);
            } else {
                answer.body = watch.line().await.unwrap_or_default();
            }
            answer
        } else if let Some(until) = &step.until {
            target.ask_until(step, until, &known).await
        } else {
            target.ask(step, &known).await
        };
        for (variable, at) in &step.save {
            let value = find(&answer.body, at)
                .unwrap_or_else(|| panic!("{}: {name}: no {at} in {}", script.name, answer.body));
            known.set(variable, value.as_str().unwrap_or(&value.to_string()));
        }
        answers.push((name, answer));
    }
    normal::normalise(&mut answers);
    for ((_, answer), step) in answers.iter_mut().zip(&script.steps) {
        if !step.only.is_empty() && answer.code < 400 {
            let parts = step.only.iter().map(|at| {
                let part = find(&answer.body, at).cloned().unwrap_or_default();
                (at.clone(), part)
            });
            answer.body = Value::Object(parts.collect());
        }
    }
    answers
}

/// A JSON pointer, or one with `[key=value]` for the item of a list.
fn find<'a>(value: &'a Value, at: &str) -> Option<&'a Value> {
    let mut here = value;
    for part in at.split('/').skip(1) {
        here = match part.strip_prefix('[').and_then(|p| p.strip_suffix(']')) {
            Some(wanted) => {
                let (key, wanted) = wanted.split_once('=')?;
                here.as_array()?.iter().find(|item| item[key] == wanted)?
            }
            None => here.pointer(&format!("/{part}"))?,
        };
    }
    Some(here)
}

impl Watch {
    /// What a watch tells that was not opened.
    fn refused() -> Answer {
        Answer {
            code: 0,
            media: "application/json".into(),
            warnings: Vec::new(),
            body: Value::Null,
        }
    }

    /// The next event, or `None` at the end.
    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let text = || json!(String::from_utf8_lossy(&line));
                return Some(serde_json::from_slice(&line).unwrap_or_else(|_| text()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                _ if self.rest.is_empty() => return None,
                _ => {
                    let rest = std::mem::take(&mut self.rest);
                    return serde_json::from_slice(&rest).ok();
                }
            }
        }
    }

    async fn events(&mut self, count: Option<usize>) -> Answer {
        let mut events = Vec::new();
        while count.is_none_or(|n| events.len() < n) {
            match timeout(PATIENCE, self.line()).await {
                Ok(Some(event)) => events.push(event),
                Ok(None) if count.is_none() => break,
                Ok(None) => {
                    events.push(json!("the watch ended"));
                    break;
                }
                Err(_) => {
                    events.push(json!("nothing more came"));
                    break;
                }
            }
        }
        Answer {
            code: 200,
            media: "application/json".into(),
            warnings: Vec::new(),
            body: Value::Array(events),
        }
    }
}

#[derive(Default)]
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.into(), value.into());
    }

    /// Puts the values in for `$name`.
    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // Longer names first: `$uid2` is not `$uid` and a 2.
        let mut names: Vec<_> = self.0.iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        for (name, value) in names {
            text = text.replace(&format!("${name}"), value);
        }
        text
    }

    fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(items) => items.iter().map(|v| self.fill_value(v)).collect(),
            Value::Object(map) => {
                let map = map.iter().map(|(k, v)| (self.fill(k), self.fill_value(v)));
                Value::Object(map.collect())
            }
            other => other.clone(),
        }
    }
}

fn media(short: &str) -> &str {
    match short {
        "none" => "",
        "json" => "application/json",
        "yaml" => "application/yaml",
        "merge" => "application/merge-patch+json",
        "json-patch" => "application/json-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "apply" => "application/apply-patch+yaml",
        full => full,
    }
}

fn accepted(short: &str) -> &str {
    match short {
        "table" => "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "partial" => "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "partials" => "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        full => full,
    }
}
