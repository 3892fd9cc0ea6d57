//! The probes of a workload cluster, in order; each is only made when the one before passed [S1].

use farshore_api::conditions::zone as reasons;
use serde::{Deserialize, Serialize};

use super::permissions::Permission;
use super::{Claim, Fault};
use crate::words;

/// What the API server of a cluster answered to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer<T> {
    /// An answer.
    Given(T),
    /// 401: it does not know who asks.
    Unauthorized,
    /// Another refusal; the string says which.
    Refused(String),
    /// None; the string says why.
    Silent(String),
}

impl<T> Answer<T> {
    /// A part of what was answered.
    pub fn map<U>(self, part: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Given(value) => Answer::Given(part(value)),
            Self::Unauthorized => Answer::Unauthorized,
            Self::Refused(why) => Answer::Refused(why),
            Self::Silent(why) => Answer::Silent(why),
        }
    }
}

/// Why there is no client for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Credential {
    /// There is one.
    Usable,
    /// No Secret, or not the key; the sentence says which and never holds any of its content.
    Missing(String),
    /// The kubeconfig cannot be used; the sentence says why and never holds any of its content.
    Invalid(String),
}

/// A part of the cluster that says what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Apis {
    /// Group and version under which `virtualmachines` and `virtualmachineinstances` are served.
    pub kubevirt: Option<String>,
    /// Whether `security.openshift.io` is served.
    pub openshift: bool,
}

/// What OpenShift needs before privileged pods may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scc {
    /// Whether the SecurityContextConstraints `privileged` exist.
    pub exists: bool,
    /// Whether the credential may use them, and so may grant their use.
    pub usable: bool,
}

/// What the probes showed. A later one is `None` when it was not made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Looked {
    /// The kubeconfig.
    pub credential: Credential,
    /// Version of the API server.
    #[serde(default)]
    pub version: Option<Answer<String>>,
    /// What the product needs and the credential may not do.
    #[serde(default)]
    pub denied: Option<Answer<Vec<Permission>>>,
    /// Served APIs.
    #[serde(default)]
    pub apis: Option<Answer<Apis>>,
    /// Prerequisites of OpenShift, where it is OpenShift.
    #[serde(default)]
    pub scc: Option<Answer<Scc>>,
    /// UID of the kube-system namespace.
    #[serde(default)]
    pub uid: Option<Answer<String>>,
    /// Ready nodes and all nodes.
    #[serde(default)]
    pub nodes: Option<Answer<(i32, i32)>>,
    /// The claim on the cluster.
    #[serde(default)]
    pub claim: Option<Answer<Claim>>,
}

impl Looked {
    /// Nothing looked at yet.
    pub fn new(credential: Credential) -> Self {
        Self {
            credential,
            version: None,
            denied: None,
            apis: None,
            scc: None,
            uid: None,
            nodes: None,
            claim: None,
        }
    }
}

/// What is known of a cluster that passed all probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// UID of the kube-system namespace: the cluster's identity.
    pub uid: String,
    /// Version of the API server.
    pub server_version: String,
    /// Group and version of KubeVirt's API.
    pub kubevirt: String,
    /// Whether it is OpenShift.
    pub openshift: bool,
    /// Ready nodes.
    pub nodes_ready: i32,
    /// All nodes.
    pub nodes_total: i32,
    /// The claim on the cluster.
    pub claim: Claim,
}

/// Judges the probes of a cluster: what it is, or the first that did not pass. `secret` is
/// `namespace/name` of its kubeconfig.
pub fn judge(
    cluster: &str,
    namespace: &str,
    secret: &str,
    looked: &Looked,
) -> Result<Facts, Fault> {
    let judge = Judge {
        cluster,
        namespace,
        secret,
    };
    match &looked.credential {
        Credential::Usable => {}
        Credential::Missing(why) => {
            return Err(judge.secret(reasons::KUBECONFIG_SECRET_NOT_FOUND, why));
        }
        Credential::Invalid(why) => return Err(judge.secret(reasons::KUBECONFIG_INVALID, why)),
    }
    let server_version = judge.answer("GET /version", &looked.version)?.clone();
    judge.permissions(judge.answer("SelfSubjectAccessReview", &looked.denied)?)?;
    let apis = judge.answer("discovery", &looked.apis)?;
    let Some(kubevirt) = apis.kubevirt.clone() else {
        return Err(Fault {
            reason: reasons::KUBEVIRT_NOT_INSTALLED.into(),
            by: format!(
                "cluster {cluster} does not serve VirtualMachines of kubevirt.io; only KubeVirt VMs can be protected"
            ),
            command: format!("kubectl --context {cluster} api-resources --api-group=kubevirt.io"),
        });
    };
    if apis.openshift {
        judge.scc(judge.answer("GET SecurityContextConstraints privileged", &looked.scc)?)?;
    }
    let uid = judge
        .answer("GET Namespace kube-system", &looked.uid)?
        .clone();
    let (nodes_ready, nodes_total) = *judge.answer("LIST Nodes", &looked.nodes)?;
    let claim = judge
        .answer("GET Namespace trilio-site-recovery-system", &looked.claim)?
        .clone();
    Ok(Facts {
        uid,
        server_version,
        kubevirt,
        openshift: apis.openshift,
        nodes_ready,
        nodes_total,
        claim,
    })
}

