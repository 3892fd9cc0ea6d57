use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::human_duration;
use super::{Column, IncludeObject, JsonPath, builtin_columns, custom_columns, render};

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn now() -> Timestamp {
    "2024-05-01T12:00:00Z".parse().unwrap()
}

/// Heading and cell of each column of one object.
fn cells(columns: &[Column], object: &Value) -> Vec<(String, Value)> {
    let table = render(
        columns,
        std::slice::from_ref(object),
        IncludeObject::None,
        "meta.k8s.io/v1",
        now(),
        json!({}),
    );
    let names = columns.iter().map(|c| c.name.clone());
    let row = table["rows"][0]["cells"].as_array().unwrap().clone();
    names.zip(row).collect()
}

/// As `cells`, on one line.
fn line(group: &str, kind: &str, object: &str) -> String {
    let columns = builtin_columns(group, kind).unwrap();
    cells(&columns, &yaml(object))
        .into_iter()
        .map(|(name, cell)| match cell {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        })
        .collect::<Vec<_>>()
        .join("; ")
}

#[test]
fn durations_get_coarser_as_they_grow() {
    let cases = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86_400, "8d"),
        (729 * 86_400, "729d"),
        (730 * 86_400, "2y"),
        (733 * 86_400, "2y3d"),
        (9 * 365 * 86_400, "9y"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn paths_find_what_printer_columns_ask_for() {
    let object = yaml(
        r#"
        metadata:
          name: a
          labels: {app.kubernetes.io/name: web, plain: x}
        spec: {sizes: [1, 2, 3], "odd name": odd, a.b: {c: 1}}
        status:
          conditions:
            - {type: Synced, status: "False"}
            - {type: Ready, status: "True", n: 5, ok: true}
        "#,
    );
    let cases = [
        (".metadata.name", json!(["a"])),
        ("{.metadata.name}", json!(["a"])),
        ("$.metadata.name", json!(["a"])),
        (r".metadata.labels.app\.kubernetes\.io/name", json!(["web"])),
        (".metadata.labels['app.kubernetes.io/name']", json!(["web"])),
        (r#".metadata.labels["plain"]"#, json!(["x"])),
        (
            r".metadata.labels['app\.kubernetes\.io/name']",
            json!(["web"]),
        ),
        (".spec['odd name']", json!(["odd"])),
        (r".spec.a\.b.c", json!([1])),
        (".spec.sizes[0]", json!([1])),
        (".spec.sizes[-1]", json!([3])),
        (".spec.sizes[*]", json!([1, 2, 3])),
        (".spec.sizes[1:]", json!([2, 3])),
        (".spec.sizes[:-1]", json!([1, 2])),
        (".spec.sizes[9]", json!([])),
        (".spec.missing.deeper", json!([])),
        (
            r#".status.conditions[?(@.type=="Ready")].status"#,
            json!(["True"]),
        ),
        (
            ".status.conditions[?(@.type == 'Ready')].status",
            json!(["True"]),
        ),
        (
            ".status.conditions[?(@.type!='Ready')].type",
            json!(["Synced"]),
        ),
        (".status.conditions[?(@.n>4)].type", json!(["Ready"])),
        (".status.conditions[?(@.n<=4)].type", json!([])),
        (".status.conditions[?(@.n)].type", json!(["Ready"])),
        (".status.conditions[?(@.ok==true)].type", json!(["Ready"])),
        (".status.conditions[*].type", json!(["Synced", "Ready"])),
        ("..n", json!([5])),
        (".metadata.labels.*", json!(["web", "x"])),
    ];
    for (path, expected) in cases {
        let found = JsonPath::parse(path).unwrap();
        assert_eq!(json!(found.find(&object)), expected, "{path}");
    }
    for path in ["metadata", ".a[", ".a[x]", ".a..", ".a[?(@.b==)]", ".a."] {
        assert!(JsonPath::parse(path).is_err(), "{path}");
    }
}

#[test]
fn custom_columns_convert_their_cells() {
    let columns = custom_columns(&yaml(
        r#"
        - {name: Phase, type: string, jsonPath: .status.phase, description: The phase.}
        - {name: Size, type: integer, jsonPath: .spec.size}
        - {name: Ratio, type: number, jsonPath: .spec.ratio, priority: 1}
        - {name: On, type: boolean, jsonPath: .spec.on}
        - {name: Wrong, type: integer, jsonPath: .spec.on}
        - {name: List, type: string, jsonPath: .spec.list}
        - {name: First, type: string, jsonPath: '.spec.list[*]'}
        - {name: Number, type: string, jsonPath: .spec.size}
        - {name: Missing, type: string, jsonPath: .spec.missing}
        - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
        - {name: Since, type: date, jsonPath: .status.since}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
        "#,
    ));
    let object = yaml(
        r#"
        metadata: {name: a, creationTimestamp: "2024-05-01T11:54:30Z"}
        spec: {size: 3, ratio: 0.5, on: true, list: [a, b]}
        status: {phase: Bound, conditions: [{type: Ready, status: "True"}], since: never}
        "#,
    );
    let found: Vec<Value> = cells(&columns, &object)
        .into_iter()
        .map(|(_, c)| c)
        .collect();
    assert_eq!(
        json!(found),
        json!([
            "a",
            "Bound",
            3,
            0.5,
            true,
            null,
            "[\"a\",\"b\"]",
            "a",
            "3",
            null,
            "True",
            "<invalid>",
            "5m30s"
        ])
    );
    assert_eq!(columns[1].description, "The phase.");
    assert_eq!(
        columns[2].description,
        "Custom resource definition column (in JSONPath format): .spec.size"
    );
    let names: Vec<String> = custom_columns(&Value::Null)
        .into_iter()
        .map(|c| c.name)
        .collect();
    assert_eq!(names, ["Name", "Age"]);
}

#[test]
fn a_table_has_definitions_and_rows() {
    let object = yaml(
        "{kind: X, metadata: {name: a, creationTimestamp: '2024-05-01T11:59:00Z'}, spec: {a: 1}}",
    );
    let table = |include| {
        render(
            &custom_columns(&Value::Null),
            std::slice::from_ref(&object),
            include,
            "meta.k8s.io/v1beta1",
            now(),
            json!({"resourceVersion": "7"}),
        )
    };
    let plain = table(IncludeObject::None);
    assert_eq!(plain["kind"], "Table");
    assert_eq!(plain["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(plain["metadata"]["resourceVersion"], "7");
    assert_eq!(plain["columnDefinitions"][0]["format"], "name");
    assert_eq!(plain["columnDefinitions"][1]["priority"], 0);
    assert_eq!(
        plain["rows"],
        json!([{"cells": ["a", "60s"], "object": null}])
    );
    let metadata = table(IncludeObject::Metadata);
    assert_eq!(
        metadata["rows"][0]["object"]["kind"],
        "PartialObjectMetadata"
    );
    assert_eq!(
        metadata["rows"][0]["object"]["metadata"],
        object["metadata"]
    );
    assert_eq!(metadata["rows"][0]["object"].get("spec"), None);
    assert_eq!(table(IncludeObject::Object)["rows"][0]["object"], object);
    assert_eq!(IncludeObject::parse(None), Some(IncludeObject::Metadata));
    assert_eq!(
        IncludeObject::parse(Some("Object")),
        Some(IncludeObject::Object)
    );
    assert_eq!(IncludeObject::parse(Some("all")), None);
}

#[test]
fn pods_are_summed_up() {
    let cases = [
        (
            "{spec: {containers: [{name: a}]}, status: {phase: Pending}}",
            ("0/1", "Pending", "0"),
        ),
        (
            "{spec: {containers: [{name: a}]}, status: {phase: Running, containerStatuses: [{name: a, ready: true, restartCount: 0, state: {running: {}}}]}}",
            ("1/1", "Running", "0"),
        ),
        (
            "{spec: {containers: [{name: a}]}, status: {phase: Running, containerStatuses: [{name: a, ready: false, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {finishedAt: '2024-05-01T11:57:00Z'}}}]}}",
            ("0/1", "CrashLoopBackOff", "4 (3m ago)"),
        ),
        (
            "{spec: {containers: [{name: a}]}, status: {phase: Failed, containerStatuses: [{name: a, restartCount: 0, state: {terminated: {exitCode: 3}}}]}}",
            ("0/1", "ExitCode:3", "0"),
        ),
        (
            "{spec: {containers: [{name: a}], initContainers: [{name: i}, {name: j}]}, status: {phase: Pending, initContainerStatuses: [{name: i, restartCount: 0, state: {terminated: {exitCode: 0}}}, {name: j, restartCount: 1, state: {running: {}}}]}}",
            ("0/1", "Init:1/2", "1"),
        ),
        (
            "{spec: {containers: [{name: a}], initContainers: [{name: s, restartPolicy: Always}]}, status: {phase: Running, initContainerStatuses: [{name: s, started: true, ready: true, restartCount: 0, state: {running: {}}}], containerStatuses: [{name: a, ready: true, restartCount: 0, state: {running: {}}}]}}",
            ("2/2", "Running", "0"),
        ),
        (
            "{metadata: {deletionTimestamp: '2024-05-01T11:57:00Z'}, spec: {containers: [{name: a}]}, status: {phase: Running}}",
            ("0/1", "Terminating", "0"),
        ),
    ];
    let columns = builtin_columns("", "Pod").unwrap();
    for (pod, (ready, status, restarts)) in cases {
        let cells = cells(&columns, &yaml(pod));
        assert_eq!(
            (&cells[1].1, &cells[2].1, &cells[3].1),
            (&json!(ready), &json!(status), &json!(restarts)),
            "{pod}"
        );
    }
}

#[test]
fn built_in_kinds_show_their_columns() {
    let meta = "metadata: {name: a, creationTimestamp: '2024-05-01T11:00:00Z'}";
    let cases = [
        (
            ("", "Node"),
            "metadata: {name: node1, creationTimestamp: '2024-05-01T11:00:00Z', labels: {node-role.kubernetes.io/control-plane: '', node-role.kubernetes.io/worker: ''}}\nspec: {unschedulable: true}\nstatus: {conditions: [{type: Ready, status: 'True'}], nodeInfo: {kubeletVersion: v1.34.0}, addresses: [{type: InternalIP, address: 10.0.0.1}]}".to_string(),
            "Name=node1; Status=Ready,SchedulingDisabled; Roles=control-plane,worker; Age=60m; Version=v1.34.0; Internal-IP=10.0.0.1; External-IP=<none>; OS-Image=<unknown>; Kernel-Version=<unknown>; Container-Runtime=<unknown>",
        ),
        (("", "Namespace"), format!("{meta}\nstatus: {{phase: Active}}"), "Name=a; Status=Active; Age=60m"),
        (
            ("", "Service"),
            format!("{meta}\nspec: {{type: NodePort, clusterIP: 10.0.0.5, selector: {{app: x}}, ports: [{{port: 80, nodePort: 30080, protocol: TCP}}, {{port: 53, protocol: UDP}}]}}"),
            "Name=a; Type=NodePort; Cluster-IP=10.0.0.5; External-IP=<none>; Port(s)=80:30080/TCP,53/UDP; Age=60m; Selector=app=x",
        ),
        (("", "ConfigMap"), format!("{meta}\ndata: {{a: b}}\nbinaryData: {{c: ZA==}}"), "Name=a; Data=2; Age=60m"),
        (("", "Secret"), format!("{meta}\ntype: Opaque\ndata: {{a: Yg==}}"), "Name=a; Type=Opaque; Data=1; Age=60m"),
        (
            ("", "PersistentVolume"),
            format!("{meta}\nspec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, storageClassName: fast, claimRef: {{namespace: ns, name: c}}, volumeMode: Filesystem}}\nstatus: {{phase: Bound}}"),
            "Name=a; Capacity=1Gi; Access Modes=RWO; Reclaim Policy=Retain; Status=Bound; Claim=ns/c; StorageClass=fast; VolumeAttributesClass=<unset>; Reason=; Age=60m; VolumeMode=Filesystem",
        ),
        (
            ("", "PersistentVolumeClaim"),
            format!("{meta}\nspec: {{volumeName: v, storageClassName: fast}}\nstatus: {{phase: Bound, capacity: {{storage: 1Gi}}, accessModes: [ReadWriteMany, ReadWriteOnce]}}"),
            "Name=a; Status=Bound; Volume=v; Capacity=1Gi; Access Modes=RWO,RWX; StorageClass=fast; VolumeAttributesClass=<unset>; Age=60m; VolumeMode=<unset>",
        ),
        (
            ("", "Event"),
            "metadata: {name: e}\nlastTimestamp: '2024-05-01T11:59:30Z'\ntype: Warning\nreason: Bad\ninvolvedObject: {kind: Pod, name: p}\nmessage: 'no '\ncount: 3\nsource: {component: kubelet}".to_string(),
            "Last Seen=30s; Type=Warning; Reason=Bad; Object=pod/p; Subobject=; Source=kubelet; Message=no; First Seen=<unknown>; Count=3; Name=e",
        ),
        (
            ("events.k8s.io", "Event"),
            "metadata: {name: e}\neventTime: '2024-05-01T11:59:00.123456Z'\ntype: Normal\nreason: Done\nregarding: {kind: Plan, name: p}\nnote: ok\nreportingController: c".to_string(),
            "Last Seen=60s; Type=Normal; Reason=Done; Object=plan/p; Subobject=; Source=c; Message=ok; First Seen=60s; Count=1; Name=e",
        ),
        (
            ("apps", "Deployment"),
            format!("{meta}\nspec: {{replicas: 3, selector: {{matchLabels: {{app: x}}}}, template: {{spec: {{containers: [{{name: c, image: i}}, {{name: d, image: j}}]}}}}}}\nstatus: {{readyReplicas: 2, updatedReplicas: 3, availableReplicas: 2}}"),
            "Name=a; Ready=2/3; Up-to-date=3; Available=2; Age=60m; Containers=c,d; Images=i,j; Selector=app=x",
        ),
        (
            ("apps", "StatefulSet"),
            format!("{meta}\nspec: {{template: {{spec: {{containers: []}}}}}}"),
            "Name=a; Ready=0/1; Age=60m; Containers=; Images=",
        ),
        (
            ("batch", "Job"),
            format!("{meta}\nspec: {{completions: 2}}\nstatus: {{succeeded: 1, startTime: '2024-05-01T11:58:00Z'}}"),
            "Name=a; Status=Running; Completions=1/2; Duration=2m; Age=60m; Containers=; Images=; Selector=<none>",
        ),
        (
            ("storage.k8s.io", "StorageClass"),
            "metadata: {name: s, creationTimestamp: '2024-05-01T11:00:00Z', annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}\nprovisioner: p".to_string(),
            "Name=s (default); Provisioner=p; ReclaimPolicy=Delete; VolumeBindingMode=Immediate; AllowVolumeExpansion=false; Age=60m",
        ),
        (
            ("coordination.k8s.io", "Lease"),
            format!("{meta}\nspec: {{holderIdentity: me}}"),
            "Name=a; Holder=me; Age=60m",
        ),
        (
            ("apiextensions.k8s.io", "CustomResourceDefinition"),
            meta.to_string(),
            "Name=a; Created At=2024-05-01T11:00:00Z",
        ),
        (
            ("rbac.authorization.k8s.io", "RoleBinding"),
            format!("{meta}\nroleRef: {{kind: Role, name: r}}\nsubjects: [{{kind: ServiceAccount, namespace: ns, name: s}}, {{kind: User, name: u}}]"),
            "Name=a; Role=Role/r; Age=60m; Users=u; Groups=; ServiceAccounts=ns/s",
        ),
    ];
    for ((group, kind), object, expected) in cases {
        assert_eq!(line(group, kind, &object), expected, "{kind}");
    }
    assert!(builtin_columns("", "Binding").is_none());
}
