//! Release records, as Helm would read them.

use std::io::Read;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use farshore_chart::record::{Record, Status};
use farshore_chart::{Chart, MANAGER_CONTROL_PLANE, Release};
use serde_json::{Value, json};

const AT: &str = "2026-01-01T00:00:00Z";

fn first(zone: &str) -> Record {
    let release = Release {
        name: "site-recovery-manager".into(),
        namespace: "dr-metro".into(),
    };
    let values = json!({ "zone": { "name": zone } });
    let chart = Chart::embedded(MANAGER_CONTROL_PLANE).unwrap();
    let manifests = chart.render(&release, &values).unwrap();
    Record::first(&chart, &release, &values, &manifests, AT)
}

/// Unpacks a Secret by Helm's own steps, with nothing of the crate's.
fn as_helm_reads(secret: &Value) -> Value {
    let of_secret = |text: &str| BASE64_STANDARD.decode(text).unwrap();
    let inner = of_secret(secret["data"]["release"].as_str().unwrap());
    let packed = BASE64_STANDARD.decode(inner).unwrap();
    assert_eq!(packed[..3], [0x1f, 0x8b, 0x08]);
    let mut json = String::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_string(&mut json)
        .unwrap();
    serde_json::from_str(&json).unwrap()
}

#[test]
fn a_record_has_what_helm_lists_gets_and_uninstalls_by() {
    let secret = first("metro").secret();
    assert_eq!(secret["type"], "helm.sh/release.v1");
    assert_eq!(
        secret["metadata"],
        json!({
            "name": "sh.helm.release.v1.site-recovery-manager.v1",
            "namespace": "dr-metro",
            "labels": { "owner": "helm", "name": "site-recovery-manager", "status": "deployed", "version": "1" },
        })
    );
    let release = as_helm_reads(&secret);
    assert_eq!(
        (&release["name"], &release["namespace"], &release["version"]),
        (
            &json!("site-recovery-manager"),
            &json!("dr-metro"),
            &json!(1)
        )
    );
    assert_eq!(
        release["info"],
        json!({ "first_deployed": AT, "last_deployed": AT, "deleted": "", "description": "Install complete", "status": "deployed" })
    );
    let chart = &release["chart"];
    assert_eq!(chart["metadata"]["name"], MANAGER_CONTROL_PLANE);
    assert_eq!(release["config"], json!({ "zone": { "name": "metro" } }));
    for template in chart["templates"].as_array().unwrap() {
        let data = template["data"].as_str().unwrap();
        assert!(!BASE64_STANDARD.decode(data).unwrap().is_empty());
    }
    // `helm uninstall` deletes what it reads here.
    let manifest = release["manifest"].as_str().unwrap();
    assert!(manifest.starts_with("---\n"), "{manifest}");
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    let kinds: Vec<_> = documents
        .iter()
        .filter_map(|d| d["kind"].as_str())
        .collect();
    assert!(
        kinds.contains(&"Deployment") && kinds.contains(&"ServiceAccount"),
        "{kinds:?}"
    );
}

#[test]
fn what_is_written_is_what_is_read_again() {
    let record = first("metro");
    let read = Record::read(&record.secret()).unwrap();
    assert_eq!(read, record);
    let release = Release {
        name: "site-recovery-manager".into(),
        namespace: "dr-metro".into(),
    };
    let chart = Chart::embedded(MANAGER_CONTROL_PLANE).unwrap();
    let rendered = chart
        .render(&release, &json!({ "zone": { "name": "metro" } }))
        .unwrap();
    assert_eq!(
        read.manifests().unwrap(),
        rendered,
        "the text says what was rendered, value by value"
    );
}

#[test]
fn a_later_revision_keeps_the_day_of_the_first() {
    let (one, other) = (first("metro"), first("metro2"));
    assert!(one.installs_the_same_as(&first("metro")));
    assert!(!one.installs_the_same_as(&other));
    let two = other.after(&one);
    assert_eq!(
        two.secret_name(),
        "sh.helm.release.v1.site-recovery-manager.v2"
    );
    let release = as_helm_reads(&two.secret());
    assert_eq!(release["info"]["description"], "Upgrade complete");
    assert_eq!(release["info"]["first_deployed"], AT);
    let one = one.with(Status::Superseded);
    assert!(two.is_deployed() && !one.is_deployed());
    assert_eq!(one.secret()["metadata"]["labels"]["status"], "superseded");
    assert!(
        one.installs_the_same_as(&first("metro")),
        "the status is no part of it"
    );
}

#[test]
fn a_secret_that_is_no_record_is_named() {
    let good = first("metro").secret();
    let packed = |text: &str| BASE64_STANDARD.encode(BASE64_STANDARD.encode(text));
    for (change, why) in [
        (json!({ "type": "Opaque" }), "its type is another"),
        (json!({ "data": { "release": "?" } }), "no base64"),
        (
            json!({ "data": { "release": BASE64_STANDARD.encode("?") } }),
            "no base64",
        ),
        (
            json!({ "data": { "release": packed("no json") } }),
            "is no JSON",
        ),
        (
            json!({ "data": { "release": BASE64_STANDARD.encode(BASE64_STANDARD.encode([0x1f, 0x8b, 8, 0, 1])) } }),
            "cannot be unpacked",
        ),
    ] {
        let secret = farshore_chart::merged(&good, &change);
        let error = Record::read(&secret).unwrap_err().to_string();
        assert!(
            error.contains("sh.helm.release.v1.site-recovery-manager.v1") && error.contains(why),
            "{error}"
        );
    }
    // Records that were not compressed are read, too.
    let plain = json!({ "data": { "release": packed(&as_helm_reads(&good).to_string()) } });
    let secret = farshore_chart::merged(&good, &plain);
    assert_eq!(Record::read(&secret).unwrap(), first("metro"));
}
