//! Rows survive reading and writing; numbers, sizes and comparisons are DynamoDB's.

use crate::common::all_rows;
use gco_store::row::EndpointRow;
use gco_store::spec::Spec;
use gco_store::wire::{Item, Value, item_from_dynamodb_json, item_size_bytes, item_to_dynamodb_json};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn every_fixture_row_is_written_back_as_it_was_read() {
    let rows = all_rows();
    assert_eq!(rows.len(), 24, "all fixtures were found");
    for (name, item) in rows {
        let again = item_from_dynamodb_json(&item_to_dynamodb_json(&item)).expect("readable");
        assert_eq!(again, item, "{name}");
        assert_eq!(EndpointRow::parse(item.clone()).expect("readable").item, item, "{name}");
    }
}

#[test]
fn what_is_not_dynamodb_json_is_refused_with_its_path() {
    for (json, path) in [
        (json!("x"), "a"),
        (json!({}), "a"),
        (json!({"S": "x", "N": "1"}), "a"),
        (json!({"X": "x"}), "a"),
        (json!({"N": 1}), "a"),
        (json!({"N": "one"}), "a"),
        (json!({"N": "1e126"}), "a"),
        (json!({"N": "123456789012345678901234567890123456789"}), "a"),
        (json!({"SS": []}), "a"),
        (json!({"B": "not base64!"}), "a"),
        (json!({"L": [{"S": "x"}, {"BOOL": "x"}]}), "a[1]"),
        (json!({"M": {"b": {"M": {"c": {"S": 1}}}}}), "a.b.c"),
    ] {
        let problem = Value::from_dynamodb_json("a", &json).expect_err(&json.to_string());
        assert_eq!(problem.field, path, "{json}");
    }
}

#[test]
fn nesting_beyond_the_tables_limit_is_refused() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    assert!(Value::from_plain_json("spec", &nested(32)).is_ok());
    assert!(Value::from_plain_json("spec", &nested(33)).is_err());
}

#[test]
fn integers_are_read_from_every_text_of_an_integral_number_but_not_from_strings() {
    for (text, expected) in [
        ("8000", Some(8000)),
        ("8000.0", Some(8000)),
        ("1E2", Some(100)),
        ("+5", Some(5)),
        ("-0", Some(0)),
        ("0.5", None),
        ("1e-1", None),
        ("9223372036854775807", Some(i64::MAX)),
        ("9223372036854775808", None),
    ] {
        assert_eq!(Value::Number(text.to_owned()).as_integer(), expected, "{text}");
    }
    assert_eq!(Value::from("8000").as_integer(), None);
    assert_eq!(Value::Number("1e20".to_owned()).integral_text().as_deref(), Some("100000000000000000000"));
}

#[test]
fn decimals_of_plain_json_stay_numbers() {
    let value = Value::from_plain_json("spec", &json!({"a": 0.92, "b": 7, "c": "0.92"})).expect("plain JSON");
    assert_eq!(value.at(&["a"]), Some(&Value::Number("0.92".to_owned())));
    assert_eq!(value.at(&["b"]), Some(&Value::from(7)));
    assert_eq!(value.at(&["c"]), Some(&Value::from("0.92")));
    assert!(Value::from_plain_json("spec", &json!({"a": 1e300})).is_err());
}

#[test]
fn plain_json_loses_no_digit_of_a_number() {
    for (text, expected) in [
        ("8000.0", json!(8000)),
        ("18446744073709551615", json!(u64::MAX)),
        ("100000000000000000000", json!("100000000000000000000")),
        ("0.1", json!(0.1)),
        ("0.12345678901234567890", json!("0.12345678901234567890")),
    ] {
        assert_eq!(Value::Number(text.to_owned()).to_plain_json(), expected, "{text}");
    }
}

#[test]
fn values_compare_as_dynamodb_compares_them() {
    let number = |text: &str| Value::Number(text.to_owned());
    assert!(number("1").same_as(&number("1.00")));
    assert!(number("100").same_as(&number("1E2")));
    assert!(!number("1").same_as(&Value::from("1")));
    assert!(!number("1").same_as(&number("-1")));
    let set = |members: [&str; 2]| Value::StringSet(members.map(str::to_owned).to_vec());
    assert!(set(["a", "b"]).same_as(&set(["b", "a"])));
    assert!(!set(["a", "b"]).same_as(&set(["a", "c"])));
    assert!(Value::List(vec![number("1.0")]).same_as(&Value::List(vec![number("1")])));
    assert_eq!(number("8000.0").as_stored(), number("8000"));
    assert_eq!(number("-1.50e-3").as_stored(), number("-0.0015"));
}

