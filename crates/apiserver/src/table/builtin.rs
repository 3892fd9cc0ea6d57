//! The columns of built-in kinds, as the API server's internal printers show them.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{human_duration, read, since};
use super::fields::{
    access_modes, count, either, endpoints, event_source, external_ip, field, job_status, join,
    labels, last_seen, list, load_balancer, node_address, node_roles, node_status, or_na, or_none,
    or_unknown, or_unset, phase, readiness_gates, ready_of, selector, service_ports, size, string,
};
use super::pod::summary;
use super::{AGE, Column, Source, name_column};

type Cell = fn(&Value, Timestamp) -> Value;

/// The columns of a built-in kind; `None` for kinds that show the default ones.
pub fn builtin_columns(group: &str, kind: &str) -> Option<Vec<Column>> {
    let columns = match (group, kind) {
        ("", "Pod") => pods(),
        ("", "Node") => nodes(),
        ("", "Namespace") => named([text("Status", "Phase of the namespace.", |o, _| {
            field(o, "/status/phase")
        })]),
        ("", "Service") => services(),
        ("", "ConfigMap") => named([text("Data", "Entries.", |o, _| {
            (size(o, "/data") + size(o, "/binaryData")).into()
        })]),
        ("", "Secret") => named([
            text("Type", "Type of the secret.", |o, _| field(o, "/type")),
            text("Data", "Entries.", |o, _| size(o, "/data").into()),
        ]),
        ("", "ServiceAccount") => named([text("Secrets", "Secrets of the account.", |o, _| {
            size(o, "/secrets").into()
        })]),
        ("", "PodTemplate") => vec![
            name_column(),
            text("Containers", "Names of the containers.", |o, _| {
                join(list(o, "/template/spec/containers"), "/name").into()
            }),
            text("Images", "Images of the containers.", |o, _| {
                join(list(o, "/template/spec/containers"), "/image").into()
            }),
            text("Pod Labels", "Labels of the pods.", |o, _| {
                labels(o, "/template/metadata/labels").into()
            }),
        ],
        ("", "LimitRange") => vec![name_column(), created_at("date")],
        ("apps", "ControllerRevision") => named([
            text("Controller", "What it is a revision of.", |o, _| {
                controller(o).into()
            }),
            text("Revision", "Its number.", |o, _| {
                count(o, "/revision").into()
            }),
        ]),
        ("storage.k8s.io", "CSIDriver") => named([
            flag("AttachRequired", "Whether volumes are attached.", |o, _| {
                (o["spec"]["attachRequired"] == true).into()
            }),
            flag("PodInfoOnMount", "Whether it is told the pod.", |o, _| {
                (o["spec"]["podInfoOnMount"] == true).into()
            }),
            flag("StorageCapacity", "Whether it tells its room.", |o, _| {
                (o["spec"]["storageCapacity"] == true).into()
            }),
            text("TokenRequests", "Audiences of its tokens.", |o, _| {
                or_unset(join(list(o, "/spec/tokenRequests"), "/audience")).into()
            }),
            flag(
                "RequiresRepublish",
                "Whether it is called again.",
                |o, _| (o["spec"]["requiresRepublish"] == true).into(),
            ),
            text("Modes", "Lives of its volumes.", |o, _| {
                join(list(o, "/spec/volumeLifecycleModes"), "").into()
            }),
        ]),
        ("storage.k8s.io", "CSINode") => {
            named([number("Drivers", "Number of its drivers.", |o, _| {
                size(o, "/spec/drivers").into()
            })])
        }
        ("networking.k8s.io", "IngressClass") => named([
            text("Controller", "What serves the class.", |o, _| {
                field(o, "/spec/controller")
            }),
            text("Parameters", "What configures it.", |o, _| {
                parameters(o).into()
            }),
        ]),
        ("", "ResourceQuota") => vec![
            name_column(),
            text("Request", "What may be used, without limits.", |o, _| {
                used_of_hard(o, false).into()
            }),
            text("Limit", "Limits that may be used.", |o, _| {
                used_of_hard(o, true).into()
            }),
            age_column(),
        ],
        ("", "PersistentVolume") => volumes(),
        ("", "PersistentVolumeClaim") => claims(),
        ("", "Endpoints") => named([text("Endpoints", "Addresses and ports.", |o, _| {
            endpoints(o).into()
        })]),
        ("" | "events.k8s.io", "Event") => events(),
        ("apps", "Deployment") => deployments(),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => replica_sets(),
        ("apps", "DaemonSet") => daemon_sets(),
        ("apps", "StatefulSet") => stateful_sets(),
        ("batch", "Job") => jobs(),
        ("batch", "CronJob") => cron_jobs(),
        ("autoscaling", "HorizontalPodAutoscaler") => named([
            text("Reference", "What it scales.", |o, _| {
                let of = |field: &str| string(o, &format!("/spec/scaleTargetRef/{field}"));
                format!("{}/{}", of("kind"), of("name")).into()
            }),
            text("Targets", "Measured and wanted values.", |o, _| {
                targets(o).into()
            }),
            text("MinPods", "Fewest pods.", |o, _| {
                match o.pointer("/spec/minReplicas").and_then(Value::as_i64) {
                    Some(least) => least.to_string().into(),
                    None => "<unset>".into(),
                }
            }),
            number("MaxPods", "Most pods.", |o, _| {
                count(o, "/spec/maxReplicas").into()
            }),
            number("Replicas", "Pods now.", |o, _| {
                count(o, "/status/currentReplicas").into()
            }),
        ]),
        ("storage.k8s.io", "StorageClass") => storage_classes(),
        ("storage.k8s.io", "VolumeAttachment") => named([
            text("Attacher", "Driver that attaches.", |o, _| {
                field(o, "/spec/attacher")
            }),
            text("PV", "Volume to attach.", |o, _| {
                field(o, "/spec/source/persistentVolumeName")
            }),
            text("Node", "Node to attach it to.", |o, _| {
                field(o, "/spec/nodeName")
            }),
            flag("Attached", "Whether it is attached.", |o, _| {
                (o["status"]["attached"] == true).into()
            }),
        ]),
        ("coordination.k8s.io", "Lease") => {
            named([text("Holder", "Identity of the holder.", |o, _| {
                field(o, "/spec/holderIdentity")
            })])
        }
        ("discovery.k8s.io", "EndpointSlice") => named([
            text("AddressType", "Kind of the addresses.", |o, _| {
                field(o, "/addressType")
            }),
            text("Ports", "Ports of the endpoints.", |o, _| {
                or_unset(join(list(o, "/ports"), "/port")).into()
            }),
            text("Endpoints", "Addresses.", |o, _| {
                or_unset(join(list(o, "/endpoints"), "/addresses/0")).into()
            }),
        ]),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            vec![name_column(), created_at("date")]
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            vec![name_column(), created_at("date")]
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => bindings(),
        ("networking.k8s.io", "Ingress") => ingresses(),
        ("networking.k8s.io", "NetworkPolicy") => {
            named([text("Pod-Selector", "Pods that it governs.", |o, _| {
                selector(o, "/spec/podSelector").into()
            })])
        }
        ("policy", "PodDisruptionBudget") => named([
            text("Min Available", "Pods that must stay.", |o, _| {
                or_na(o, "/spec/minAvailable")
            }),
            text("Max Unavailable", "Pods that may be missing.", |o, _| {
                or_na(o, "/spec/maxUnavailable")
            }),
            number("Allowed Disruptions", "Pods that may go now.", |o, _| {
                count(o, "/status/disruptionsAllowed").into()
            }),
        ]),
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => named([number("Webhooks", "Number of webhooks.", |o, _| {
            size(o, "/webhooks").into()
        })]),
        ("scheduling.k8s.io", "PriorityClass") => named([
            number("Value", "Priority of its pods.", |o, _| {
                count(o, "/value").into()
            }),
            flag("Global-Default", "Whether it is the default.", |o, _| {
                (o["globalDefault"] == true).into()
            }),
        ]),
        _ => return None,
    };
    Some(columns)
}