struct Judge<'a> {
    cluster: &'a str,
    namespace: &'a str,
    secret: &'a str,
}

impl Judge<'_> {
    fn secret(&self, reason: &str, why: &str) -> Fault {
        let Self {
            cluster,
            namespace,
            secret,
        } = self;
        Fault {
            reason: reason.into(),
            by: format!("cluster {cluster}: {why}"),
            command: format!("kubectl -n {namespace} get secret {secret}"),
        }
    }

    fn answer<'a, T>(&self, question: &str, answer: &'a Option<Answer<T>>) -> Result<&'a T, Fault> {
        let Self {
            cluster,
            namespace,
            secret,
        } = self;
        let fault = |reason: &str, by: String, command: String| {
            Err(Fault {
                reason: reason.into(),
                by,
                command,
            })
        };
        match answer {
            Some(Answer::Given(value)) => Ok(value),
            Some(Answer::Unauthorized) => fault(
                reasons::AUTHENTICATION_FAILED,
                format!(
                    "the API server of cluster {cluster} does not accept the credential in Secret {namespace}/{secret} (401); it may have expired"
                ),
                format!(
                    "Put a kubeconfig that is accepted into it with: kubectl -n {namespace} create secret generic {secret} --from-file=kubeconfig=<file> --dry-run=client -o yaml | kubectl apply -f -"
                ),
            ),
            Some(Answer::Refused(why)) => fault(
                reasons::INSUFFICIENT_PERMISSIONS,
                format!(
                    "cluster {cluster} refuses {question} to the credential in Secret {namespace}/{secret}: {why}"
                ),
                format!("kubectl --context {cluster} auth can-i --list"),
            ),
            Some(Answer::Silent(why)) => fault(
                reasons::CLUSTER_UNREACHABLE,
                format!("the API server of cluster {cluster} does not answer {question}: {why}"),
                format!("kubectl --context {cluster} get --raw /readyz"),
            ),
            None => fault(
                reasons::CLUSTER_UNREACHABLE,
                format!("cluster {cluster} was not asked: {question}"),
                format!("kubectl --context {cluster} get --raw /readyz"),
            ),
        }
    }

    fn permissions(&self, denied: &[Permission]) -> Result<(), Fault> {
        let Some(first) = denied.first() else {
            return Ok(());
        };
        let Self {
            cluster,
            namespace,
            secret,
        } = self;
        let names: Vec<String> = denied.iter().map(ToString::to_string).collect();
        Err(Fault {
            reason: reasons::INSUFFICIENT_PERMISSIONS.into(),
            by: format!(
                "the credential in Secret {namespace}/{secret} lacks {} on cluster {cluster}: {}",
                words::count(denied.len(), "permission"),
                words::list(&names)
            ),
            command: format!(
                "kubectl --context {cluster} auth can-i {} {}",
                first.verb,
                first.target()
            ),
        })
    }

    fn scc(&self, scc: &Scc) -> Result<(), Fault> {
        let Self {
            cluster,
            namespace,
            secret,
        } = self;
        let by = match (scc.exists, scc.usable) {
            (true, true) => return Ok(()),
            (false, _) => format!(
                "cluster {cluster} is OpenShift and has no SecurityContextConstraints privileged, under which the node agents run"
            ),
            (true, false) => format!(
                "cluster {cluster} is OpenShift and the credential in Secret {namespace}/{secret} may not use the SecurityContextConstraints privileged, so it cannot grant them to the node agents"
            ),
        };
        Err(Fault {
            reason: reasons::SCC_PREREQUISITES_MISSING.into(),
            by,
            command: format!(
                "kubectl --context {cluster} auth can-i use securitycontextconstraints/privileged"
            ),
        })
    }
}
