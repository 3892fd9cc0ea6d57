//! The probes of a workload cluster: each asked only when the one before passed.

use std::collections::BTreeSet;
use std::time::Duration;

use farshore_api::meta::WORKLOAD_NAMESPACE;
use farshore_api::zone::ZoneCluster;
use farshore_core::zone::permissions::Permission;
use farshore_core::zone::probe::{Answer, Apis, Credential, Looked, Scc, judge};
use farshore_core::zone::{self, Claim, Cluster, Fault};
use farshore_runtime::remote::{Clusters, LOOK_LIMIT, RemoteError};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};

use crate::credential;

/// Questions to one API server at the same time.
const AT_ONCE: usize = 16;
/// Time for all questions about permissions.
const PERMISSIONS_LIMIT: Duration = Duration::from_secs(10);

/// Looks at a cluster. Returns what was found, and the client if there is one.
pub async fn look(
    secrets: &Api<Secret>,
    clusters: &Clusters,
    spec: &ZoneCluster,
    namespace: &str,
    namespace_uid: &str,
    needed: &BTreeSet<Permission>,
) -> Result<(Cluster, Option<Client>), kube::Error> {
    let name = &spec.kubeconfig_secret_ref.name;
    let secret = secrets.get_opt(name).await?;
    let (credential, client) = connect(clusters, spec).await?;
    let mut looked = Looked::new(credential);
    if let Some(client) = &client {
        ask(client, namespace_uid, needed, &mut looked).await;
    }
    let kubeconfig = secret
        .as_ref()
        .and_then(|s| s.data.as_ref())
        .and_then(|data| data.get(&spec.kubeconfig_secret_ref.key));
    let cluster = Cluster {
        name: spec.name.clone(),
        secret_resource_version: secret
            .as_ref()
            .and_then(|s| s.metadata.resource_version.clone()),
        not_after: kubeconfig.and_then(|k| credential::not_after(&k.0)),
        probe: judge(&spec.name, namespace, name, &looked),
    };
    Ok((cluster, client))
}

/// Looks only at the claim on a cluster.
pub async fn look_at_claim(
    clusters: &Clusters,
    spec: &ZoneCluster,
    namespace: &str,
    namespace_uid: &str,
) -> Result<(Result<Claim, Fault>, Option<Client>), kube::Error> {
    let (credential, client) = connect(clusters, spec).await?;
    let mut looked = Looked::new(credential);
    // What a removal does not depend on counts as passed.
    looked.version = Some(Answer::Given(String::new()));
    looked.denied = Some(Answer::Given(Vec::new()));
    looked.apis = Some(Answer::Given(Apis {
        kubevirt: Some(String::new()),
        openshift: false,
    }));
    looked.uid = Some(Answer::Given(String::new()));
    looked.nodes = Some(Answer::Given((0, 0)));
    if let Some(client) = &client {
        looked.claim = Some(claim(client, namespace_uid).await);
    }
    let judged = judge(
        &spec.name,
        namespace,
        &spec.kubeconfig_secret_ref.name,
        &looked,
    );
    Ok((judged.map(|facts| facts.claim), client))
}

async fn connect(
    clusters: &Clusters,
    spec: &ZoneCluster,
) -> Result<(Credential, Option<Client>), kube::Error> {
    match clusters.client_to_ask(spec).await {
        Ok(client) => Ok((Credential::Usable, Some(client))),
        Err(error @ (RemoteError::SecretNotFound { .. } | RemoteError::KeyMissing { .. })) => {
            Ok((Credential::Missing(error.to_string()), None))
        }
        Err(error @ (RemoteError::Invalid { .. } | RemoteError::Unconfirmed { .. })) => {
            Ok((Credential::Invalid(error.to_string()), None))
        }
        Err(RemoteError::Hub { source, .. }) => Err(*source),
    }
}

fn passed<T>(answer: &Option<Answer<T>>) -> bool {
    matches!(answer, Some(Answer::Given(_)))
}

