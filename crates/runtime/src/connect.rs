//! The one factory of clients.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;

use crate::patience::{ANSWER_LIMIT, PatienceLayer};

/// Time to open a connection: a dead cluster fails fast.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Knows the API servers of this process by URL; gives a client that authenticates with the token.
pub type Factory = dyn Fn(&str, Option<&str>) -> Option<Client> + Send + Sync;

/// Puts something between a client and the network.
pub type Wrap = dyn Fn(Client) -> Client + Send + Sync;

/// Makes clients of other clusters from kubeconfigs.
#[derive(Clone)]
pub struct Connector(Kind);

#[derive(Clone)]
enum Kind {
    Network(Option<Arc<Wrap>>),
    InProcess(Arc<Factory>),
}

/// Why no client could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used; the sentence says what to change.
    #[error("{0}")]
    Invalid(String),
}

impl Connector {
    /// Connects over the network.
    pub fn network() -> Self {
        Self(Kind::Network(None))
    }

    /// As [`Self::network`], each client wrapped: the lab cuts off the clients of a killed process.
    pub fn network_through(wrap: Arc<Wrap>) -> Self {
        Self(Kind::Network(Some(wrap)))
    }

    /// Hands the server URL and token of the kubeconfig's current context to `factory`, which knows
    /// the API servers of this process; `None` means that there is no such server.
    pub fn in_process(factory: Arc<Factory>) -> Self {
        Self(Kind::InProcess(factory))
    }

    /// A client for the current context of a kubeconfig. Nothing is sent yet. The kubeconfig must be
    /// self-contained: programs and files that it names are refused, since it comes from a Secret
    /// and would be read or run with this process's rights.
    pub async fn connect(
        &self,
        kubeconfig: &[u8],
        user_agent: &str,
    ) -> Result<Client, ConnectError> {
        let text = std::str::from_utf8(kubeconfig)
            .map_err(|_| ConnectError::Invalid("kubeconfig is not UTF-8 text; store it again with `kubectl create secret generic <name> --from-file=kubeconfig=<file> --dry-run=client -o yaml | kubectl apply -f -`".into()))?;
        let context = Current::of(text)?;
        match &self.0 {
            Kind::InProcess(factory) => factory(&context.server, context.token.as_deref())
                .ok_or_else(|| {
                    ConnectError::Invalid(format!(
                        "kubeconfig names the server {}, which does not exist",
                        context.server
                    ))
                }),
            Kind::Network(wrap) => {
                let client = network(text, user_agent).await?;
                Ok(wrap
                    .as_ref()
                    .map_or_else(|| client.clone(), |wrap| wrap(client.clone())))
            }
        }
    }
}

/// A client from a configuration, with the product's timeouts and without random retries.
pub(crate) fn client(mut config: Config, user_agent: &str) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(ANSWER_LIMIT);
    config.default_retry = false;
    let agent = HeaderValue::from_str(user_agent)
        .map_err(|_| ConnectError::Invalid(format!("{user_agent:?} is no User-Agent")))?;
    config.headers.push((USER_AGENT, agent));
    let builder = ClientBuilder::try_from(config).map_err(|e| {
        ConnectError::Invalid(format!(
            "kubeconfig cannot be used: {e}; check its certificate and key data"
        ))
    })?;
    Ok(builder.with_layer(&PatienceLayer).build())
}

async fn network(text: &str, user_agent: &str) -> Result<Client, ConnectError> {
    let invalid = |e: kube::config::KubeconfigError| {
        ConnectError::Invalid(match e {
            kube::config::KubeconfigError::Parse(e) => format!("kubeconfig {}", not_yaml(&e)),
            e => format!("kubeconfig cannot be used: {e}"),
        })
    };
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(invalid)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(invalid)?;
    client(config, user_agent)
}

/// Says where a kubeconfig is no kubeconfig. The parser's own message quotes the text around the
/// place, which may be a credential.
fn not_yaml(error: &serde_saphyr::Error) -> String {
    let place = error.location().map_or_else(String::new, |at| {
        format!(" (line {}, column {})", at.line(), at.column())
    });
    format!(
        "is not a kubeconfig in valid YAML{place}; store it again with `kubectl create secret generic <name> --from-file=kubeconfig=<file> --dry-run=client -o yaml | kubectl apply -f -`"
    )
}

