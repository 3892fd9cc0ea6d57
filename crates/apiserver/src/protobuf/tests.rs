use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What kubectl 1.32 sends for its `create` and `auth` commands: the body in base64, a tab, and the
/// object.
const KUBECTL: &str = include_str!("kubectl-bodies.tsv");

fn bodies() -> impl Iterator<Item = (Vec<u8>, Value)> {
    KUBECTL.lines().map(|line| {
        let (body, object) = line.split_once('\t').unwrap();
        (
            STANDARD.decode(body).unwrap(),
            serde_json::from_str(object).unwrap(),
        )
    })
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 0x7f {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn int(number: u64, value: i64) -> Vec<u8> {
    [varint(number << 3), varint(value.cast_unsigned())].concat()
}

fn bytes(number: u64, value: &[u8]) -> Vec<u8> {
    [
        varint(number << 3 | 2),
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), bytes(1, &type_meta), bytes(2, raw)].concat()
}

#[test]
fn what_kubectl_sends_is_read() {
    assert!(bodies().count() >= 20);
    for (body, object) in bodies() {
        assert_eq!(to_json(&body).unwrap(), object);
    }
}

#[test]
fn times_have_their_two_precisions() {
    let time = [int(1, 1_700_000_000), int(2, 123_456_789)].concat();
    let spec = [
        bytes(1, b"me"),
        int(2, 15),
        bytes(3, &time),
        bytes(4, &time),
        int(5, 0),
    ]
    .concat();
    let metadata = [bytes(1, b"l"), bytes(8, &time), bytes(9, b"")].concat();
    let lease = envelope(
        "coordination.k8s.io/v1",
        "Lease",
        &[bytes(1, &metadata), bytes(2, &spec)].concat(),
    );
    assert_eq!(
        to_json(&lease).unwrap(),
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "creationTimestamp": "2023-11-14T22:13:20Z"},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2023-11-14T22:13:20.123456Z", "renewTime": "2023-11-14T22:13:20.123456Z"},
        })
    );
}

#[test]
fn an_event_keeps_its_references() {
    let regarding = [bytes(1, b"Pod"), bytes(2, b"n"), bytes(3, b"p")].concat();
    let event = [
        bytes(1, &bytes(1, b"e")),
        bytes(2, &regarding),
        bytes(3, b"Why"),
        bytes(4, b"what"),
        int(8, 2),
        bytes(9, b"Normal"),
    ]
    .concat();
    let object = to_json(&envelope("v1", "Event", &event)).unwrap();
    assert_eq!(
        object["involvedObject"],
        json!({"kind": "Pod", "namespace": "n", "name": "p"})
    );
    assert_eq!(
        (&object["reason"], &object["count"]),
        (&json!("Why"), &json!(2))
    );
}

#[test]
fn delete_options_are_known_in_every_group() {
    let options = [
        int(1, 0),
        bytes(4, b"Background"),
        bytes(5, b"All"),
        bytes(2, &bytes(1, b"u")),
    ]
    .concat();
    for version in ["v1", "meta.k8s.io/v1", "apps/v1"] {
        let object = to_json(&envelope(version, "DeleteOptions", &options)).unwrap();
        assert_eq!(object["gracePeriodSeconds"], 0);
        assert_eq!(object["propagationPolicy"], "Background");
        assert_eq!(object["dryRun"], json!(["All"]));
        assert_eq!(object["preconditions"], json!({"uid": "u"}));
    }
}

#[test]
fn numbers_can_be_negative_and_packed() {
    let run_as = |value: Vec<u8>| bytes(2, &bytes(14, &value));
    let pod = envelope(
        "v1",
        "Pod",
        &run_as([int(2, -1), bytes(4, &[5, 0x96, 1])].concat()),
    );
    assert_eq!(
        to_json(&pod).unwrap()["spec"]["securityContext"],
        json!({"runAsUser": -1, "supplementalGroups": [5, 150]})
    );
}

#[test]
fn an_enveloped_json_object_is_taken_as_it_is() {
    let raw = br#"{"apiVersion":"e.com/v1","kind":"W"}"#;
    let body = [
        envelope("e.com/v1", "W", raw),
        bytes(4, b"application/json"),
    ]
    .concat();
    assert_eq!(
        to_json(&body).unwrap(),
        json!({"apiVersion": "e.com/v1", "kind": "W"})
    );
}

#[test]
fn malformed_bodies_are_refused_with_a_reason() {
    for (body, reason) in [
        (b"{}".to_vec(), "prefix"),
        (envelope("e.com/v1", "Widget", b""), "send JSON"),
        (
            envelope("v1", "Secret", &[0x0a, 0x05, b'x']),
            "middle of a field",
        ),
        (envelope("v1", "Secret", &[0x0b]), "wire type 3"),
        (
            envelope("v1", "Secret", &[0xff; 11]),
            "longer than ten bytes",
        ),
        (envelope("v1", "Secret", &int(1, 5)), "another wire type"),
        (envelope("v1", "Secret", &bytes(3, &[0xff])), "UTF-8"),
        (envelope("v1", "Secret", &[0x00, 0x00]), "field number 0"),
        (
            envelope("v1", "Secret", &bytes(1, &bytes(8, &int(1, i64::MAX)))),
            "time",
        ),
    ] {
        let error = to_json(&body).unwrap_err();
        assert!(error.contains(reason), "{error} should say {reason}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(raw in prop::collection::vec(any::<u8>(), 0..200), kind in prop::sample::select(vec!["Pod", "Secret", "Event", "Service"])) {
        let _ = to_json(&raw);
        let _ = to_json(&envelope("v1", kind, &raw));
        let _ = to_json(&[b"k8s\0".to_vec(), raw].concat());
    }

    #[test]
    fn no_damage_to_a_real_body_makes_it_panic(
        which in any::<prop::sample::Index>(),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let all: Vec<_> = bodies().collect();
        let mut body = which.get(&all).0.clone();
        for (place, byte) in hits {
            let place = place.index(body.len());
            body[place] = byte;
        }
        if shorten {
            body.truncate(cut.index(body.len()));
        }
        let _ = to_json(&body);
    }
}