#[test]
fn sizes_are_counted_as_dynamodb_counts_them() {
    let item = Item::from([
        ("ab".to_owned(), Value::from("xyz")),
        ("n".to_owned(), Value::from(1234)),
        ("l".to_owned(), Value::List(vec![Value::Bool(true), Value::Null])),
    ]);
    // Names 2 + 1 + 1; string 3; number 4 digits: 2 + 1; list 3 + 2 × (1 + 1).
    assert_eq!(item_size_bytes(&item), 4 + 3 + 3 + 7);
}

fn any_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (any::<i32>(), 0_u32..1000).prop_map(|(whole, fraction)| format!("{whole}.{fraction:03}")),
        (1_u32..1000, -100_i32..100).prop_map(|(digits, exponent)| format!("{digits}E{exponent}")),
    ];
    let text = "[ -~\u{e4}]{0,12}";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number.prop_map(Value::Number),
        text.prop_map(Value::String),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::Binary),
        prop::collection::btree_set(text, 1..4).prop_map(|set| Value::StringSet(set.into_iter().collect())),
        prop::collection::btree_set(any::<u16>(), 1..4)
            .prop_map(|set| Value::NumberSet(set.into_iter().map(|number| number.to_string()).collect())),
        prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..5), 1..4)
            .prop_map(|set| Value::BinarySet(set.into_iter().collect())),
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
            prop::collection::btree_map("[a-z.#-]{1,8}", inner, 0..5).prop_map(Value::Map),
        ]
    })
}

fn row_key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "lifecycle_id",
        "desired_state",
        "target_regions",
        "cleanup_regions",
        "region_generations",
        "namespace",
        "spec",
        "updated_at",
        "region_status",
        "labels",
        "deletion_generation",
        "deletion_regions",
        "control",
        "other",
    ])
    .prop_map(str::to_owned)
}

fn spec_key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "image",
        "region_image_uris",
        "port",
        "replicas",
        "gpu_count",
        "env",
        "resources",
        "command",
        "args",
        "accelerator",
        "node_selector",
        "capacity_type",
        "framework",
        "autoscaling",
        "canary",
        "mooncake",
        "max_surge",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn every_value_survives_dynamodb_json(value in any_value()) {
        let again = Value::from_dynamodb_json("v", &value.to_dynamodb_json()).expect("readable");
        prop_assert_eq!(again, value);
    }

    #[test]
    fn no_row_of_a_stranger_makes_reading_or_checking_fail(row in prop::collection::btree_map(row_key(), any_value(), 0..12)) {
        let mut item = row;
        item.insert("endpoint_name".to_owned(), Value::from("chat"));
        let row = EndpointRow::parse(item.clone()).expect("a name is all that it takes");
        prop_assert_eq!(&row.item, &item);
        // Whatever the answer, it is an answer.
        let _ = (row.quorum(), row.lifecycle_complete(), Spec::check(&row.spec));
        if let Err(problems) = Spec::check(&row.spec) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn no_spec_of_a_stranger_makes_checking_fail(spec in prop::collection::btree_map(spec_key(), any_value(), 0..12)) {
        let spec = Value::Map(spec);
        match Spec::check(&spec) {
            Ok(checked) => {
                let _ = (checked.spec.template_input_hash("r"), checked.spec.input_hash("r"), checked.spec.spec_hash());
            }
            Err(problems) => {
                prop_assert!(problems.is_sorted() && !problems.is_empty());
                prop_assert!(problems.iter().all(|problem| problem.to_string().chars().count() < 1000));
            }
        }
    }

    #[test]
    fn storing_changes_no_value_and_is_done_once(value in any_value()) {
        let stored = value.as_stored();
        prop_assert!(stored.same_as(&value));
        prop_assert!(value.same_as(&stored));
        prop_assert_eq!(stored.as_stored(), stored.clone());
        prop_assert_eq!(stored.size_bytes(), value.size_bytes());
    }
}
