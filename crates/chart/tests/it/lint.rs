//! What every chart keeps to.

use std::collections::BTreeSet;

use farshore_chart::{Chart, functions};
use gotmpl::parse::{Expr, ListNode, Node, Parser, PipeNode};

fn charts() -> Vec<Chart> {
    Chart::names()
        .iter()
        .map(|name| Chart::embedded(name).unwrap())
        .collect()
}

#[test]
fn the_program_contains_the_three_documented_charts() {
    assert_eq!(
        Chart::names(),
        [
            farshore_chart::MANAGER_CONTROL_PLANE,
            farshore_chart::PROTECTIONZONE_CONTROLLER,
            farshore_chart::WORKLOAD_CONTROL_PLANE
        ]
    );
}

#[test]
fn an_unknown_chart_is_named_in_the_error() {
    assert_eq!(
        Chart::embedded("nginx").unwrap_err().to_string(),
        "this program contains no chart named nginx"
    );
}

#[test]
fn charts_have_the_version_of_the_program() {
    for chart in charts() {
        assert_eq!(chart.version, env!("CARGO_PKG_VERSION"), "{}", chart.name);
        assert_eq!(
            chart.app_version,
            env!("CARGO_PKG_VERSION"),
            "{}",
            chart.name
        );
    }
}

#[test]
fn charts_are_of_the_kind_that_helm_takes() {
    for chart in charts() {
        assert_eq!(chart.metadata["apiVersion"], "v2", "{}", chart.name);
        assert_eq!(chart.metadata["type"], "application", "{}", chart.name);
        assert!(
            chart.metadata["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{}",
            chart.name
        );
    }
}

#[test]
fn templates_call_only_functions_that_are_offered_and_all_of_them() {
    let mut used = BTreeSet::new();
    for chart in charts() {
        for (path, text) in &chart.templates {
            let (tree, defines) = Parser::with_name(Some(path), text, "{{", "}}")
                .unwrap()
                .parse()
                .unwrap();
            list(&tree, &mut used);
            for define in &defines {
                list(&define.body, &mut used);
            }
        }
    }
    let offered: BTreeSet<String> = functions::OFFERED
        .iter()
        .map(|name| name.to_string())
        .collect();
    assert_eq!(used, offered);
}

fn list(nodes: &ListNode, used: &mut BTreeSet<String>) {
    for node in &nodes.nodes {
        match node {
            Node::List(inner) => list(inner, used),
            Node::Action(action) => pipe(&action.pipe, used),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                pipe(&branch.pipe, used);
                list(&branch.body, used);
                if let Some(other) = &branch.else_body {
                    list(other, used);
                }
            }
            Node::Template(template) => {
                if let Some(data) = &template.pipe {
                    pipe(data, used);
                }
            }
            Node::Define(define) => list(&define.body, used),
            Node::Text(_) | Node::Break(_) | Node::Continue(_) => {}
        }
    }
}

fn pipe(pipe_node: &PipeNode, used: &mut BTreeSet<String>) {
    for command in &pipe_node.commands {
        for expression in &command.args {
            self::expression(expression, used);
        }
    }
}

fn expression(expression: &Expr, used: &mut BTreeSet<String>) {
    match expression {
        Expr::Identifier(_, name) => {
            used.insert(name.to_string());
        }
        Expr::Pipe(_, inner) => pipe(inner, used),
        Expr::Chain(_, inner, _) => self::expression(inner, used),
        _ => {}
    }
}
