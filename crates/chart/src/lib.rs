//! The product's Helm charts, compiled in, and what turns them into manifests: nothing is pulled
//! from a chart repository at run time, and charts and process can never differ in version [S1].
//!
//! The charts stay valid for Helm itself. Of its template language just the functions that these
//! charts use are offered (see [`functions`]); a test fails on any other.

pub mod functions;
pub mod order;
pub mod record;
mod render;

use std::collections::BTreeMap;

use serde_json::Value;

pub use render::merged;

/// Installed on the hub by its operator: validates and provisions zones.
pub const PROTECTIONZONE_CONTROLLER: &str = "site-recovery-protectionzone-controller";
/// Installed on the hub by the zone controller, one for each zone.
pub const MANAGER_CONTROL_PLANE: &str = "site-recovery-manager-control-plane";
/// Installed on each workload cluster by the zone controller.
pub const WORKLOAD_CONTROL_PLANE: &str = "site-recovery-workload-control-plane";

#[derive(rust_embed::RustEmbed)]
#[folder = "../../charts"]
struct Embedded;

/// A chart: its metadata, its default values and its templates.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Name.
    pub name: String,
    /// Version of the chart.
    pub version: String,
    /// Version of what it installs: the tag of its images.
    pub app_version: String,
    /// Chart.yaml as a whole.
    pub metadata: Value,
    /// Default values.
    pub values: Value,
    /// Text of each file under `templates/`, by its path inside the chart.
    pub templates: BTreeMap<String, String>,
}

/// An installation of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    /// Namespace that it is installed into.
    pub namespace: String,
}

/// Why a chart gave no manifests.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// There is no such chart in this program.
    #[error("this program contains no chart named {0}")]
    NotFound(String),
    /// A file of the chart cannot be read.
    #[error("chart {chart}: {file} is not usable: {why}")]
    File {
        /// Name of the chart.
        chart: String,
        /// Path inside the chart.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A template failed, for instance for want of a required value.
    #[error("chart {chart}: {file} does not render with these values: {why}")]
    Template {
        /// Name of the chart.
        chart: String,
        /// Path inside the chart.
        file: String,
        /// What is wrong.
        why: String,
    },
}

impl Chart {
    /// Names of the charts in this program.
    pub fn names() -> Vec<String> {
        let mut names: Vec<String> = Embedded::iter()
            .filter_map(|path| path.strip_suffix("/Chart.yaml").map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    /// A chart of this program, by name.
    pub fn embedded(name: &str) -> Result<Self, ChartError> {
        let file = |why: String, file: &str| ChartError::File {
            chart: name.into(),
            file: file.into(),
            why,
        };
        let prefix = format!("{name}/");
        let mut files = BTreeMap::new();
        for path in Embedded::iter().filter(|path| path.starts_with(&prefix)) {
            let inside = path[prefix.len()..].to_owned();
            let data = Embedded::get(&path)
                .map(|file| file.data.into_owned())
                .unwrap_or_default();
            let text = String::from_utf8(data).map_err(|e| file(e.to_string(), &inside))?;
            files.insert(inside, text);
        }
        let Some(metadata) = files.remove("Chart.yaml") else {
            return Err(ChartError::NotFound(name.into()));
        };
        let metadata: Value =
            serde_saphyr::from_str(&metadata).map_err(|e| file(e.to_string(), "Chart.yaml"))?;
        let values = files.remove("values.yaml").unwrap_or_else(|| "{}".into());
        let values: Value =
            serde_saphyr::from_str(&values).map_err(|e| file(e.to_string(), "values.yaml"))?;
        let field = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            name: field("name"),
            version: field("version"),
            app_version: field("appVersion"),
            templates: files
                .into_iter()
                .filter(|(path, _)| path.starts_with("templates/"))
                .collect(),
            values,
            metadata,
        })
    }

    /// The manifests of a release, in the order in which Helm would install them. `values` go over
    /// the chart's defaults. Every manifest carries Helm's marks of ownership.
    pub fn render(&self, release: &Release, values: &Value) -> Result<Vec<Value>, ChartError> {
        render::render(self, release, values)
    }
}
