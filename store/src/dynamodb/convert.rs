//! Attribute values to and from the SDK's type.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use crate::problem::FieldProblem;
use crate::wire::{Item, Value};

/// A row as the SDK wants it.
pub(super) fn to_sdk_item(item: &Item) -> HashMap<String, AttributeValue> {
    item.iter().map(|(name, value)| (name.clone(), to_sdk(value))).collect()
}

/// One value as the SDK wants it.
pub(super) fn to_sdk(value: &Value) -> AttributeValue {
    match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(value) => AttributeValue::Bool(*value),
        Value::Number(text) => AttributeValue::N(text.clone()),
        Value::String(text) => AttributeValue::S(text.clone()),
        Value::Binary(bytes) => AttributeValue::B(Blob::new(bytes.clone())),
        Value::List(list) => AttributeValue::L(list.iter().map(to_sdk).collect()),
        Value::Map(map) => AttributeValue::M(to_sdk_item(map)),
        Value::StringSet(set) => AttributeValue::Ss(set.clone()),
        Value::NumberSet(set) => AttributeValue::Ns(set.clone()),
        Value::BinarySet(set) => AttributeValue::Bs(set.iter().cloned().map(Blob::new).collect()),
    }
}

/// A row as the SDK gave it. Fails on a type that this version does not know, with its path.
pub(super) fn from_sdk_item(item: &HashMap<String, AttributeValue>) -> Result<Item, FieldProblem> {
    item.iter().map(|(name, value)| Ok((name.clone(), from_sdk(name, value)?))).collect()
}

fn from_sdk(path: &str, value: &AttributeValue) -> Result<Value, FieldProblem> {
    Ok(match value {
        AttributeValue::Null(_) => Value::Null,
        AttributeValue::Bool(value) => Value::Bool(*value),
        AttributeValue::N(text) => Value::Number(text.clone()),
        AttributeValue::S(text) => Value::String(text.clone()),
        AttributeValue::B(bytes) => Value::Binary(bytes.as_ref().to_vec()),
        AttributeValue::L(list) => {
            let element = |(index, element)| from_sdk(&format!("{path}[{index}]"), element);
            Value::List(list.iter().enumerate().map(element).collect::<Result<_, _>>()?)
        }
        AttributeValue::M(map) => Value::Map(
            map.iter()
                .map(|(name, value)| Ok((name.clone(), from_sdk(&format!("{path}.{name}"), value)?)))
                .collect::<Result<_, FieldProblem>>()?,
        ),
        AttributeValue::Ss(set) => Value::StringSet(set.clone()),
        AttributeValue::Ns(set) => Value::NumberSet(set.clone()),
        AttributeValue::Bs(set) => Value::BinarySet(set.iter().map(|bytes| bytes.as_ref().to_vec()).collect()),
        _ => return Err(FieldProblem::new(path, "has a DynamoDB type that this version does not know")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_the_way_to_the_sdk_and_back() {
        let item = Item::from([
            ("null".to_owned(), Value::Null),
            ("bool".to_owned(), Value::Bool(true)),
            ("number".to_owned(), Value::Number("1.50".to_owned())),
            ("string".to_owned(), Value::from("")),
            ("binary".to_owned(), Value::Binary(vec![0, 255])),
            ("list".to_owned(), Value::List(vec![Value::from(1), Value::Map(Item::new())])),
            ("strings".to_owned(), Value::StringSet(vec!["a".to_owned()])),
            ("numbers".to_owned(), Value::NumberSet(vec!["1".to_owned()])),
            ("binaries".to_owned(), Value::BinarySet(vec![vec![1]])),
        ]);
        assert_eq!(from_sdk_item(&to_sdk_item(&item)), Ok(item));
    }
}
