use serde_json::{Value, json};

use super::{FieldErrorKind, Structural, aggregate};

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn schema(text: &str) -> Structural {
    Structural::parse(&yaml(text)).unwrap()
}

/// The errors of parsing, without the path that they all share.
fn refused(text: &str) -> Vec<String> {
    let errors = Structural::parse_at("s", &yaml(text)).unwrap_err();
    errors.iter().map(|e| e.message()).collect()
}

fn messages(schema: &Structural, new: &Value, old: Option<&Value>) -> Vec<String> {
    schema
        .validate(new, old)
        .iter()
        .map(|e| e.message())
        .collect()
}

const PLAN: &str = r#"
type: object
required: [spec]
properties:
  apiVersion: {type: string}
  kind: {type: string}
  metadata: {type: object}
  spec:
    type: object
    required: [clusters, mode]
    properties:
      clusters: {type: array, minItems: 2, maxItems: 3, items: {type: string, minLength: 1}, x-kubernetes-list-type: set}
      mode: {type: string, enum: [Async, Sync]}
      replicas: {type: integer, format: int32, minimum: 1, maximum: 10, default: 3}
      ratio: {type: number, exclusiveMaximum: true, maximum: 1, multipleOf: 0.25}
      name: {type: string, pattern: '^[a-z]+$', maxLength: 5}
      when: {type: string, format: date-time}
      every: {type: string, format: duration}
      port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
      labels: {type: object, additionalProperties: {type: string}, maxProperties: 2}
      note: {type: string, nullable: true}
      steps:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items:
          type: object
          required: [name]
          properties:
            name: {type: string}
            retries: {type: integer, default: 5, maximum: 9}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true}
      template:
        type: object
        x-kubernetes-embedded-resource: true
        properties:
          spec: {type: object, properties: {size: {type: integer}}}
  status:
    type: object
    properties:
      phase: {type: string}
"#;

fn plan(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "x.io/v1", "kind": "Plan", "metadata": {"name": "a"},
        "spec": {"clusters": ["a", "b"], "mode": "Sync"},
    });
    for (name, value) in spec.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    object
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let plans = schema(PLAN);
    let mut object = plan(json!({
        "extra": 1,
        "labels": {"any": "x"},
        "steps": [{"name": "a", "colour": "red"}, {"name": "b"}],
        "free": {"deep": {"er": [1]}},
        "port": "http",
        "template": {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "t", "bogus": true},
            "spec": {"size": 1, "weight": 2}, "status": {},
        },
    }));
    object["metadata"]["colour"] = "blue".into();
    object["metadata"]["creationTimestamp"] = Value::Null;
    object["other"] = json!({"a": 1});
    let mut dropped = plans.prune(&mut object);
    dropped.sort();
    assert_eq!(
        dropped,
        [
            "metadata.colour",
            "other",
            "spec.extra",
            "spec.steps[0].colour",
            "spec.template.metadata.bogus",
            "spec.template.spec.weight",
            "spec.template.status",
        ]
    );
    assert_eq!(object["metadata"], json!({"name": "a"}));
    assert_eq!(object["spec"]["free"], json!({"deep": {"er": [1]}}));
    assert_eq!(object["spec"]["labels"], json!({"any": "x"}));
    assert_eq!(object["spec"]["template"]["kind"], "Pod");
    assert_eq!(plans.prune(&mut object), Vec::<String>::new());
}

#[test]
fn defaults_reach_into_lists_and_take_the_place_of_forbidden_nulls() {
    let plans = schema(PLAN);
    let mut object = plan(json!({
        "replicas": null,
        "note": null,
        "name": null,
        "steps": [{"name": "a"}, {"name": "b", "retries": 1}],
    }));
    plans.default(&mut object);
    let spec = &object["spec"];
    assert_eq!(spec["replicas"], 3);
    assert_eq!(spec["steps"][0]["retries"], 5);
    assert_eq!(spec["steps"][1]["retries"], 1);
    assert_eq!(spec.get("note"), Some(&Value::Null), "nullable nulls stay");
    assert_eq!(spec.get("name"), None, "nulls without a default go");
}