/// Server and token of a kubeconfig's current context.
struct Current {
    server: String,
    token: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    current_context: Option<String>,
    contexts: Vec<Named>,
    clusters: Vec<Named>,
    users: Vec<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    context: serde_json::Value,
    cluster: serde_json::Value,
    user: serde_json::Value,
}

impl Current {
    fn of(text: &str) -> Result<Self, ConnectError> {
        let invalid = |why: String| ConnectError::Invalid(format!("kubeconfig {why}"));
        let file: File = serde_saphyr::from_str(text).map_err(|e| invalid(not_yaml(&e)))?;
        let current = file
            .current_context
            .filter(|c| !c.is_empty())
            .ok_or_else(|| {
                invalid("has no current-context; set one with `kubectl config use-context`".into())
            })?;
        let named =
            |list: &[Named], what: &str, name: &str, part: fn(&Named) -> &serde_json::Value| {
                list.iter()
                    .find(|n| n.name == name)
                    .map(|n| part(n).clone())
                    .ok_or_else(|| {
                        invalid(format!(
                            "has no {what} {name:?}, which its current context {current:?} needs"
                        ))
                    })
            };
        let context = named(&file.contexts, "context", &current, |n| &n.context)?;
        let text_of = |value: &serde_json::Value, key: &str| value[key].as_str().map(str::to_owned);
        let cluster_name = text_of(&context, "cluster").unwrap_or_default();
        let cluster = named(&file.clusters, "cluster", &cluster_name, |n| &n.cluster)?;
        let server = text_of(&cluster, "server")
            .ok_or_else(|| invalid(format!("has no server for the cluster {cluster_name:?}")))?;
        let user = match text_of(&context, "user") {
            Some(name) if !name.is_empty() => named(&file.users, "user", &name, |n| &n.user)?,
            _ => serde_json::Value::Null,
        };
        for (part, key) in [
            (&user, "exec"),
            (&user, "auth-provider"),
            (&user, "tokenFile"),
            (&user, "client-certificate"),
            (&user, "client-key"),
            (&cluster, "certificate-authority"),
        ] {
            if !part[key].is_null() {
                return Err(invalid(format!(
                    "uses {key}, which names a program or file that does not exist here; embed the data with `kubectl config view --raw --flatten --minify`"
                )));
            }
        }
        Ok(Self {
            server,
            token: text_of(&user, "token"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str) -> String {
        format!(
            "current-context: east\ncontexts: [{{name: east, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://east:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        )
    }

    #[test]
    fn server_and_token_of_the_current_context_are_found() {
        let current = Current::of(&kubeconfig("{token: t}")).unwrap();
        assert_eq!(
            (current.server.as_str(), current.token.as_deref()),
            ("https://east:6443", Some("t"))
        );
    }

    #[test]
    fn a_kubeconfig_that_would_run_a_program_is_refused() {
        let Err(ConnectError::Invalid(why)) = Current::of(&kubeconfig("{exec: {command: aws}}"))
        else {
            panic!("accepted")
        };
        assert!(why.contains("exec") && why.contains("--flatten"), "{why}");
    }

    #[test]
    fn an_unreadable_kubeconfig_is_not_quoted() {
        for text in ["token: [TOPSECRET", "users: TOPSECRET", "- TOPSECRET"] {
            let Err(ConnectError::Invalid(why)) = Current::of(text) else {
                panic!("accepted")
            };
            assert!(
                why.contains("line 1") && !why.contains("TOPSECRET"),
                "{why}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let Err(ConnectError::Invalid(why)) = Current::of("current-context: a\n") else {
            panic!("accepted")
        };
        assert!(why.contains("no context \"a\""), "{why}");
        let Err(ConnectError::Invalid(why)) = Current::of("{}") else {
            panic!("accepted")
        };
        assert!(why.contains("current-context"), "{why}");
    }
}
