//! Release records as Helm 3 keeps them, so that `helm list`, `helm get` and `helm uninstall` work on what
//! a controller installed: one Secret for each revision, with the release as JSON, compressed.
//!
//! The format is that of Helm's storage driver `secret` (`pkg/storage/driver`): type
//! `helm.sh/release.v1`, labels `owner`, `name`, `status` and `version`, and in `data.release` the
//! base64 of gzip of JSON, which the Secret's own encoding wraps in base64 once more.

use std::io::{Read, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::{Chart, Release};

/// Type of the Secrets.
const TYPE: &str = "helm.sh/release.v1";
/// Largest record that is read, unpacked, in bytes: more than a Secret can hold of text.
const LIMIT: u64 = 64 * 1024 * 1024;

/// What has become of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is what runs.
    Deployed,
    /// A later revision runs.
    Superseded,
}

impl Status {
    /// As Helm writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployed => "deployed",
            Self::Superseded => "superseded",
        }
    }
}

/// One revision of a release.
#[derive(Clone, Debug, PartialEq)]
pub struct Record(Value);

/// Why a Secret holds no release.
#[derive(Debug, thiserror::Error)]
#[error("Secret {secret} holds no release that can be read: {why}")]
pub struct RecordError {
    /// Its name.
    pub secret: String,
    /// What is wrong.
    pub why: String,
}

impl Record {
    /// The first revision of a release, deployed at a moment given in RFC 3339. `values` are those that
    /// were laid over the chart's own.
    pub fn first(
        chart: &Chart,
        release: &Release,
        values: &Value,
        manifests: &[Value],
        at: &str,
    ) -> Self {
        let templates: Vec<Value> = chart
            .templates
            .iter()
            .map(|(path, text)| json!({ "name": path, "data": BASE64_STANDARD.encode(text) }))
            .collect();
        Self(json!({
            "name": release.name,
            "namespace": release.namespace,
            "version": 1,
            "info": {
                "first_deployed": at,
                "last_deployed": at,
                "deleted": "",
                "description": "Install complete",
                "status": Status::Deployed.as_str(),
            },
            "chart": {
                "metadata": chart.metadata,
                "lock": null,
                "templates": templates,
                "values": chart.values,
                "schema": null,
                "files": null,
            },
            "config": values,
            "manifest": text(manifests),
        }))
    }

    /// The revision that follows an earlier one.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        self.0["version"] = (earlier.revision() + 1).into();
        self.0["info"]["first_deployed"] = earlier.0["info"]["first_deployed"].clone();
        self.0["info"]["description"] = "Upgrade complete".into();
        self
    }

    /// The same revision with another status.
    #[must_use]
    pub fn with(mut self, status: Status) -> Self {
        self.0["info"]["status"] = status.as_str().into();
        self
    }

    /// Its number, from 1.
    pub fn revision(&self) -> u64 {
        self.0["version"].as_u64().unwrap_or_default()
    }

    /// Whether it is what runs.
    pub fn is_deployed(&self) -> bool {
        self.0["info"]["status"] == Status::Deployed.as_str()
    }

    /// Whether another revision would install the same: times, numbers and status aside.
    pub fn installs_the_same_as(&self, other: &Self) -> bool {
        ["chart", "config", "manifest"]
            .iter()
            .all(|part| self.0[part] == other.0[part])
    }

    /// The objects that it consists of, in the order of their installation.
    pub fn manifests(&self) -> Result<Vec<Value>, RecordError> {
        let text = self.0["manifest"].as_str().unwrap_or_default();
        serde_saphyr::from_multiple(text).map_err(|e| RecordError {
            secret: self.secret_name(),
            why: format!("its manifest is no YAML: {e}"),
        })
    }

    /// Name of its Secret.
    pub fn secret_name(&self) -> String {
        let name = self.0["name"].as_str().unwrap_or_default();
        Self::secret_name_of(name, self.revision())
    }

    /// Name of the Secret of a revision.
    pub fn secret_name_of(release: &str, revision: u64) -> String {
        format!("sh.helm.release.v1.{release}.v{revision}")
    }

    /// The labels of its Secret, by which Helm finds it.
    pub fn labels(&self) -> Value {
        json!({
            "owner": "helm",
            "name": self.0["name"],
            "status": self.0["info"]["status"],
            "version": self.revision().to_string(),
        })
    }

    /// Its Secret.
    pub fn secret(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.secret_name(),
                "namespace": self.0["namespace"],
                "labels": self.labels(),
            },
            "type": TYPE,
            "data": { "release": BASE64_STANDARD.encode(pack(&self.0)) },
        })
    }

    /// Reads the Secret of a revision, whoever wrote it.
    pub fn read(secret: &Value) -> Result<Self, RecordError> {
        let error = |why: &str| RecordError {
            secret: secret["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .into(),
            why: why.into(),
        };
        if secret["type"] != TYPE {
            return Err(error("its type is another"));
        }
        let data = secret["data"]["release"].as_str().unwrap_or_default();
        let inner = BASE64_STANDARD
            .decode(data)
            .map_err(|_| error("data.release is no base64"))?;
        unpack(&inner).map(Self).map_err(|why| error(&why))
    }
}

/// Manifests as `helm get manifest` prints them.
fn text(manifests: &[Value]) -> String {
    let document = |manifest: &Value| {
        // JSON is YAML, too: what cannot be said in block style is said so.
        let text = serde_saphyr::to_string(manifest).unwrap_or_else(|_| manifest.to_string());
        format!("---\n{}\n", text.trim_end())
    };
    manifests.iter().map(document).collect()
}

fn pack(release: &Value) -> String {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    // Writing into memory does not fail.
    let _ = packed.write_all(release.to_string().as_bytes());
    BASE64_STANDARD.encode(packed.finish().unwrap_or_default())
}

/// Releases that were written by Helm 2's converter are not compressed.
fn unpack(inner: &[u8]) -> Result<Value, String> {
    let bytes = BASE64_STANDARD
        .decode(inner)
        .map_err(|_| "the release is no base64")?;
    let mut json = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b, 0x08]) {
        GzDecoder::new(bytes.as_slice())
            .take(LIMIT)
            .read_to_end(&mut json)
            .map_err(|e| format!("the release cannot be unpacked: {e}"))?;
    } else {
        json = bytes;
    }
    serde_json::from_slice(&json).map_err(|e| format!("the release is no JSON: {e}"))
}
