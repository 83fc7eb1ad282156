//! Objects of a region's cluster that no row owns any more, as the region's item of the second table tells of them: counted,
//! listed up to a bound, never deleted by themselves.

use crate::wire::{Item, Value};

/// Most objects that an item lists; all are counted. 40 objects of at most about 300 bytes: 12 KB of an item.
pub const MOST_LISTED_ORPHANS: usize = 40;

/// One object that no row owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// `kind/name`, the kind in lower case.
    pub object: String,
    /// The lifecycle that it was made for; `None`: made before lifecycles were.
    pub lifecycle_id: Option<String>,
    /// Pods that run under it.
    pub pods: u32,
}

/// What a region says of its orphans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanReport {
    /// How many there are.
    pub count: u64,
    /// The first of them in order, at most [`MOST_LISTED_ORPHANS`].
    pub listed: Vec<Orphan>,
    /// When it was looked, ISO-8601.
    pub as_of: String,
}

impl OrphanReport {
    /// Attribute of a region's item.
    pub const ATTRIBUTE: &'static str = "orphans";

    /// The report of these objects.
    #[must_use]
    pub fn of(mut orphans: Vec<Orphan>, as_of: String) -> Self {
        orphans.sort();
        let count = u64::try_from(orphans.len()).unwrap_or(u64::MAX);
        orphans.truncate(MOST_LISTED_ORPHANS);
        Self { count, listed: orphans, as_of }
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let Self { count, listed, as_of } = self;
        let one = |orphan: &Orphan| {
            let Orphan { object, lifecycle_id, pods } = orphan;
            let mut item = Item::from([
                ("object".to_owned(), Value::from(object.as_str())),
                ("pods".to_owned(), Value::from(i64::from(*pods))),
            ]);
            if let Some(lifecycle_id) = lifecycle_id {
                item.insert("lifecycle_id".to_owned(), Value::from(lifecycle_id.as_str()));
            }
            Value::Map(item)
        };
        Value::Map(Item::from([
            ("count".to_owned(), Value::from(i64::try_from(*count).unwrap_or(i64::MAX))),
            ("objects".to_owned(), Value::List(listed.iter().take(MOST_LISTED_ORPHANS).map(one).collect())),
            ("as_of".to_owned(), Value::from(as_of.as_str())),
        ]))
    }

    /// Reads the attribute; `None` when it is no report.
    #[must_use]
    pub fn parse(value: &Value) -> Option<Self> {
        let one = |value: &Value| {
            let text = |key: &str| value.at(&[key]).and_then(Value::as_str).map(str::to_owned);
            Some(Orphan {
                object: text("object")?,
                lifecycle_id: text("lifecycle_id"),
                pods: value.at(&["pods"]).and_then(Value::as_integer).and_then(|pods| u32::try_from(pods).ok())?,
            })
        };
        Some(Self {
            count: value.at(&["count"]).and_then(Value::as_integer).and_then(|count| u64::try_from(count).ok())?,
            listed: value.at(&["objects"]).and_then(Value::as_list)?.iter().filter_map(one).collect(),
            as_of: value.at(&["as_of"]).and_then(Value::as_str)?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(number: usize) -> Orphan {
        Orphan { object: format!("deployment/chat-{number:04}"), lifecycle_id: Some("a".repeat(64)), pods: 2 }
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let unmarked = Orphan { object: "service/old".to_owned(), lifecycle_id: None, pods: 0 };
        for orphans in [vec![], vec![orphan(1)], vec![unmarked, orphan(2)]] {
            let report = OrphanReport::of(orphans, "2026-11-29T12:00:00+00:00".to_owned());
            assert_eq!(OrphanReport::parse(&report.to_value()), Some(report));
        }
        assert_eq!(OrphanReport::parse(&Value::from("none")), None);
    }

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let report = OrphanReport::of((0..1000).rev().map(orphan).collect(), String::new());
        assert_eq!((report.count, report.listed.len()), (1000, MOST_LISTED_ORPHANS));
        assert_eq!(report.listed[0], orphan(0));
        assert!(report.to_value().size_bytes() < 12_000);
    }
}
