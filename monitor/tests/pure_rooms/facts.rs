//! Hand-written facts of the wire contract, read against the reference files; the renderer is not called.

use std::collections::BTreeMap;

use serde_json::Value;

use super::golden::{CANARY_CASES, CASES, kinds_of};
use super::support::{identity_of, row, tests_folder};

/// Fewest facts that say something about a fixture.
const FEWEST: usize = 40;
/// The same of a canary, where what is common to all endpoints is not said again.
const FEWEST_OF_A_CANARY: usize = 20;

#[test]
fn every_reference_file_follows_the_hand_written_facts_of_the_contract() {
    let folder = tests_folder().join("golden");
    let common = std::fs::read_to_string(folder.join("facts/common.txt")).unwrap();
    let mut wrong = Vec::new();
    for (fixture, region) in CASES {
        let own = std::fs::read_to_string(folder.join(format!("facts/{fixture}.txt"))).unwrap();
        // Facts of a fixture are those of one region; what is common holds in all of them.
        let own = if own.starts_with(&format!("# {region}\n")) { own.as_str() } else { "" };
        let row = row(fixture);
        let identity = identity_of(&row, region);
        let object = |kind: &str| -> Value {
            let path = folder.join(format!("{fixture}.{region}.{kind}.json"));
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        let objects: BTreeMap<&str, Value> =
            kinds_of(fixture).into_iter().map(|kind| (kind.word(), object(kind.word()))).collect();
        let deployment = &objects["deployment"];
        let mut count = 0;
        for line in common.lines().chain(own.lines()).filter(|line| !line.starts_with('#')) {
            let fact = line
                .replace("$NAME", &row.name)
                .replace("$LIFECYCLE", &identity.lifecycle_id)
                .replace("$GENERATION", &identity.region_generation);
            let (kind, rest) = fact.split_once(' ').unwrap();
            let body = objects.get(kind).unwrap_or_else(|| panic!("{line}: there is no {kind} of {fixture}"));
            let holds = match rest.split_once(" = ") {
                Some((pointer, value)) => {
                    let value: Value = serde_json::from_str(value).unwrap_or_else(|error| panic!("{line}: {error}"));
                    body.pointer(pointer) == Some(&value)
                }
                None => body.pointer(rest.strip_suffix(" absent").unwrap_or_else(|| panic!("{line}"))).is_none(),
            };
            count += 1;
            if !holds {
                wrong.push(format!("{fixture} in {region}: {fact}"));
            }
        }
        println!("{fixture} in {region}: {count} facts");
        assert!(count >= FEWEST, "{fixture} in {region}: only {count} facts");
        hashes_agree(deployment);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_reference_file_of_a_canary_follows_the_hand_written_facts_of_the_contract() {
    let folder = tests_folder().join("golden");
    for (fixture, region) in CANARY_CASES {
        let row = row(fixture);
        let facts = std::fs::read_to_string(folder.join(format!("facts/{fixture}.txt"))).unwrap();
        let object = |word: &str| -> Value {
            let path = folder.join(format!("{fixture}.{region}.{word}.json"));
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        let mut count = 0;
        for line in facts.lines().filter(|line| !line.starts_with('#')) {
            let fact = line.replace("$NAME", &row.name);
            let (word, rest) = fact.split_once(' ').unwrap();
            let (pointer, value) = match rest.split_once(" = ") {
                Some((pointer, value)) => (pointer, Some(serde_json::from_str::<Value>(value).unwrap())),
                None => (rest.strip_suffix(" absent").unwrap(), None),
            };
            assert_eq!(object(word).pointer(pointer), value.as_ref(), "{fixture} in {region}: {fact}");
            count += 1;
        }
        assert!(count >= FEWEST_OF_A_CANARY, "{fixture} in {region}: only {count} facts");
        hashes_agree(&object("canary-deployment"));
    }
}

/// The input hash is opaque; on metadata and template it is the same.
fn hashes_agree(deployment: &Value) {
    let hash = deployment.pointer("/metadata/annotations/gco.io~1input-hash").and_then(Value::as_str).unwrap();
    assert_eq!(hash.len(), 64);
    assert!(hash.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()));
    let template = deployment.pointer("/spec/template/metadata/annotations/gco.io~1input-hash");
    assert_eq!(template, Some(&Value::from(hash)));
}
