//! Attribute values as DynamoDB types them.
//!
//! Numbers keep the text that the table gave: two rows are equal only when their number text is (`1` is not `1.0`).

use std::collections::BTreeMap;

/// Attributes by name: a row, or a map inside one.
pub type Item = BTreeMap<String, Value>;

/// One attribute value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `NULL`
    Null,
    /// `BOOL`
    Bool(bool),
    /// `N`: the decimal text, at most 38 significant digits.
    Number(String),
    /// `S`
    String(String),
    /// `B`
    Binary(Vec<u8>),
    /// `L`
    List(Vec<Value>),
    /// `M`
    Map(Item),
    /// `SS`
    StringSet(Vec<String>),
    /// `NS`
    NumberSet(Vec<String>),
    /// `BS`
    BinarySet(Vec<Vec<u8>>),
}

impl Value {
    /// The DynamoDB type letter(s), for messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Bool(_) => "BOOL",
            Self::Number(_) => "N",
            Self::String(_) => "S",
            Self::Binary(_) => "B",
            Self::List(_) => "L",
            Self::Map(_) => "M",
            Self::StringSet(_) => "SS",
            Self::NumberSet(_) => "NS",
            Self::BinarySet(_) => "BS",
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Item> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The elements of a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    /// The value of a boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number.to_string())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
