//! DynamoDB JSON and plain JSON to and from [`Value`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value as Json;

use super::number::Decimal;
use super::{DEEPEST_NESTING, Item, Value};
use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};

impl Value {
    /// Reads one attribute value of DynamoDB JSON, for example `{"N": "8000"}`. `path` starts the paths of problems.
    ///
    /// # Errors
    /// The first thing that is not DynamoDB JSON, with its path.
    pub fn from_dynamodb_json(path: &str, json: &Json) -> Result<Self, FieldProblem> {
        decode(path, json, 0)
    }

    /// The value as DynamoDB JSON.
    #[must_use]
    pub fn to_dynamodb_json(&self) -> Json {
        let texts = |texts: &[String]| Json::Array(texts.iter().cloned().map(Json::String).collect());
        let (letter, content) = match self {
            Self::Null => ("NULL", Json::Bool(true)),
            Self::Bool(value) => ("BOOL", Json::Bool(*value)),
            Self::Number(text) => ("N", Json::String(text.clone())),
            Self::String(text) => ("S", Json::String(text.clone())),
            Self::Binary(bytes) => ("B", Json::String(BASE64.encode(bytes))),
            Self::List(list) => ("L", Json::Array(list.iter().map(Self::to_dynamodb_json).collect())),
            Self::Map(map) => ("M", item_to_dynamodb_json(map)),
            Self::StringSet(set) => ("SS", texts(set)),
            Self::NumberSet(set) => ("NS", texts(set)),
            Self::BinarySet(set) => {
                ("BS", Json::Array(set.iter().map(|bytes| Json::String(BASE64.encode(bytes))).collect()))
            }
        };
        Json::Object(std::iter::once((letter.to_owned(), content)).collect())
    }

    /// Reads plain JSON as a person writes a spec: integers and decimals become `N` with their text (D-54: never a
    /// string), the rest is what it looks like. `path` starts the paths of problems.
    ///
    /// # Errors
    /// A number that the table cannot keep, or nesting deeper than the table allows, with the path.
    pub fn from_plain_json(path: &str, json: &Json) -> Result<Self, FieldProblem> {
        from_plain(path, json, 0)
    }

    /// The value as plain JSON, for people and scripts.
    ///
    /// Integral numbers become JSON integers when they fit 64 bits; other numbers become JSON numbers when a double
    /// holds them exactly as written, and strings otherwise, so that no digit is lost. Binary becomes base64, sets lists.
    #[must_use]
    pub fn to_plain_json(&self) -> Json {
        let texts = |texts: &[String]| Json::Array(texts.iter().cloned().map(Json::String).collect());
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Number(text) => plain_number(text),
            Self::String(text) => Json::String(text.clone()),
            Self::Binary(bytes) => Json::String(BASE64.encode(bytes)),
            Self::List(list) => Json::Array(list.iter().map(Self::to_plain_json).collect()),
            Self::Map(map) => item_to_plain_json(map),
            Self::StringSet(set) => texts(set),
            Self::NumberSet(set) => Json::Array(set.iter().map(|text| plain_number(text)).collect()),
            Self::BinarySet(set) => Json::Array(set.iter().map(|bytes| Json::String(BASE64.encode(bytes))).collect()),
        }
    }
}

/// Reads a whole row of DynamoDB JSON: an object from attribute name to typed value.
///
/// # Errors
/// The first thing that is not DynamoDB JSON, with its path (attribute names, joined by dots).
pub fn item_from_dynamodb_json(json: &Json) -> Result<Item, FieldProblem> {
    let object = json.as_object().ok_or_else(|| FieldProblem::new("item", "must be an object of typed attributes"))?;
    object.iter().map(|(name, value)| Ok((name.clone(), Value::from_dynamodb_json(name, value)?))).collect()
}

/// A whole row as DynamoDB JSON.
#[must_use]
pub fn item_to_dynamodb_json(item: &Item) -> Json {
    Json::Object(item.iter().map(|(name, value)| (name.clone(), value.to_dynamodb_json())).collect())
}

/// A whole row as plain JSON; see [`Value::to_plain_json`].
#[must_use]
pub fn item_to_plain_json(item: &Item) -> Json {
    Json::Object(item.iter().map(|(name, value)| (name.clone(), value.to_plain_json())).collect())
}

