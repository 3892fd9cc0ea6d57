//! A session of a real `kubectl` over TLS. The client comes from `KUBECTL` (default `kubectl`).

use std::path::PathBuf;
use std::process::Stdio;

use farshore_apiserver::{ApiServer, Options, Tls};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::support::widget_crd;

struct Session {
    server: ApiServer,
    dir: tempfile::TempDir,
    url: String,
    shutdown: CancellationToken,
}

fn binary() -> String {
    std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into())
}

/// A listening server and a kubeconfig for its administrator; `None`, and a message, without a kubectl.
async fn session(rbac: bool) -> Option<Session> {
    if Command::new(binary())
        .args(["version", "--client"])
        .output()
        .await
        .is_err()
    {
        println!("skipped: there is no {}", binary());
        return None;
    }
    let server = ApiServer::new(Options {
        rbac,
        ..Options::default()
    });
    let shutdown = CancellationToken::new();
    drop(server.spawn(shutdown.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (tls, ca) = Tls::self_signed(&["127.0.0.1", "localhost"]).unwrap();
    let (serving, stop) = (server.clone(), shutdown.clone());
    tokio::spawn(async move { serving.serve_tls(listener, tls, stop).await });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca.pem"), ca).unwrap();
    let session = Session {
        server,
        dir,
        url,
        shutdown,
    };
    let token = session.server.admin_token();
    session.kubeconfig("admin", &token);
    Some(session)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Session {
    fn kubeconfig(&self, user: &str, token: &str) -> PathBuf {
        let path = self.dir.path().join(user);
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url, "certificate-authority": self.dir.path().join("ca.pem")}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    async fn run_as(&self, user: &str, stdin: &str, args: &[&str]) -> (bool, String) {
        let mut child = Command::new(binary())
            .args(args)
            .env("KUBECONFIG", self.dir.path().join(user))
            .env("HOME", self.dir.path())
            .env("KUBECTL_COMMAND_HEADERS", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(stdin.as_bytes()).await.unwrap();
        drop(input);
        let output = child.wait_with_output().await.unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        println!("$ kubectl {}\n{text}", args.join(" "));
        (output.status.success(), text)
    }

    async fn ok(&self, args: &[&str]) -> String {
        self.ok_with("", args).await
    }

    async fn ok_with(&self, stdin: &str, args: &[&str]) -> String {
        let (ok, text) = self.run_as("admin", stdin, args).await;
        assert!(ok, "kubectl {} failed:\n{text}", args.join(" "));
        text
    }

    async fn fails(&self, stdin: &str, args: &[&str]) -> String {
        let (ok, text) = self.run_as("admin", stdin, args).await;
        assert!(
            !ok,
            "kubectl {} should have failed:\n{text}",
            args.join(" ")
        );
        text
    }
}

/// Fields of a line of a table.
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line = text
        .lines()
        .find(|l| l.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("no row {name} in\n{text}"))
        .split_whitespace()
        .collect()
}

const WIDGET: &str =
    "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 3}\n";

#[tokio::test]
async fn a_session_with_custom_resources() {
    let Some(s) = session(false).await else {
        return;
    };
    s.ok_with(&widget_crd().to_string(), &["apply", "-f", "-"])
        .await;
    s.ok(&[
        "wait",
        "--for=condition=Established",
        "crd/widgets.example.com",
        "--timeout=20s",
    ])
    .await;

    assert_eq!(
        s.ok_with(WIDGET, &["apply", "-f", "-"]).await.trim(),
        "widget.example.com/a created"
    );
    assert_eq!(
        s.ok_with(WIDGET, &["apply", "-f", "-"]).await.trim(),
        "widget.example.com/a unchanged"
    );
    let changed = WIDGET.replace("size: 3", "size: 4");
    assert_eq!(
        s.ok_with(&changed, &["apply", "-f", "-"]).await.trim(),
        "widget.example.com/a configured"
    );
    s.ok_with(&changed, &["apply", "--server-side", "-f", "-"])
        .await;
    s.ok_with(&changed, &["diff", "-f", "-"]).await;

    let table = s.ok(&["get", "wd"]).await;
    assert_eq!(
        table
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["NAME", "SIZE", "READY", "AGE"]
    );
    assert_eq!(row(&table, "a")[..2], ["a", "4"]);
    assert!(s.ok(&["get", "toys"]).await.contains("a"), "categories");
    let yaml = s.ok(&["get", "widget", "a", "-o", "yaml"]).await;
    let object: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(
        object["spec"],
        serde_json::json!({"size": 4, "colour": "red"})
    );

    s.ok(&[
        "patch",
        "widget",
        "a",
        "--type=merge",
        "-p",
        r#"{"spec":{"colour":"blue"}}"#,
    ])
    .await;
    s.ok(&[
        "patch",
        "widget",
        "a",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/size","value":5}]"#,
    ])
    .await;
    s.ok(&[
        "patch",
        "widget",
        "a",
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"ready":2}}"#,
    ])
    .await;
    s.ok(&["label", "widget", "a", "tier=gold"]).await;
    s.ok(&["annotate", "widget", "a", "note=x"]).await;
    assert!(
        s.ok(&[
            "get",
            "widgets",
            "-l",
            "tier=gold",
            "--field-selector",
            "spec.colour=blue"
        ])
        .await
        .contains("5")
    );
    s.ok(&[
        "wait",
        "widget/a",
        "--for=jsonpath={.status.ready}=2",
        "--timeout=20s",
    ])
    .await;
    s.ok(&["scale", "widget", "a", "--replicas=6"]).await;
    assert_eq!(
        s.ok(&["get", "widget", "a", "-o", "jsonpath={.spec.size}"])
            .await,
        "6"
    );

    let wrong = WIDGET.replace("size: 3", "size: 3, sice: 4");
    let refused = s.fails(&wrong, &["apply", "-f", "-"]).await;
    assert!(refused.contains("unknown field \"spec.sice\""), "{refused}");
    let refused = s
        .fails(
            &WIDGET.replace("size: 3", "size: -1"),
            &["apply", "-f", "-"],
        )
        .await;
    assert!(
        refused.contains("spec.size: Invalid value: -1"),
        "{refused}"
    );

    assert!(
        s.ok(&["explain", "widget.spec.size"])
            .await
            .contains("How big it is.")
    );
    let described = s.ok(&["describe", "widget", "a"]).await;
    assert!(
        described.contains("Size:") && described.contains("Events:"),
        "{described}"
    );
    s.ok(&["delete", "widget", "a"]).await;
    s.ok(&["delete", "crd", "widgets.example.com"]).await;
    let gone = s.fails("", &["get", "widgets"]).await;
    assert!(
        gone.contains("could not find the requested resource")
            || gone.contains("doesn't have a resource type"),
        "{gone}"
    );
}

#[tokio::test]
async fn a_session_with_built_in_kinds() {
    let Some(s) = session(false).await else {
        return;
    };
    assert_eq!(
        s.ok(&["create", "namespace", "shop"]).await.trim(),
        "namespace/shop created"
    );
    s.ok(&[
        "-n",
        "shop",
        "create",
        "configmap",
        "c",
        "--from-literal=a=b",
    ])
    .await;
    s.ok(&[
        "-n",
        "shop",
        "create",
        "secret",
        "generic",
        "s",
        "--from-literal=a=b",
    ])
    .await;
    assert_eq!(
        s.ok(&[
            "-n",
            "shop",
            "get",
            "secret",
            "s",
            "-o",
            "jsonpath={.data.a}"
        ])
        .await,
        "Yg=="
    );
    s.ok(&["-n", "shop", "create", "serviceaccount", "sa"])
        .await;
    s.ok(&[
        "-n",
        "shop",
        "create",
        "role",
        "r",
        "--verb=get,list",
        "--resource=pods",
    ])
    .await;
    s.ok(&[
        "-n",
        "shop",
        "create",
        "rolebinding",
        "rb",
        "--role=r",
        "--serviceaccount=shop:sa",
    ])
    .await;
    s.ok(&["-n", "shop", "create", "deployment", "web", "--image=nginx"])
        .await;
    let table = s.ok(&["-n", "shop", "get", "deploy"]).await;
    assert_eq!(row(&table, "web")[1], "0/1");
    s.ok(&["-n", "shop", "scale", "deploy/web", "--replicas=3"])
        .await;
    s.ok(&["-n", "shop", "set", "image", "deploy/web", "nginx=nginx:2"])
        .await;
    assert_eq!(
        s.ok(&[
            "-n",
            "shop",
            "get",
            "deploy",
            "web",
            "-o",
            "jsonpath={.spec.replicas} {.spec.template.spec.containers[*].image}"
        ])
        .await,
        "3 nginx:2"
    );
    assert!(
        s.ok(&["-n", "shop", "describe", "deploy", "web"])
            .await
            .contains("Replicas:")
    );
    assert!(
        s.ok(&["explain", "deployment.spec.replicas"])
            .await
            .contains("Number of desired pods")
    );
    let all = s
        .ok(&["-n", "shop", "get", "all,cm,secret,sa,role,rolebinding"])
        .await;
    for name in [
        "deployment.apps/web",
        "configmap/c",
        "secret/s",
        "serviceaccount/sa",
    ] {
        assert!(all.contains(name), "{name} in\n{all}");
    }
    assert!(
        s.ok(&["-n", "shop", "create", "token", "sa"])
            .await
            .starts_with("lab.")
    );
    assert!(s.ok(&["auth", "whoami"]).await.contains("kubernetes-admin"));
    s.ok(&["get", "nodes"]).await;
    let ready = r#"{"status":{"observedGeneration":9,"replicas":3,"updatedReplicas":3,"readyReplicas":3,"availableReplicas":3}}"#;
    s.ok(&[
        "-n",
        "shop",
        "patch",
        "deploy",
        "web",
        "--subresource=status",
        "-p",
        ready,
    ])
    .await;
    s.ok(&[
        "-n",
        "shop",
        "rollout",
        "status",
        "deploy/web",
        "--timeout=20s",
    ])
    .await;
    s.ok(&["-n", "shop", "run", "pod", "--image=nginx"]).await;
    assert!(
        s.fails("", &["-n", "shop", "logs", "pod"])
            .await
            .contains("needs a kubelet")
    );
    let (_, watched) = s
        .run_as(
            "admin",
            "",
            &["-n", "shop", "get", "pods", "-w", "--request-timeout=2s"],
        )
        .await;
    assert_eq!(row(&watched, "pod")[2], "Pending");
    assert!(
        s.ok(&["get", "svc", "kubernetes"])
            .await
            .contains("10.96.0.1")
    );
    s.ok(&["delete", "namespace", "shop"]).await;
    assert!(
        s.fails("", &["get", "namespace", "shop"])
            .await
            .contains("namespaces \"shop\" not found")
    );
}

#[tokio::test]
async fn access_is_checked_by_the_stored_roles() {
    let Some(s) = session(true).await else { return };
    s.ok(&["create", "serviceaccount", "sa"]).await;
    let token = s.ok(&["create", "token", "sa"]).await;
    s.kubeconfig("sa", token.trim());
    let (ok, text) = s.run_as("sa", "", &["get", "pods"]).await;
    assert!(!ok && text.contains(r#"pods is forbidden: User "system:serviceaccount:default:sa" cannot list resource "pods" in API group "" in the namespace "default""#), "{text}");
    s.ok(&[
        "create",
        "role",
        "reader",
        "--verb=get,list,watch",
        "--resource=pods",
    ])
    .await;
    s.ok(&[
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        "--serviceaccount=default:sa",
    ])
    .await;
    assert!(s.run_as("sa", "", &["get", "pods"]).await.0);
    assert_eq!(
        s.run_as("sa", "", &["auth", "can-i", "list", "pods"])
            .await
            .1
            .trim(),
        "yes"
    );
    assert_eq!(
        s.run_as("sa", "", &["auth", "can-i", "delete", "pods"])
            .await
            .1
            .trim(),
        "no"
    );
    assert!(
        s.run_as("sa", "", &["auth", "can-i", "--list"])
            .await
            .1
            .contains("pods")
    );
    s.ok(&["delete", "serviceaccount", "sa"]).await;
    let (ok, text) = s.run_as("sa", "", &["get", "pods"]).await;
    assert!(
        !ok && text.contains("Unauthorized") || text.contains("logged in"),
        "{text}"
    );
}
