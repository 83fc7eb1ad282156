//! Collecting the fields of events and spans as JSON values.

use std::error::Error;
use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

use crate::text::bounded;

/// The longest text of a field; longer ones are cut with `…`.
const FIELD_CHARS: usize = 4_096;

/// The longest text of a field that holds an error: these come from other systems.
const ERROR_CHARS: usize = 1_024;

/// The keys that every line has of its own.
const RESERVED: [&str; 6] = ["timestamp", "level", "logger", "service", "cluster_id", "region"];

/// The fields of one event or span.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) message: Option<String>,
    pub(super) others: Map<String, Value>,
}

impl Fields {
    fn text(&mut self, field: &Field, text: &str) {
        let name = field.name();
        if name == "message" {
            self.message = Some(bounded(text, FIELD_CHARS));
            return;
        }
        let limit = match name {
            "error" | "exception" => ERROR_CHARS,
            _ => FIELD_CHARS,
        };
        self.insert(name, Value::String(bounded(text, limit)));
    }

    fn insert(&mut self, name: &str, value: Value) {
        let name = name.strip_prefix("r#").unwrap_or(name);
        let key = if RESERVED.contains(&name) { format!("field_{name}") } else { name.to_owned() };
        self.others.insert(key, value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities; their names are better than nothing.
        let number = serde_json::Number::from_f64(value);
        let value = number.map_or_else(|| Value::String(value.to_string()), Value::Number);
        self.insert(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field.name(), Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field.name(), Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field.name(), Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        // Causes may repeat what their parent already printed, and chains may be long.
        while let Some(error) = cause.filter(|_| text.len() < ERROR_CHARS) {
            let said = error.to_string();
            if !text.contains(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            cause = error.source();
        }
        self.text(field, &text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
}