fn decode(path: &str, json: &Json, depth: usize) -> Result<Value, FieldProblem> {
    let problem = |message: &str| FieldProblem::new(path, message);
    if depth > DEEPEST_NESTING {
        return Err(too_deep(path));
    }
    let object = json.as_object().ok_or_else(|| problem("must be an object with one DynamoDB type key"))?;
    let mut entries = object.iter();
    let (Some((letter, content)), None) = (entries.next(), entries.next()) else {
        return Err(problem("must have exactly one DynamoDB type key"));
    };
    let text = |content: &Json| content.as_str().map(str::to_owned);
    let number = |content: &Json| {
        let text = content.as_str().ok_or_else(|| problem("a number must be given as a string of digits"))?;
        Decimal::parse(text).map(|_| text.to_owned()).ok_or_else(|| not_a_number(path, text))
    };
    let binary = |content: &Json| {
        let text = content.as_str().ok_or_else(|| problem("binary must be a base64 string"))?;
        BASE64.decode(text).map_err(|_| problem("is not valid base64"))
    };
    let members = |content: &Json| match content.as_array() {
        Some(members) if !members.is_empty() => Ok(members.clone()),
        _ => Err(problem("a set must be a list with at least one member")),
    };
    match letter.as_str() {
        "NULL" => Ok(Value::Null),
        "BOOL" => content.as_bool().map(Value::Bool).ok_or_else(|| problem("BOOL must hold true or false")),
        "N" => number(content).map(Value::Number),
        "S" => text(content).map(Value::String).ok_or_else(|| problem("S must hold a string")),
        "B" => binary(content).map(Value::Binary),
        "L" => {
            let list = content.as_array().ok_or_else(|| problem("L must hold a list"))?;
            let element = |(index, element)| decode(&format!("{path}[{index}]"), element, depth + 1);
            list.iter().enumerate().map(element).collect::<Result<_, _>>().map(Value::List)
        }
        "M" => {
            let map = content.as_object().ok_or_else(|| problem("M must hold an object"))?;
            let entry = |(name, value): (&String, &Json)| {
                Ok((name.clone(), decode(&format!("{path}.{name}"), value, depth + 1)?))
            };
            map.iter().map(entry).collect::<Result<_, _>>().map(Value::Map)
        }
        "SS" => members(content)?
            .iter()
            .map(|member| text(member).ok_or_else(|| problem("SS must hold strings")))
            .collect::<Result<_, _>>()
            .map(Value::StringSet),
        "NS" => members(content)?.iter().map(number).collect::<Result<_, _>>().map(Value::NumberSet),
        "BS" => members(content)?.iter().map(binary).collect::<Result<_, _>>().map(Value::BinarySet),
        other => Err(problem(&format!("has the unknown DynamoDB type {}", bounded(other, QUOTED_VALUE_CHARACTERS)))),
    }
}

fn from_plain(path: &str, json: &Json, depth: usize) -> Result<Value, FieldProblem> {
    if depth > DEEPEST_NESTING {
        return Err(too_deep(path));
    }
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            let text = number.to_string();
            match Decimal::parse(&text) {
                Some(_) => Value::Number(text),
                None => return Err(not_a_number(path, &text)),
            }
        }
        Json::String(text) => Value::String(text.clone()),
        Json::Array(list) => Value::List(
            list.iter()
                .enumerate()
                .map(|(index, element)| from_plain(&format!("{path}[{index}]"), element, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        Json::Object(map) => Value::Map(
            map.iter()
                .map(|(name, value)| Ok((name.clone(), from_plain(&format!("{path}.{name}"), value, depth + 1)?)))
                .collect::<Result<_, FieldProblem>>()?,
        ),
    })
}

fn plain_number(text: &str) -> Json {
    let Some(decimal) = Decimal::parse(text) else { return Json::String(text.to_owned()) };
    if decimal.is_integral() {
        let canonical = decimal.text();
        if let Ok(integer) = canonical.parse::<i64>() {
            return Json::from(integer);
        }
        if let Ok(integer) = canonical.parse::<u64>() {
            return Json::from(integer);
        }
        return Json::String(text.to_owned());
    }
    // A double is written with the fewest digits that read back to it; only when these are the number's own digits
    // does the reader of the JSON see the number that is stored.
    let number = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
    match number {
        Some(number) if Decimal::parse(&number.to_string()).as_ref() == Some(&decimal) => Json::Number(number),
        _ => Json::String(text.to_owned()),
    }
}

fn not_a_number(path: &str, text: &str) -> FieldProblem {
    let shown = bounded(text, QUOTED_VALUE_CHARACTERS);
    FieldProblem::new(
        path,
        format!(
            "must be a number of at most 38 significant digits, up to 9.99E+125 and not closer to 0 than 1E-130, got {shown}"
        ),
    )
}

fn too_deep(path: &str) -> FieldProblem {
    FieldProblem::new(
        bounded(path, QUOTED_VALUE_CHARACTERS),
        "is nested deeper than the 32 levels that the table allows",
    )
}
