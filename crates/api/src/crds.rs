//! All CustomResourceDefinitions, as the product installs them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

/// Every CRD of Site Recovery. All of them are installed on the hub and on both workload clusters.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        crate::ProtectionZone::crd(),
        crate::DRBDReplicationPolicy::crd(),
        crate::ProtectionRequest::crd(),
        crate::ProtectionGroup::crd(),
        crate::FailoverRequest::crd(),
        crate::TestFailover::crd(),
        crate::ReplicationGroupStatus::crd(),
        crate::RPOEvent::crd(),
        crate::DRBDResource::crd(),
        crate::DRBDVolume::crd(),
    ];
    for version in all.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        let root = version.schema.as_mut();
        if let Some(schema) = root.and_then(|s| s.open_api_v3_schema.as_mut()) {
            explain(schema);
        }
    }
    all
}

/// Makes `kubectl explain` read well: a kind is described by what its spec says, and the line breaks
/// of the source's comments are none of the reader's.
fn explain(root: &mut JSONSchemaProps) {
    let fields = root.properties.as_ref();
    let spec = fields.and_then(|fields| fields.get("spec"));
    if let Some(description) = spec.and_then(|spec| spec.description.clone()) {
        root.description = Some(description);
    }
    unwrap_lines(root);
}

fn unwrap_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        let paragraphs = description.split("\n\n");
        let unwrapped: Vec<String> = paragraphs.map(|p| p.replace('\n', " ")).collect();
        *description = unwrapped.join("\n\n");
    }
    for field in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        unwrap_lines(field);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        unwrap_lines(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        unwrap_lines(values);
    }
}

/// Schema of a Job template. Its content is opaque to rules, which compare the value of `spec` as a
/// whole then.
pub(crate) fn job_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "required": ["spec"], "x-kubernetes-preserve-unknown-fields": true
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kind_has_a_short_name_a_status_and_an_age_column_or_is_a_record() {
        for crd in super::all() {
            let kind = &crd.spec.names.kind;
            assert!(
                crd.spec
                    .names
                    .short_names
                    .as_ref()
                    .is_some_and(|s| !s.is_empty()),
                "{kind}"
            );
            let version = &crd.spec.versions[0];
            let columns = version.additional_printer_columns.as_ref().expect(kind);
            assert_eq!(
                columns.last().map(|c| c.name.as_str()),
                Some("Age"),
                "{kind}"
            );
            assert!(
                version.subresources.is_some() || kind == "RPOEvent",
                "{kind}"
            );
        }
    }

    #[test]
    fn a_name_that_becomes_a_label_or_a_namespace_is_limited_by_the_schema() {
        let limited = [
            "ProtectionZone",
            "ProtectionRequest",
            "ProtectionGroup",
            "TestFailover",
        ];
        for crd in super::all() {
            let kind = crd.spec.names.kind.clone();
            let crd = serde_json::to_value(crd).unwrap();
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let rules = schema["x-kubernetes-validations"].to_string();
            assert_eq!(
                rules.contains("self.metadata.name.size()"),
                limited.contains(&kind.as_str()),
                "{kind}: {rules}"
            );
        }
    }

    #[test]
    fn every_kind_is_explained_in_words_of_its_own() {
        for crd in super::all() {
            let kind = crd.spec.names.kind.clone();
            let schema = crd.spec.versions[0].schema.clone();
            let root = schema.and_then(|s| s.open_api_v3_schema).expect(&kind);
            let told = root.description.expect(&kind);
            assert!(!told.contains("Auto-generated"), "{kind}: {told}");
            let lists = told.contains("\n\n");
            assert!(lists || !told.contains('\n'), "{kind}: {told}");
        }
    }

    #[test]
    fn a_zone_takes_exactly_two_clusters() {
        let crd = serde_json::to_value(super::all().remove(0)).unwrap();
        let clusters = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            ["properties"]["clusters"];
        assert_eq!(
            (clusters["minItems"].as_i64(), clusters["maxItems"].as_i64()),
            (Some(2), Some(2))
        );
    }
}