#[test]
fn values_are_validated_in_the_words_of_the_api_server() {
    let plans = schema(PLAN);
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({}), &[]),
        (
            json!({"clusters": ["a"]}),
            &[
                "spec.clusters: Invalid value: 1: spec.clusters in body should have at least 2 items",
            ],
        ),
        (
            json!({"clusters": ["a", "b", "c", "d"]}),
            &["spec.clusters: Too many: 4: must have at most 3 items"],
        ),
        (
            json!({"clusters": ["a", "a", "a"]}),
            &[r#"spec.clusters[1]: Duplicate value: "a""#],
        ),
        (
            json!({"clusters": ["a", ""]}),
            &[
                r#"spec.clusters[1]: Invalid value: "": spec.clusters[1] in body should be at least 1 chars long"#,
            ],
        ),
        (
            json!({"mode": "Other"}),
            &[r#"spec.mode: Unsupported value: "Other": supported values: "Async", "Sync""#],
        ),
        (
            json!({"replicas": "3"}),
            &[
                r#"spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string""#,
            ],
        ),
        (json!({"replicas": 3.0}), &[]),
        (
            json!({"replicas": 0}),
            &[
                "spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
            ],
        ),
        (
            json!({"replicas": 11}),
            &[
                "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
            ],
        ),
        (json!({"ratio": 0.75}), &[]),
        (
            json!({"ratio": 1}),
            &["spec.ratio: Invalid value: 1: spec.ratio in body should be less than 1"],
        ),
        (
            json!({"ratio": 0.3}),
            &["spec.ratio: Invalid value: 0.3: spec.ratio in body should be a multiple of 0.25"],
        ),
        (
            json!({"name": "Ab"}),
            &[r#"spec.name: Invalid value: "Ab": spec.name in body should match '^[a-z]+$'"#],
        ),
        (
            json!({"name": "abcdef"}),
            &["spec.name: Too long: may not be more than 5 bytes"],
        ),
        (json!({"when": "2024-01-02T03:04:05.5+02:00"}), &[]),
        (
            json!({"when": "2024-01-02"}),
            &[
                r#"spec.when: Invalid value: "2024-01-02": spec.when in body must be of type date-time: "2024-01-02""#,
            ],
        ),
        (json!({"every": "1h30m"}), &[]),
        (
            json!({"every": "soon"}),
            &[
                r#"spec.every: Invalid value: "soon": spec.every in body must be of type duration: "soon""#,
            ],
        ),
        (json!({"port": 80}), &[]),
        (json!({"port": "http"}), &[]),
        (
            json!({"labels": {"a": "1", "b": "2", "c": "3"}}),
            &["spec.labels: Too many: 3: must have at most 2 items"],
        ),
        (
            json!({"labels": {"a": 1}}),
            &[
                r#"spec.labels.a: Invalid value: "integer": spec.labels.a in body must be of type string: "integer""#,
            ],
        ),
        (json!({"note": null}), &[]),
        (
            json!({"name": null}),
            &[
                r#"spec.name: Invalid value: "null": spec.name in body must be of type string: "null""#,
            ],
        ),
        (
            json!({"steps": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}),
            &[r#"spec.steps[2]: Duplicate value: {"name":"a"}"#],
        ),
        (
            json!({"steps": [{}]}),
            &["spec.steps[0].name: Required value"],
        ),
        (
            json!({"template": {"kind": "Pod"}}),
            &["spec.template.apiVersion: Required value: must not be empty"],
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(
            messages(&plans, &plan(spec.clone()), None),
            expected,
            "{spec}"
        );
    }
    let without = json!({"apiVersion": "x.io/v1", "kind": "Plan", "metadata": {}});
    assert_eq!(messages(&plans, &without, None), ["spec: Required value"]);
}

#[test]
fn wrong_metadata_is_an_error() {
    let plans = schema(PLAN);
    let mut object = plan(json!({}));
    object["metadata"]["labels"] = json!("x");
    let errors = plans.validate(&object, None);
    assert_eq!(errors[0].path, "metadata");
    assert!(
        errors[0]
            .detail
            .contains("ObjectMeta.labels of type map[string]string"),
        "{errors:?}"
    );
    assert_eq!(errors[0].reason(), "FieldValueInvalid");
}

#[test]
fn what_was_invalid_and_did_not_change_is_tolerated() {
    let plans = schema(PLAN);
    let old = plan(
        json!({"mode": "Old", "clusters": ["a", "a"], "steps": [{"name": "x", "retries": 99}]}),
    );
    let mut new = old.clone();
    new["spec"]["replicas"] = 2.into();
    assert_eq!(messages(&plans, &new, Some(&old)), Vec::<String>::new());
    // Items of a keyed list are recognised when others come and go.
    new["spec"]["steps"] = json!([{"name": "new", "retries": 1}, {"name": "x", "retries": 99}]);
    assert_eq!(messages(&plans, &new, Some(&old)), Vec::<String>::new());
    new["spec"]["mode"] = "Worse".into();
    assert_eq!(messages(&plans, &new, Some(&old)).len(), 1);
}

#[test]
fn junctors_fail_without_a_path() {
    let either = schema(
        r"
        type: object
        properties:
          spec:
            type: object
            properties: {a: {type: string}, b: {type: string}, c: {type: integer}}
            oneOf: [{required: [a]}, {required: [b]}]
            anyOf: [{properties: {c: {minimum: 5}}}, {required: [b]}]
            not: {required: [a, c]}
        ",
    );
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"a": "x"}), &[]),
        (
            json!({"a": "x", "b": "y"}),
            &[
                r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
            ],
        ),
        (
            json!({}),
            &[
                r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found none valid"#,
                "spec.a: Required value",
            ],
        ),
        (
            json!({"a": "x", "c": 6}),
            &[r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#],
        ),
    ];
    for (spec, expected) in cases {
        let object = json!({"spec": spec});
        assert_eq!(messages(&either, &object, None), expected, "{object}");
    }
}