async fn ask(
    client: &Client,
    namespace_uid: &str,
    needed: &BTreeSet<Permission>,
    looked: &mut Looked,
) {
    looked.version = Some(
        answer(client.apiserver_version())
            .await
            .map(|info| info.git_version),
    );
    if !passed(&looked.version) {
        return;
    }
    looked.denied = Some(denied(client, needed).await);
    if !matches!(&looked.denied, Some(Answer::Given(denied)) if denied.is_empty()) {
        return;
    }
    let apis = answer(apis(client)).await;
    let openshift = matches!(&apis, Answer::Given(apis) if apis.openshift);
    looked.apis = Some(apis);
    if openshift {
        looked.scc = Some(answer(scc(client)).await);
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = async { namespaces.get("kube-system").await };
    looked.uid = Some(answer(system).await.map(|ns| ns.uid().unwrap_or_default()));
    let nodes: Api<Node> = Api::all(client.clone());
    looked.nodes = Some(
        answer(async { nodes.list(&ListParams::default()).await })
            .await
            .map(|list| count(&list.items)),
    );
    looked.claim = Some(claim(client, namespace_uid).await);
}

async fn claim(client: &Client, namespace_uid: &str) -> Answer<Claim> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    answer(async { namespaces.get_opt(WORKLOAD_NAMESPACE).await })
        .await
        .map(|found| {
            found.map_or(Claim::Free, |ns| {
                zone::claim(
                    ns.annotations(),
                    ns.metadata.deletion_timestamp.is_some(),
                    namespace_uid,
                )
            })
        })
}

fn count(nodes: &[Node]) -> (i32, i32) {
    let ready = |node: &&Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    (
        number(nodes.iter().filter(ready).count()),
        number(nodes.len()),
    )
}

/// What of `needed` is not allowed. Who may do everything is asked only that.
async fn denied(client: &Client, needed: &BTreeSet<Permission>) -> Answer<Vec<Permission>> {
    let everything = Permission::new("*", "*", "*");
    let ask = async {
        if allowed(client, &everything, None).await? {
            return Ok(Vec::new());
        }
        stream::iter(needed.clone())
            .map(|permission| async move {
                let allowed = allowed(client, &permission, None).await?;
                Ok::<_, kube::Error>((!allowed).then_some(permission))
            })
            .buffered(AT_ONCE)
            .try_filter_map(|denied| std::future::ready(Ok(denied)))
            .try_collect()
            .await
    };
    answer_within(ask, PERMISSIONS_LIMIT).await
}

async fn allowed(
    client: &Client,
    permission: &Permission,
    name: Option<&str>,
) -> kube::Result<bool> {
    let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(permission.group.clone()),
                resource: Some(permission.resource.clone()),
                subresource: some(&permission.subresource),
                verb: Some(permission.verb.clone()),
                name: name.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn apis(client: &Client) -> kube::Result<Apis> {
    let groups = client.list_api_groups().await?.groups;
    let find = |name: &str| groups.iter().find(|group| group.name == name);
    let openshift = find("security.openshift.io").is_some();
    let Some(version) = find("kubevirt.io")
        .and_then(|group| group.preferred_version.as_ref().or(group.versions.first()))
    else {
        return Ok(Apis {
            kubevirt: None,
            openshift,
        });
    };
    let resources = client
        .list_api_group_resources(&version.group_version)
        .await?
        .resources;
    let served = ["virtualmachines", "virtualmachineinstances"]
        .iter()
        .all(|plural| resources.iter().any(|r| r.name == *plural));
    Ok(Apis {
        kubevirt: served.then(|| version.group_version.clone()),
        openshift,
    })
}

async fn scc(client: &Client) -> kube::Result<Scc> {
    let gvk = GroupVersionKind::gvk("security.openshift.io", "v1", "SecurityContextConstraints");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "securitycontextconstraints");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let exists = api.get_opt("privileged").await?.is_some();
    let usable = allowed(
        client,
        &Permission::new("security.openshift.io", "securitycontextconstraints", "use"),
        Some("privileged"),
    )
    .await?;
    Ok(Scc { exists, usable })
}

async fn answer<T>(question: impl Future<Output = kube::Result<T>>) -> Answer<T> {
    answer_within(question, LOOK_LIMIT).await
}

async fn answer_within<T>(
    question: impl Future<Output = kube::Result<T>>,
    limit: Duration,
) -> Answer<T> {
    match tokio::time::timeout(limit, question).await {
        Err(_) => Answer::Silent(format!("no answer within {} s", limit.as_secs())),
        Ok(Ok(value)) => Answer::Given(value),
        Ok(Err(kube::Error::Api(status))) => match status.code {
            401 => Answer::Unauthorized,
            429 | 500.. => Answer::Silent(status.message.clone()),
            _ => Answer::Refused(status.message.clone()),
        },
        Ok(Err(error)) => Answer::Silent(error.to_string()),
    }
}
