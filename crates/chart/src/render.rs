//! Templates and values in, manifests out.

use std::sync::{Arc, OnceLock, Weak};

use gotmpl::parse::{DefineNode, ListNode, Parser};
use gotmpl::{Template, TemplateError};
use serde_json::{Map, Value, json};

use crate::{Chart, ChartError, Release, functions, order};

/// What Go prints for a value that is not there; Helm turns it into nothing, we into an error.
const NO_VALUE: &str = "<no value>";

pub(crate) fn render(
    chart: &Chart,
    release: &Release,
    values: &Value,
) -> Result<Vec<Value>, ChartError> {
    let failed = |file: &str, why: String| ChartError::Template {
        chart: chart.name.clone(),
        file: file.into(),
        why,
    };
    let context = gotmpl::to_value(&context(chart, release, values))
        .map_err(|e| failed("values", e.to_string()))?;

    // `include` runs a template of the very set that it is a function of, hence the late binding.
    let slot: Arc<OnceLock<Template>> = Arc::default();
    let included: Weak<OnceLock<Template>> = Arc::downgrade(&slot);
    let include = move |args: &[gotmpl::Value]| {
        let [name, data] = args else {
            return Err(TemplateError::Exec(format!(
                "include takes 2 arguments, not {}",
                args.len()
            )));
        };
        let set = included.upgrade();
        let template = set
            .as_ref()
            .and_then(|set| set.get())
            .ok_or_else(|| TemplateError::Exec("include: no templates yet".into()))?;
        let mut text = String::new();
        template.execute_template_fmt(&mut text, &name.to_string(), data)?;
        Ok(gotmpl::Value::String(text.into()))
    };
    let mut template = Template::new("")
        .funcs(functions::functions())
        .func("include", include);
    for (path, text) in &chart.templates {
        let (tree, defines) = parse(path, text).map_err(|e| failed(path, e.to_string()))?;
        template = template.add_parse_tree(path, tree);
        for define in defines {
            template = template.add_parse_tree(&define.name, define.body);
        }
    }
    let template = slot.get_or_init(|| template);

    let mut manifests = Vec::new();
    for path in chart
        .templates
        .keys()
        .filter(|path| path.ends_with(".yaml"))
    {
        let mut text = String::new();
        template
            .execute_template_fmt(&mut text, path, &context)
            .map_err(|e| failed(path, e.to_string()))?;
        if text.contains(NO_VALUE) {
            return Err(failed(path, "it uses a value that is not set".into()));
        }
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(|e| failed(path, e.to_string()))?;
        manifests.extend(documents.into_iter().filter(|document| !document.is_null()));
    }
    for manifest in &mut manifests {
        mark(manifest, release);
    }
    order::sort(&mut manifests);
    Ok(manifests)
}

fn parse(path: &str, text: &str) -> gotmpl::Result<(ListNode, Vec<DefineNode>)> {
    Parser::with_name(Some(path), text, "{{", "}}")?.parse()
}

/// What templates see as `.`.
fn context(chart: &Chart, release: &Release, values: &Value) -> Value {
    json!({
        "Values": merged(&chart.values, values),
        "Chart": { "Name": chart.name, "Version": chart.version, "AppVersion": chart.app_version },
        "Release": { "Name": release.name, "Namespace": release.namespace, "Service": "Helm" },
    })
}

/// `over` laid over `base` as Helm does it: maps are merged, anything else is replaced, null removes.
pub fn merged(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut result = base.clone();
            for (key, value) in over {
                match (value, base.get(key)) {
                    (Value::Null, _) => {
                        result.remove(key);
                    }
                    (value, Some(old)) => {
                        result.insert(key.clone(), merged(old, value));
                    }
                    (value, None) => {
                        result.insert(key.clone(), value.clone());
                    }
                }
            }
            Value::Object(result)
        }
        (_, over) => over.clone(),
    }
}

/// Sets what makes Helm take an object for part of the release.
fn mark(manifest: &mut Value, release: &Release) {
    let mut put = |field: &str, key: &str, value: &str| {
        let metadata = &mut manifest["metadata"];
        if !metadata[field].is_object() {
            metadata[field] = Value::Object(Map::new());
        }
        metadata[field][key] = value.into();
    };
    put("labels", "app.kubernetes.io/managed-by", "Helm");
    put("annotations", "meta.helm.sh/release-name", &release.name);
    put(
        "annotations",
        "meta.helm.sh/release-namespace",
        &release.namespace,
    );
}
