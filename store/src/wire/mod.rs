//! Attribute values as DynamoDB types them.
//!
//! Numbers keep the text that the table gave: two rows are equal only when their number text is (`1` is not `1.0`).

mod codec;
mod number;

use std::collections::BTreeMap;

pub use codec::{item_from_dynamodb_json, item_to_dynamodb_json, item_to_plain_json};
pub(crate) use number::Decimal;

/// Most bytes that one row may have: DynamoDB refuses items over 400 KB.
pub const LARGEST_ITEM_BYTES: usize = 400 * 1024;

/// How deep lists and maps may nest: DynamoDB refuses more than 32 levels.
pub const DEEPEST_NESTING: usize = 32;

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

    /// The value of a number that is integral and fits, whatever its text (`8000`, `8000.0`, `8E3`); never of a string.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Number(text) => Decimal::parse(text)?.to_i64(),
            _ => None,
        }
    }

    /// The text of an integral number without fraction and exponent, of any length.
    #[must_use]
    pub fn integral_text(&self) -> Option<String> {
        match self {
            Self::Number(text) => Decimal::parse(text).filter(Decimal::is_integral).map(|decimal| decimal.text()),
            _ => None,
        }
    }

    /// The text of a number, as it is.
    #[must_use]
    pub fn number_text(&self) -> Option<&str> {
        match self {
            Self::Number(text) => Some(text),
            _ => None,
        }
    }

    /// What is at a path of map keys below this value.
    #[must_use]
    pub fn at(&self, keys: &[&str]) -> Option<&Value> {
        keys.iter().try_fold(self, |value, key| value.as_map()?.get(*key))
    }

    /// Whether DynamoDB's `=` holds: same type and value. Numbers compare by value, sets without order; everything else
    /// exactly.
    #[must_use]
    pub fn same_as(&self, other: &Value) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => same_number(one, two),
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.same_as(two))
            }
            (Self::Map(one), Self::Map(two)) => same_items(one, two),
            (Self::StringSet(one), Self::StringSet(two)) => same_members(one, two, |a, b| a == b),
            (Self::NumberSet(one), Self::NumberSet(two)) => same_members(one, two, |a, b| same_number(a, b)),
            (Self::BinarySet(one), Self::BinarySet(two)) => same_members(one, two, |a, b| a == b),
            _ => self == other,
        }
    }

    /// The value as the table gives it back: number text is brought to one form (`8000.0` is stored as `8000`).
    #[must_use]
    pub fn as_stored(&self) -> Value {
        let number = |text: &String| Decimal::parse(text).map_or_else(|| text.clone(), |decimal| decimal.text());
        match self {
            Self::Number(text) => Self::Number(number(text)),
            Self::NumberSet(set) => Self::NumberSet(set.iter().map(number).collect()),
            Self::List(list) => Self::List(list.iter().map(Self::as_stored).collect()),
            Self::Map(map) => Self::Map(map.iter().map(|(name, value)| (name.clone(), value.as_stored())).collect()),
            _ => self.clone(),
        }
    }

    /// Bytes that the value adds to its row, as DynamoDB counts them (its developer guide, "Item sizes and formats"):
    /// UTF-8 length of strings, about half a byte per digit of numbers, 3 for a list or map plus 1 per element.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        const CONTAINER: usize = 3;
        const ELEMENT: usize = 1;
        // An unreadable number cannot be stored at all; its text length is an upper bound.
        let number = |text: &String| Decimal::parse(text).map_or(text.len(), |decimal| decimal.size_bytes());
        match self {
            Self::Null | Self::Bool(_) => 1,
            Self::Number(text) => number(text),
            Self::String(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
            Self::List(list) => CONTAINER + list.iter().map(|element| ELEMENT + element.size_bytes()).sum::<usize>(),
            Self::Map(map) => {
                CONTAINER + map.iter().map(|(name, value)| ELEMENT + name.len() + value.size_bytes()).sum::<usize>()
            }
            Self::StringSet(set) => CONTAINER + set.iter().map(String::len).sum::<usize>(),
            Self::NumberSet(set) => CONTAINER + set.iter().map(number).sum::<usize>(),
            Self::BinarySet(set) => CONTAINER + set.iter().map(Vec::len).sum::<usize>(),
        }
    }
}

/// Bytes of a whole row, as DynamoDB counts them.
#[must_use]
pub fn item_size_bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value.size_bytes()).sum()
}

/// Whether two rows hold the same, as [`Value::same_as`] compares.
#[must_use]
pub fn same_items(one: &Item, two: &Item) -> bool {
    one.len() == two.len()
        && one.iter().zip(two).all(|((name, value), (other_name, other))| name == other_name && value.same_as(other))
}

fn same_number(one: &str, two: &str) -> bool {
    one == two || matches!((Decimal::parse(one), Decimal::parse(two)), (Some(one), Some(two)) if one == two)
}

/// Sets of equal size without repeated members are equal when each member of one is in the other.
fn same_members<T>(one: &[T], two: &[T], same: impl Fn(&T, &T) -> bool) -> bool {
    one.len() == two.len() && one.iter().all(|member| two.iter().any(|other| same(member, other)))
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