/// The owner that controls an object: `daemonset.apps/name`.
fn controller(o: &Value) -> String {
    let owners = list(o, "/metadata/ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) else {
        return "<none>".into();
    };
    let kind = string(owner, "/kind").to_lowercase();
    let name = string(owner, "/name");
    match string(owner, "/apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// The metrics of an autoscaler: `cpu: 30%/50%`; two of them, and how many more there are.
fn targets(o: &Value) -> String {
    let specs = list(o, "/spec/metrics");
    if specs.is_empty() {
        return "<none>".into();
    }
    let value = |of: Option<&Value>, or: &str| -> String {
        let of = |field: &str| of?.get(field).filter(|v| !v.is_null());
        match (of("averageUtilization"), of("averageValue").or(of("value"))) {
            (Some(percent), _) => format!("{percent}%"),
            (None, Some(Value::String(quantity))) => quantity.clone(),
            _ => or.into(),
        }
    };
    let shown = specs.iter().take(2).enumerate().map(|(n, spec)| {
        let kind = spec["type"].as_str().unwrap_or_default();
        let mut source = kind.to_owned();
        source[..1.min(kind.len())].make_ascii_lowercase();
        let current = o.pointer(&format!("/status/currentMetrics/{n}/{source}/current"));
        let target = spec.get(&source).and_then(|s| s.get("target"));
        let pair = format!(
            "{}/{}",
            value(current, "<unknown>"),
            value(target, "<auto>")
        );
        match kind {
            "Resource" | "ContainerResource" => {
                format!("{}: {pair}", string(spec, &format!("/{source}/name")))
            }
            _ => pair,
        }
    });
    let text = shown.collect::<Vec<_>>().join(", ");
    match specs.len() {
        0..=2 => text,
        all => format!("{text} + {} more...", all - 2),
    }
}

/// What configures an ingress class: `Kind.group/name`.
fn parameters(o: &Value) -> String {
    let Some(of) = o.pointer("/spec/parameters").filter(|p| p.is_object()) else {
        return "<none>".into();
    };
    let (kind, name) = (string(of, "/kind"), string(of, "/name"));
    match of["apiGroup"].as_str() {
        Some(group) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// The resources of a quota: `cpu: 1/2, pods: 3/4`.
fn used_of_hard(quota: &Value, limits: bool) -> String {
    let hard = quota.pointer("/status/hard").and_then(Value::as_object);
    let mut names: Vec<&String> = hard.into_iter().flat_map(|h| h.keys()).collect();
    names.retain(|name| name.starts_with("limits.") == limits);
    names.sort();
    let shown = names.into_iter().map(|name| {
        let of = |field: &str| {
            quota["status"][field][name]
                .as_str()
                .unwrap_or("0")
                .to_owned()
        };
        format!("{name}: {}/{}", of("used"), of("hard"))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// The age of an object.
pub(super) fn age_column() -> Column {
    text("Age", AGE, |o, now| {
        since(&o["metadata"]["creationTimestamp"], now).into()
    })
}

fn pods() -> Vec<Column> {
    let mut columns = named([
        text("Ready", "Containers that are ready.", |o, now| {
            summary(o, now).ready.into()
        }),
        text("Status", "State of the pod in a word.", |o, now| {
            summary(o, now).status.into()
        }),
        text("Restarts", "Restarts of its containers.", |o, now| {
            summary(o, now).restarts.into()
        }),
    ]);
    columns.extend(wide([
        text("IP", "Address of the pod.", |o, _| {
            or_none(o, "/status/podIP")
        }),
        text("Node", "Node that it runs on.", |o, _| {
            or_none(o, "/spec/nodeName")
        }),
        text("Nominated Node", "Node that it preempts on.", |o, _| {
            or_none(o, "/status/nominatedNodeName")
        }),
        text("Readiness Gates", "Gates that are passed.", |o, _| {
            readiness_gates(o).into()
        }),
    ]));
    columns
}

fn nodes() -> Vec<Column> {
    let mut columns = named([
        text("Status", "State of the node.", |o, _| node_status(o).into()),
        text("Roles", "Roles of the node.", |o, _| node_roles(o).into()),
    ]);
    columns.push(text("Version", "Version of its kubelet.", |o, _| {
        field(o, "/status/nodeInfo/kubeletVersion")
    }));
    columns.extend(wide([
        text("Internal-IP", "Address inside.", |o, _| {
            node_address(o, "InternalIP").into()
        }),
        text("External-IP", "Address outside.", |o, _| {
            node_address(o, "ExternalIP").into()
        }),
        text("OS-Image", "Operating system.", |o, _| {
            or_unknown(o, "/status/nodeInfo/osImage")
        }),
        text("Kernel-Version", "Kernel.", |o, _| {
            or_unknown(o, "/status/nodeInfo/kernelVersion")
        }),
        text("Container-Runtime", "Container runtime.", |o, _| {
            or_unknown(o, "/status/nodeInfo/containerRuntimeVersion")
        }),
    ]));
    columns
}

fn services() -> Vec<Column> {
    let mut columns = named([
        text("Type", "How it is exposed.", |o, _| field(o, "/spec/type")),
        text("Cluster-IP", "Address inside the cluster.", |o, _| {
            or_none(o, "/spec/clusterIP")
        }),
        text("External-IP", "Addresses outside.", |o, _| {
            external_ip(o).into()
        }),
        text("Port(s)", "Ports and protocols.", |o, _| {
            service_ports(o).into()
        }),
    ]);
    columns.extend(wide([text("Selector", "Pods behind it.", |o, _| {
        labels(o, "/spec/selector").into()
    })]));
    columns
}

fn volumes() -> Vec<Column> {
    let mut columns = named([
        text("Capacity", "Size.", |o, _| {
            field(o, "/spec/capacity/storage")
        }),
        text("Access Modes", "How it may be mounted.", |o, _| {
            access_modes(o, "/spec/accessModes").into()
        }),
        text("Reclaim Policy", "What happens when released.", |o, _| {
            field(o, "/spec/persistentVolumeReclaimPolicy")
        }),
        text("Status", "Phase of the volume.", |o, _| phase(o).into()),
        text("Claim", "Claim that it is bound to.", |o, _| {
            match o.pointer("/spec/claimRef") {
                Some(claim) => {
                    format!("{}/{}", string(claim, "/namespace"), string(claim, "/name")).into()
                }
                None => "".into(),
            }
        }),
        text("StorageClass", "Class of the volume.", |o, _| {
            field(o, "/spec/storageClassName")
        }),
        text("VolumeAttributesClass", "Class of attributes.", |o, _| {
            or_unset(string(o, "/spec/volumeAttributesClassName").to_string()).into()
        }),
        text("Reason", "Why it is in its phase.", |o, _| {
            field(o, "/status/reason")
        }),
    ]);
    columns.extend(wide([volume_mode()]));
    columns
}

fn claims() -> Vec<Column> {
    let mut columns = named([
        text("Status", "Phase of the claim.", |o, _| phase(o).into()),
        text("Volume", "Volume that it is bound to.", |o, _| {
            field(o, "/spec/volumeName")
        }),
        text(
            "Capacity",
            "Size of the bound volume.",
            |o, _| match string(o, "/spec/volumeName") {
                "" => "".into(),
                _ => field(o, "/status/capacity/storage"),
            },
        ),
        text("Access Modes", "How it is mounted.", |o, _| {
            match string(o, "/spec/volumeName") {
                "" => "".into(),
                _ => access_modes(o, "/status/accessModes").into(),
            }
        }),
        text("StorageClass", "Class of the claim.", |o, _| {
            field(o, "/spec/storageClassName")
        }),
        text("VolumeAttributesClass", "Class of attributes.", |o, _| {
            or_unset(string(o, "/spec/volumeAttributesClassName").to_string()).into()
        }),
    ]);
    columns.extend(wide([volume_mode()]));
    columns
}

fn volume_mode() -> Column {
    text("VolumeMode", "File system or block.", |o, _| {
        or_unset(string(o, "/spec/volumeMode").to_string()).into()
    })
}

fn events() -> Vec<Column> {
    let mut columns = vec![
        text("Last Seen", "Age of the last occurrence.", |o, now| {
            last_seen(o, now).into()
        }),
        text("Type", "Normal or Warning.", |o, _| field(o, "/type")),
        text("Reason", "Reason in a word.", |o, _| field(o, "/reason")),
        text("Object", "Object that it is about.", |o, _| {
            let about = either(o, "/involvedObject", "/regarding");
            let (kind, name) = (string(about, "/kind"), string(about, "/name"));
            match name {
                "" => kind.to_lowercase().into(),
                _ => format!("{}/{name}", kind.to_lowercase()).into(),
            }
        }),
    ];
    columns.extend(wide([
        text("Subobject", "Part of the object.", |o, _| {
            field(either(o, "/involvedObject", "/regarding"), "/fieldPath")
        }),
        text("Source", "Who reported it.", |o, _| event_source(o).into()),
    ]));
    columns.push(text("Message", "What happened.", |o, _| {
        let message = either(o, "/message", "/note").as_str().unwrap_or_default();
        message.trim().into()
    }));
    columns.extend(wide([
        text("First Seen", "Age of the first occurrence.", |o, now| {
            let first = either(o, "/firstTimestamp", "/deprecatedFirstTimestamp");
            match read(first) {
                Some(_) => since(first, now).into(),
                None => since(&o["eventTime"], now).into(),
            }
        }),
        text("Count", "Number of occurrences.", |o, _| {
            let times = [
                count(o, "/series/count"),
                count(o, "/count"),
                count(o, "/deprecatedCount"),
            ];
            times.into_iter().find(|n| *n > 0).unwrap_or(1).into()
        }),
        name_column(),
    ]));
    columns
}

fn deployments() -> Vec<Column> {
    let mut columns = named([
        text("Ready", "Ready of wanted pods.", |o, _| {
            ready_of(o, "/status/readyReplicas").into()
        }),
        text("Up-to-date", "Pods of the newest template.", |o, _| {
            count(o, "/status/updatedReplicas").into()
        }),
        text("Available", "Pods that serve.", |o, _| {
            count(o, "/status/availableReplicas").into()
        }),
    ]);
    columns.extend(template());
    columns
}

fn replica_sets() -> Vec<Column> {
    let mut columns = named([
        number("Desired", "Wanted pods.", |o, _| {
            count(o, "/spec/replicas").into()
        }),
        number("Current", "Existing pods.", |o, _| {
            count(o, "/status/replicas").into()
        }),
        number("Ready", "Ready pods.", |o, _| {
            count(o, "/status/readyReplicas").into()
        }),
    ]);
    columns.extend(template());
    columns
}

fn daemon_sets() -> Vec<Column> {
    let mut columns = named([
        number("Desired", "Nodes that should run it.", |o, _| {
            count(o, "/status/desiredNumberScheduled").into()
        }),
        number("Current", "Nodes that run it.", |o, _| {
            count(o, "/status/currentNumberScheduled").into()
        }),
        number("Ready", "Nodes where it is ready.", |o, _| {
            count(o, "/status/numberReady").into()
        }),
        number("Up-to-date", "Nodes with the newest template.", |o, _| {
            count(o, "/status/updatedNumberScheduled").into()
        }),
        number("Available", "Nodes where it serves.", |o, _| {
            count(o, "/status/numberAvailable").into()
        }),
        text("Node Selector", "Nodes that it is meant for.", |o, _| {
            labels(o, "/spec/template/spec/nodeSelector").into()
        }),
    ]);
    columns.extend(template());
    columns
}

fn stateful_sets() -> Vec<Column> {
    let mut columns = named([text("Ready", "Ready of wanted pods.", |o, _| {
        ready_of(o, "/status/readyReplicas").into()
    })]);
    columns.extend(template().into_iter().take(2));
    columns
}

fn jobs() -> Vec<Column> {
    let mut columns = named([
        text("Status", "State of the job.", |o, _| job_status(o).into()),
        text("Completions", "Finished of wanted pods.", |o, _| {
            let done = count(o, "/status/succeeded");
            match o.pointer("/spec/completions").and_then(Value::as_i64) {
                Some(wanted) => format!("{done}/{wanted}").into(),
                None => match count(o, "/spec/parallelism") {
                    0 | 1 => format!("{done}/1").into(),
                    many => format!("{done}/1 of {many}").into(),
                },
            }
        }),
        text("Duration", "Time that it took so far.", |o, now| {
            let Some(start) = read(&o["status"]["startTime"]) else {
                return "".into();
            };
            let end = read(&o["status"]["completionTime"]).unwrap_or(now);
            human_duration(end.as_second() - start.as_second()).into()
        }),
    ]);
    columns.extend(template());
    columns
}

fn cron_jobs() -> Vec<Column> {
    named([
        text("Schedule", "When it runs.", |o, _| {
            field(o, "/spec/schedule")
        }),
        text("Timezone", "Time zone of the schedule.", |o, _| {
            or_none(o, "/spec/timeZone")
        }),
        flag("Suspend", "Whether it is suspended.", |o, _| {
            (o["spec"]["suspend"] == true).into()
        }),
        number("Active", "Running jobs.", |o, _| {
            size(o, "/status/active").into()
        }),
        text("Last Schedule", "Age of the last run.", |o, now| {
            match &o["status"]["lastScheduleTime"] {
                Value::Null => "<none>".into(),
                last => since(last, now).into(),
            }
        }),
    ])
}

fn storage_classes() -> Vec<Column> {
    let mut columns = named([
        text("Provisioner", "Driver that makes volumes.", |o, _| {
            field(o, "/provisioner")
        }),
        text(
            "ReclaimPolicy",
            "Policy of its volumes.",
            |o, _| match string(o, "/reclaimPolicy") {
                "" => "Delete".into(),
                policy => policy.into(),
            },
        ),
        text(
            "VolumeBindingMode",
            "When volumes are bound.",
            |o, _| match string(o, "/volumeBindingMode") {
                "" => "Immediate".into(),
                mode => mode.into(),
            },
        ),
        text("AllowVolumeExpansion", "Whether volumes grow.", |o, _| {
            (o["allowVolumeExpansion"] == true).into()
        }),
    ]);
    columns[0].source = Source::Builtin(|o, _| {
        let annotations = &o["metadata"]["annotations"];
        let name = string(o, "/metadata/name");
        match annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
            true => format!("{name} (default)").into(),
            false => name.into(),
        }
    });
    columns
}

fn bindings() -> Vec<Column> {
    fn subjects(o: &Value, kind: &str) -> Value {
        let names: Vec<String> = list(o, "/subjects")
            .iter()
            .filter(|s| s["kind"] == kind)
            .map(|s| match string(s, "/namespace") {
                "" => string(s, "/name").to_string(),
                namespace => format!("{namespace}/{}", string(s, "/name")),
            })
            .collect();
        names.join(", ").into()
    }
    let mut columns = named([text("Role", "Role that is granted.", |o, _| {
        let role = &o["roleRef"];
        format!("{}/{}", string(role, "/kind"), string(role, "/name")).into()
    })]);
    columns.extend(wide([
        text("Users", "Users that have it.", |o, _| subjects(o, "User")),
        text("Groups", "Groups that have it.", |o, _| {
            subjects(o, "Group")
        }),
        text("ServiceAccounts", "Accounts that have it.", |o, _| {
            subjects(o, "ServiceAccount")
        }),
    ]));
    columns
}

fn ingresses() -> Vec<Column> {
    named([
        text("Class", "Class of the ingress.", |o, _| {
            or_none(o, "/spec/ingressClassName")
        }),
        text("Hosts", "Hosts that it serves.", |o, _| {
            match join(list(o, "/spec/rules"), "/host") {
                none if none.is_empty() => "*".into(),
                hosts => hosts.into(),
            }
        }),
        text("Address", "Addresses that reach it.", |o, _| {
            load_balancer(o).join(",").into()
        }),
        text("Ports", "Ports that it opens.", |o, _| {
            match size(o, "/spec/tls") {
                0 => "80".into(),
                _ => "80, 443".into(),
            }
        }),
    ])
}

// The pieces that columns are made of.

fn column(name: &str, kind: &str, description: &str, cell: Cell) -> Column {
    Column {
        name: name.to_string(),
        kind: kind.to_string(),
        format: String::new(),
        description: description.to_string(),
        priority: 0,
        source: Source::Builtin(cell),
    }
}

fn text(name: &str, description: &str, cell: Cell) -> Column {
    column(name, "string", description, cell)
}

fn number(name: &str, description: &str, cell: Cell) -> Column {
    column(name, "integer", description, cell)
}

fn flag(name: &str, description: &str, cell: Cell) -> Column {
    column(name, "boolean", description, cell)
}

/// The name first, the age last.
fn named<const N: usize>(between: [Column; N]) -> Vec<Column> {
    let mut columns = vec![name_column()];
    columns.extend(between);
    columns.push(age_column());
    columns
}

fn wide<const N: usize>(columns: [Column; N]) -> [Column; N] {
    columns.map(|column| Column {
        priority: 1,
        ..column
    })
}

fn created_at(kind: &str) -> Column {
    column("Created At", kind, AGE, |o, _| {
        field(o, "/metadata/creationTimestamp")
    })
}

/// Containers, images and selector of a kind with a pod template.
fn template() -> [Column; 3] {
    wide([
        text("Containers", "Containers of the template.", |o, _| {
            join(list(o, "/spec/template/spec/containers"), "/name").into()
        }),
        text("Images", "Images of the template.", |o, _| {
            join(list(o, "/spec/template/spec/containers"), "/image").into()
        }),
        text("Selector", "Pods that it governs.", |o, _| {
            match o.pointer("/spec/selector/matchLabels") {
                None if o.pointer("/spec/selector/matchExpressions").is_none() => {
                    labels(o, "/spec/selector").into()
                }
                _ => selector(o, "/spec/selector").into(),
            }
        }),
    ])
}
