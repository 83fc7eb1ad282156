//! The tracing layer that turns events into lines.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;
use super::{LogFormat, LogSettings};
use crate::clock::Clock;

/// Writes each event as one line, through the function that it was made with.
pub struct LogLayer {
    settings: LogSettings,
    clock: Arc<dyn Clock>,
    write: Box<dyn Fn(&str) + Send + Sync>,
}

impl LogLayer {
    /// A layer that gives each complete line, with its line end, to `write` in one call.
    pub fn new(settings: LogSettings, clock: Arc<dyn Clock>, write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { settings, clock, write: Box::new(write) }
    }
}

impl std::fmt::Debug for LogLayer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LogLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The names of levels as Python's logging writes them, which existing searches look for.
fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

fn iso8601(timestamp: Timestamp) -> String {
    let civil = jiff::tz::Offset::UTC.to_datetime(timestamp);
    format!("{}.{:06}+00:00", civil.strftime("%Y-%m-%dT%H:%M:%S"), civil.subsec_nanosecond() / 1000)
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().replace(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut extensions = span.extensions_mut();
            match extensions.get_mut::<Fields>() {
                Some(fields) => values.record(fields),
                None => {
                    let mut fields = Fields::default();
                    values.record(&mut fields);
                    extensions.insert(fields);
                }
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut others = Map::new();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                others.extend(fields.others.clone());
            }
        }
        let mut own = Fields::default();
        event.record(&mut own);
        others.extend(own.others);

        let time = iso8601(self.clock.wall());
        let level = level_name(*event.metadata().level());
        let logger = event.metadata().target();
        let message = own.message.unwrap_or_default();
        let mut line = match self.settings.format {
            LogFormat::Json => {
                let mut object = Map::new();
                for (key, text) in [
                    ("timestamp", time.as_str()),
                    ("level", level),
                    ("logger", logger),
                    ("message", message.as_str()),
                    ("service", self.settings.service.as_str()),
                    ("cluster_id", self.settings.cluster_id.as_str()),
                    ("region", self.settings.region.as_str()),
                ] {
                    object.insert(key.to_owned(), Value::from(text));
                }
                object.extend(others);
                Value::Object(object).to_string()
            }
            LogFormat::Text => plain_line(&time, level, logger, &message, &others),
        };
        line.push('\n');
        (self.write)(&line);
    }
}

fn plain_line(time: &str, level: &str, logger: &str, message: &str, others: &Map<String, Value>) -> String {
    let mut line = format!("{time} {level:<7} {logger}: {}", one_line(message));
    for (key, value) in others {
        line.push(' ');
        line.push_str(key);
        line.push('=');
        match value {
            Value::String(text) if !needs_quotes(text) => line.push_str(text),
            // JSON's quoting also keeps a text with line ends on one line.
            other => line.push_str(&other.to_string()),
        }
    }
    line
}

fn needs_quotes(text: &str) -> bool {
    text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

fn one_line(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(escaped_control).collect()
}

fn escaped_control(character: char) -> Vec<char> {
    if character.is_control() { character.escape_default().collect() } else { vec![character] }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::clock::ManualClock;

    fn lines_of(format: LogFormat, run: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let settings = LogSettings {
            service: "inference-monitor".to_owned(),
            cluster_id: "gco-eu".to_owned(),
            region: "eu-west-1".to_owned(),
            format,
            ..LogSettings::default()
        };
        let clock = ManualClock::default();
        clock.advance(Duration::from_micros(42));
        let written = lines.clone();
        let layer = LogLayer::new(settings, Arc::new(clock), move |line| {
            written.lock().unwrap().push(line.to_owned());
        });
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), run);
        let lines = lines.lock().unwrap().clone();
        for line in &lines {
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(line.ends_with('\n'));
        }
        lines
    }

    fn json_of(run: impl FnOnce()) -> Value {
        let lines = lines_of(LogFormat::Json, run);
        assert_eq!(lines.len(), 1, "{lines:?}");
        serde_json::from_str(&lines[0]).unwrap()
    }

    #[test]
    fn a_line_has_every_key_of_the_contract() {
        let line = json_of(|| tracing::warn!(target: "gco_monitor::plan", count = 3, "held back"));
        assert_eq!(
            line,
            serde_json::json!({
                "timestamp": "2025-01-01T00:00:00.000042+00:00",
                "level": "WARNING",
                "logger": "gco_monitor::plan",
                "message": "held back",
                "service": "inference-monitor",
                "cluster_id": "gco-eu",
                "region": "eu-west-1",
                "count": 3,
            })
        );
    }

    #[test]
    fn fields_of_the_spans_around_an_event_are_included_and_inner_ones_win() {
        let line = json_of(|| {
            let outer = tracing::info_span!("pass", endpoint = "llama", action = "plan", later = 0);
            let _outer = outer.enter();
            let inner = tracing::info_span!("write", action = "create");
            let _inner = inner.enter();
            outer.record("later", 7);
            tracing::info!(kind = "Deployment", "wrote");
        });
        assert_eq!(line["endpoint"], "llama");
        assert_eq!(line["action"], "create");
        assert_eq!(line["kind"], "Deployment");
        assert_eq!(line["later"], 7);
    }

    #[test]
    fn text_with_line_ends_stays_on_one_line() {
        for format in [LogFormat::Json, LogFormat::Text] {
            let lines = lines_of(format, || tracing::info!(detail = "c\r\nd", "a\nb"));
            assert_eq!(lines.len(), 1);
        }
        let line = json_of(|| tracing::info!(detail = "c\nd", "a\nb"));
        assert_eq!((&line["message"], &line["detail"]), (&"a\nb".into(), &"c\nd".into()));
    }

    #[test]
    fn an_error_field_is_bounded_and_tells_its_causes_once() {
        let line = json_of(|| tracing::error!(error = "x".repeat(100_000), "failed"));
        assert_eq!(line["error"].as_str().unwrap().chars().count(), 1_024);

        #[derive(Debug, thiserror::Error)]
        #[error("reading the table")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("connection refused"));
        let line = json_of(|| {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::error!(error, "failed");
        });
        assert_eq!(line["error"], "reading the table: connection refused");
    }

    #[test]
    fn a_field_cannot_overwrite_a_key_of_the_contract() {
        let line = json_of(|| tracing::info!(service = "other", level = 9, "x"));
        assert_eq!(line["service"], "inference-monitor");
        assert_eq!(line["level"], "INFO");
        assert_eq!((&line["field_service"], &line["field_level"]), (&"other".into(), &9.into()));
    }

    #[test]
    fn values_keep_their_types() {
        let line = json_of(|| {
            tracing::info!(whole = -3, part = 0.5, on = true, none = f64::INFINITY, shown = ?[1], "x");
        });
        assert_eq!((&line["whole"], &line["part"]), (&(-3).into(), &0.5.into()));
        assert_eq!((&line["on"], &line["none"]), (&true.into(), &"inf".into()));
        assert_eq!(line["shown"], "[1]");
    }

    #[test]
    fn a_plain_line_is_for_people() {
        let lines = lines_of(LogFormat::Text, || {
            tracing::info!(target: "gco", endpoint = "llama", why = "no room", count = 2, "held\tback");
        });
        assert_eq!(
            lines[0],
            "2025-01-01T00:00:00.000042+00:00 INFO    gco: held\\tback count=2 endpoint=llama \
             why=\"no room\"\n"
        );
    }
}
