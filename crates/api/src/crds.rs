//! All CustomResourceDefinitions, as the product installs them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

/// Every CRD of Site Recovery. All of them are installed on the hub and on both workload clusters.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
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
    ]
}

/// Schema of an embedded object whose fields another API defines.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
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
