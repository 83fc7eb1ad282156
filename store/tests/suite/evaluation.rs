//! What conditions and writes mean, in DynamoDB's semantics.

use crate::common::item;
use gco_store::transition::{Change, Condition, Path, Write};
use gco_store::wire::{Item, Value};

#[test]
fn conditions_on_nothing_are_false_and_their_negation_true() {
    let path = Path::of(["a", "b"]);
    let item = item("classic-minimal");
    for current in [None, Some(&item)] {
        assert!(!Condition::Exists(path.clone()).holds(current));
        assert!(!Condition::Equals(path.clone(), Value::from("x")).holds(current));
        assert!(!Condition::Before(path.clone(), "x".to_owned()).holds(current));
        assert!(Condition::Not(Box::new(Condition::Equals(path.clone(), Value::from("x")))).holds(current));
    }
    let replicas = Path::of(["spec", "replicas"]);
    assert!(Condition::Equals(replicas.clone(), Value::Number("1.0".to_owned())).holds(Some(&item)));
    assert!(!Condition::Equals(replicas, Value::from("1")).holds(Some(&item)));
}

#[test]
fn writes_that_servers_call_invalid_are_invalid_here_too() {
    let before = item("classic-minimal");
    let path = |keys: [&str; 2]| Path(keys.iter().map(|key| (*key).to_owned()).collect());
    let one = Value::from(1);
    let big = Value::from("x".repeat(400 * 1024));
    for (changes, field) in [
        (vec![Change::Set(path(["none", "x"]), one.clone())], "none.x"),
        (vec![Change::Set(path(["namespace", "x"]), one.clone())], "namespace.x"),
        (vec![Change::Remove(path(["none", "x"]))], "none.x"),
        (vec![Change::CopyIfAbsent { to: Path::of(["x"]), from: Path::of(["none"]) }], "none"),
        (vec![Change::Set(Path::of(["endpoint_name"]), Value::from("x"))], "endpoint_name"),
        (
            vec![Change::Set(Path::of(["spec"]), one.clone()), Change::Set(path(["spec", "port"]), one.clone())],
            "spec.port",
        ),
        (vec![Change::Set(Path::of(["x"]), big.clone())], "item"),
    ] {
        let problem = Write::Update(changes).apply(Some(before.clone())).expect_err(field);
        assert_eq!(problem.field, field);
    }
    assert!(Write::Update(Vec::new()).apply(None).is_err());
    assert!(Write::Put(Item::new()).apply(None).is_err());
    assert_eq!(Write::Delete.apply(Some(before)), Ok(None));
}

#[test]
fn changes_read_the_row_as_it_was_before_all_of_them() {
    let before = Item::from([
        ("endpoint_name".to_owned(), Value::from("x")),
        ("a".to_owned(), Value::from(1)),
        ("gone".to_owned(), Value::Null),
    ]);
    let write = Write::Update(vec![
        Change::Set(Path::of(["a"]), Value::Number("2.0".to_owned())),
        Change::CopyIfAbsent { to: Path::of(["b"]), from: Path::of(["a"]) },
        Change::SetIfAbsent(Path::of(["c"]), Value::from(3)),
        Change::SetIfAbsent(Path::of(["gone"]), Value::from(4)),
        Change::Remove(Path::of(["never"])),
    ]);
    let after = write.apply(Some(before)).expect("valid").expect("a row");
    assert_eq!(
        after,
        Item::from([
            ("endpoint_name".to_owned(), Value::from("x")),
            ("a".to_owned(), Value::from(2)),
            ("b".to_owned(), Value::from(1)),
            ("c".to_owned(), Value::from(3)),
            ("gone".to_owned(), Value::Null),
        ])
    );
}