#[test]
fn schemas_that_are_not_structural_are_refused() {
    let cases: Vec<(&str, &[&str])> = vec![
        (
            "properties: {}",
            &["s.type: Required value: must not be empty at the root"],
        ),
        (
            "type: string",
            &[r#"s.type: Invalid value: "string": must be object at the root"#],
        ),
        (
            "{type: object, properties: {a: {}}}",
            &[
                "s.properties[a].type: Required value: must not be empty for specified object fields",
            ],
        ),
        (
            "{type: object, properties: {a: {type: array}}}",
            &["s.properties[a].items: Required value: must be specified"],
        ),
        (
            "{type: object, properties: {a: {type: array, items: {}}}}",
            &[
                "s.properties[a].items.type: Required value: must not be empty for specified array items",
            ],
        ),
        (
            "{type: object, additionalProperties: {type: string}}",
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        ),
        (
            "{type: object, properties: {a: {type: object, $ref: '#/x'}}}",
            &["s.properties[a].$ref: Forbidden: $ref is not supported"],
        ),
        (
            "{type: object, properties: {a: {type: string}}, anyOf: [{properties: {a: {type: string}}}]}",
            &["s.anyOf[0].properties[a].type: Forbidden: must be empty to be structural"],
        ),
        (
            "{type: object, anyOf: [{properties: {a: {minLength: 1}}}]}",
            &["s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]"],
        ),
        (
            "{type: object, properties: {metadata: {type: object, properties: {labels: {type: object}}}}}",
            &[
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (
            "{type: object, properties: {a: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, properties: {id: {type: string}}}}}}",
            &[
                "s.properties[a].items.properties[id].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
        (
            "{type: object, properties: {a: {type: integer, default: x}}}",
            &[
                r#"s.properties[a].default: Invalid value: "string":  in body must be of type integer: "string""#,
            ],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected, "{text}");
    }
    assert!(
        refused("{type: object, properties: {a: {type: string, pattern: '('}}}")[0]
            .contains("must be a valid regular expression")
    );
}

#[test]
fn broken_rules_are_refused() {
    let rule = |rule: &str| format!("{{type: object, x-kubernetes-validations: [{rule}]}}");
    assert!(refused(&rule("{rule: 'self.a >'}"))[0].starts_with(
        r#"s.x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.a >","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: compilation failed"#
    ));
    assert_eq!(
        refused(&rule("{message: x}")),
        ["s.x-kubernetes-validations[0].rule: Required value: rule is not specified"]
    );
    let below_a_list = "{type: object, properties: {a: {type: array, maxItems: 9, items: {type: string, maxLength: 9, x-kubernetes-validations: [{rule: 'self == oldSelf'}]}}}}";
    assert_eq!(
        refused(below_a_list),
        [
            "s.properties[a].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[a]"
        ]
    );
}

const RULES: &str = r#"
type: object
properties:
  spec:
    type: object
    x-kubernetes-validations:
      - {rule: "self.min <= self.max", message: "min must not be above max"}
      - {rule: "!has(self.list) || self.list.all(x, x.name != 'bad')", messageExpression: "'found bad among ' + string(size(self.list))", reason: FieldValueForbidden, fieldPath: ".list"}
    properties:
      min: {type: integer}
      max: {type: integer}
      name:
        type: string
        x-kubernetes-validations:
          - {rule: "self == oldSelf", message: "name is immutable"}
      once:
        type: string
        x-kubernetes-validations:
          - {rule: "!oldSelf.hasValue() || oldSelf.value() == self || 'oldSelf' == self", optionalOldSelf: true, message: "set once"}
          - {rule: "oldSelf.hasValue() || self != 'forbidden at first'", optionalOldSelf: true, message: "not at first"}
      list:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items:
          type: object
          required: [name]
          properties:
            name: {type: string}
            size:
              type: integer
              x-kubernetes-validations: [{rule: "self >= oldSelf", message: "may only grow"}]
      map:
        type: object
        additionalProperties:
          type: string
          x-kubernetes-validations: [{rule: "self.startsWith('v')"}]
  metadata: {type: object}
x-kubernetes-validations:
  - {rule: "self.metadata.name.size() < 10", message: "name too long"}
"#;

#[test]
fn cel_rules_are_evaluated_with_their_messages() {
    let rules = schema(RULES);
    let object =
        |spec: Value| json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": spec});
    let ok = json!({"min": 1, "max": 2});
    let with = |more: Value| {
        let mut spec = ok.clone();
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        object(spec)
    };
    let cases: Vec<(Value, Option<Value>, &[&str])> = vec![
        (with(json!({})), None, &[]),
        (
            with(json!({"min": 3})),
            None,
            &[r#"spec: Invalid value: "object": min must not be above max"#],
        ),
        (
            with(json!({"list": [{"name": "bad"}]})),
            None,
            &["spec.list: Forbidden: found bad among 1"],
        ),
        // Transition rules run on updates only.
        (with(json!({"name": "a"})), None, &[]),
        (with(json!({"name": "a"})), Some(with(json!({}))), &[]),
        (
            with(json!({"name": "b"})),
            Some(with(json!({"name": "a"}))),
            &[r#"spec.name: Invalid value: "string": name is immutable"#],
        ),
        // An optional oldSelf is evaluated on creation too.
        (with(json!({"once": "a"})), None, &[]),
        (
            with(json!({"once": "a"})),
            Some(with(json!({"once": "a"}))),
            &[],
        ),
        (
            with(json!({"once": "forbidden at first"})),
            None,
            &[r#"spec.once: Invalid value: "string": not at first"#],
        ),
        (
            with(json!({"once": "b"})),
            Some(with(json!({"once": "a"}))),
            &[r#"spec.once: Invalid value: "string": set once"#],
        ),
        (
            with(json!({"once": "oldSelf"})),
            Some(with(json!({"once": "a"}))),
            &[],
        ),
        // Items of keyed lists are correlated by key, not by place.
        (
            with(json!({"list": [{"name": "y", "size": 1}, {"name": "x", "size": 4}]})),
            Some(with(
                json!({"list": [{"name": "x", "size": 5}, {"name": "y", "size": 1}]}),
            )),
            &[r#"spec.list[1].size: Invalid value: "integer": may only grow"#],
        ),
        (
            with(json!({"map": {"k": "x"}})),
            None,
            &[r#"spec.map[k]: Invalid value: "string": failed rule: self.startsWith('v')"#],
        ),
        // What was wrong before and did not change is tolerated.
        (
            with(json!({"map": {"k": "x", "l": "v"}})),
            Some(with(json!({"map": {"k": "x"}}))),
            &[],
        ),
        // Rules are not run over an object with the wrong types.
        (
            with(json!({"min": "x"})),
            None,
            &[
                r#"spec.min: Invalid value: "string": spec.min in body must be of type integer: "string""#,
                r#"<nil>: Invalid value: "null": some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"#,
            ],
        ),
    ];
    for (new, old, expected) in cases {
        assert_eq!(
            messages(&rules, &new, old.as_ref()),
            expected,
            "{new}\nwas {old:?}"
        );
    }
    // A rule that cannot be evaluated fails.
    let failed = messages(&rules, &object(json!({"min": 1})), None);
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].starts_with(
            r#"spec: Invalid value: "object": no such key: max evaluating rule: min must"#
        ),
        "{failed:?}"
    );
    let named = json!({"metadata": {"name": "0123456789"}, "spec": ok});
    assert_eq!(
        messages(&rules, &named, None),
        [r#"<nil>: Invalid value: "object": name too long"#]
    );
}

#[test]
fn several_errors_make_one_sentence() {
    let plans = schema(PLAN);
    let mut errors = plans.validate(&plan(json!({"mode": 1, "replicas": 0})), None);
    errors.retain(|e| e.kind == FieldErrorKind::Invalid);
    assert_eq!(aggregate(&errors), errors[0].message());
    errors.push(super::FieldError::required("b", ""));
    errors.push(super::FieldError::required("b", ""));
    assert!(aggregate(&errors).starts_with("[spec.replicas"));
    assert!(aggregate(&errors).ends_with("b: Required value]"));
}

#[test]
fn schemas_can_be_shared_between_tasks() {
    fn shared<T: Send + Sync>() {}
    shared::<Structural>();
}

/// What is said of one rule on an object with these fields.
fn told(rule: &str) -> Vec<String> {
    let text = format!(
        r#"{{type: object, x-kubernetes-validations: [{rule}], properties: {{
            size: {{type: integer}}, ratio: {{type: number}}, name: {{type: string, maxLength: 20}}, snake_case: {{type: string}},
            since: {{type: string, format: date-time}}, port: {{x-kubernetes-int-or-string: true}},
            free: {{type: object, x-kubernetes-preserve-unknown-fields: true}},
            labels: {{type: object, maxProperties: 5, additionalProperties: {{type: string, maxLength: 9}}}},
            list: {{type: array, maxItems: 10, items: {{type: object, properties: {{name: {{type: string, maxLength: 9}}, n: {{type: integer}}}}}}}},
            open: {{type: array, items: {{type: string}}}}}}}}"#
    );
    let parsed = Structural::parse_at("s", &yaml(&text));
    let errors = parsed.err().unwrap_or_default();
    errors.iter().map(|e| e.message()).collect()
}

#[test]
fn rules_are_checked_against_the_types_of_the_schema() {
    let wrong = [
        ("self.sise > 0", "undefined field 'sise'"),
        ("self.free.x == 1", "undefined field 'x'"),
        (
            "self.size > 'a'",
            "found no matching overload for '_>_' applied to '(int, string)'",
        ),
        (
            "self.size + 1.0 > 2.0",
            "found no matching overload for '_+_' applied to '(int, double)'",
        ),
        (
            "self.name == null",
            "found no matching overload for '_==_' applied to '(string, null)'",
        ),
        (
            "self.name.startsWith(1)",
            "found no matching overload for 'startsWith' applied to 'string.(int)'",
        ),
        (
            "object.size > 0",
            "undeclared reference to 'object' (in container '')",
        ),
        (
            "self.name.shout() == 'A'",
            "undeclared reference to 'shout' (in container '')",
        ),
        (
            "self.size.all(x, x > 0)",
            "expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("self.list.all(x, x.nane != '')", "undefined field 'nane'"),
        (
            "self.size.big",
            "type 'int' does not support field selection",
        ),
        (
            "self.size in ['a']",
            "found no matching overload for '@in' applied to '(int, list(string))'",
        ),
        (
            "[1, 'a'].size() == 2",
            "expected type 'int' but found 'string'",
        ),
    ];
    for (rule, what) in wrong {
        let errors = told(&format!("{{rule: {rule:?}}}"));
        assert_eq!(errors.len(), 1, "{rule}: {errors:?}");
        assert!(
            errors[0].contains("].rule: Invalid value")
                && errors[0].contains("compilation failed: ERROR: <input>:1:"),
            "{errors:?}"
        );
        assert!(errors[0].contains(what), "{rule}: {}", errors[0]);
    }
    assert!(
        told("{rule: 'self.sise > 0'}")[0]
            .ends_with("ERROR: <input>:1:5: undefined field 'sise'\n | self.sise > 0\n | ....^"),
        "the place is shown"
    );
    for rule in [
        "self.size > 0 && self.ratio < 0.5 && self.size < self.ratio",
        "self.name.size() > 2 || self.name.matches('^a+$')",
        "self.snake_case != ''",
        "self.since > timestamp('2020-01-01T00:00:00Z')",
        "self.port == 5 || self.port == 'http'",
        "has(self.labels) && self.labels.all(k, self.labels[k].size() > 0)",
        "'a' in self.labels || self.labels['a'] == 'b'",
        "self.list.map(x, x.n).sum() < 9 && self.list.filter(x, x.n > 1).size() > 0",
        "self.list.exists_one(x, x.name == 'a') ? self.size == 1 : true",
        "self.list.map(x, x.name).isSorted() && self.list[0].n == 1",
        "quantity(self.name).isLessThan(quantity('1Gi')) && isIP(self.name)",
        "self.metadata.name.startsWith('a') && self.kind == 'X'",
        "oldSelf.size <= self.size && type(self.size) == int",
        "dyn(self.size) == 'a' || {'a': 1}['a'] == 1",
        "self.?name.orValue('') != 'a' && optional.of(self.size).hasValue()",
        "sets.contains(self.list.map(x, x.name), ['a']) && duration('1h') > duration('1m')",
        "url('https://a').getHost() == 'a' && 'a-b'.split('-').size() == 2",
    ] {
        assert_eq!(
            told(&format!("{{rule: {rule:?}}}")),
            Vec::<String>::new(),
            "{rule}"
        );
    }
    let not_bool = told("{rule: 'self.size + 1'}");
    assert!(
        not_bool[0].ends_with("cel expression must evaluate to a bool"),
        "{not_bool:?}"
    );
    let message = told("{rule: 'self.size > 0', messageExpression: 'self.size'}");
    assert!(
        message[0].contains("].messageExpression: Invalid value")
            && message[0].ends_with("messageExpression must evaluate to a string"),
        "{message:?}"
    );
    let message = told("{rule: 'self.size > 0', messageExpression: 'self.x'}");
    assert!(
        message[0].contains(
            "messageExpression compilation failed: ERROR: <input>:1:5: undefined field 'x'"
        ),
        "{message:?}"
    );
}

#[test]
fn rules_that_may_cost_too_much_are_refused() {
    let dear =
        told("{rule: \"self.open.all(x, self.open.all(y, x != y || x.contains('abcdefghij')))\"}");
    assert!(
        dear[0].contains("Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule"),
        "{dear:?}"
    );
    assert_eq!(
        told("{rule: 'self.list.all(x, self.list.all(y, x.n <= y.n || x.name == y.name))'}"),
        Vec::<String>::new()
    );
}

#[test]
fn a_rule_that_takes_too_long_is_given_up() {
    let rules = schema(
        "{type: object, x-kubernetes-validations: [{rule: 'self.list.all(x, self.list.all(y, x + y >= 0))', message: all}],
          properties: {list: {type: array, maxItems: 1100, items: {type: integer}}}}",
    );
    let of = |n: usize| json!({"list": vec![1; n]});
    assert_eq!(messages(&rules, &of(50), None), Vec::<String>::new());
    let told = messages(&rules, &of(1000), None);
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: all"),
        "{told:?}"
    );
    // What ends early costs no more than it did.
    let mut early = of(1000);
    early["list"][0] = json!(-5);
    let told = messages(&rules, &early, None);
    assert!(told[0].ends_with(": all"), "{told:?}");
}

#[test]
fn rules_see_values_as_the_schema_types_them() {
    let rules = schema(
        "{type: object, properties: {
            snake_case: {type: string}, 'a.b': {type: string}, a__b: {type: integer}, namespace: {type: string},
            ratio: {type: number}, since: {type: string, format: date-time}, day: {type: string, format: date},
            long: {type: string, format: duration}, raw: {type: string, format: byte}, labels: {type: object, additionalProperties: {type: string}}},
          x-kubernetes-validations: [
            {rule: \"self.snake_case == 's' && self.a__dot__b == 'd' && self.a__underscores__b == 1 && self.__namespace__ == 'n'\", message: names},
            {rule: 'self.ratio / 2.0 == 1.5', message: numbers},
            {rule: \"self.since.getFullYear() == 2020 && self.day < self.since && self.long == duration('90m')\", message: times},
            {rule: 'self.raw.size() == 3', message: bytes},
            {rule: \"self.labels['a.b'] == 'x' && !has(self.nothing)\", message: keys}]}"
            .replace("&& !has(self.nothing)", "")
            .as_str(),
    );
    let object = json!({"snake_case": "s", "a.b": "d", "a__b": 1, "namespace": "n", "ratio": 3, "since": "2020-02-02T00:00:00Z",
        "day": "2020-02-01", "long": "1h30m", "raw": "YWJj", "labels": {"a.b": "x"}});
    assert_eq!(messages(&rules, &object, None), Vec::<String>::new());
}
