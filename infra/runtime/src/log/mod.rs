//! Logs: one JSON object per line on standard output.
//!
//! | Key | Meaning |
//! |---|---|
//! | `timestamp` | UTC, ISO-8601 with microseconds and `+00:00` |
//! | `level` | `DEBUG`, `INFO`, `WARNING`, `ERROR` |
//! | `logger` | the event's target: the module that wrote it |
//! | `message` | what happened |
//! | `service`, `cluster_id`, `region` | which process of which cluster |
//! | anything else | the fields of the event and of the spans around it (`endpoint`, `action`, …) |
//!
//! An event's own field wins over a span's, an inner span's over an outer one's. A field with the
//! name of a key above is written as `field_<name>`, so that no event can disguise itself.

mod fields;
mod layer;

use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock::{Clock, SystemClock};
use crate::environment::EnvironmentReader;
pub use layer::LogLayer;

/// Which form a log line has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// A plain line for people.
    Text,
}

/// The least severe level that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything that our own crates say.
    Debug,
    /// What a person following along wants to see.
    #[default]
    Info,
    /// What may need attention.
    Warning,
    /// What failed.
    Error,
}

/// The names of log levels that are understood: Python's, and the shorter `WARN`.
const LEVEL_NAMES: [(&str, LogLevel); 6] = [
    ("DEBUG", LogLevel::Debug),
    ("INFO", LogLevel::Info),
    ("WARNING", LogLevel::Warning),
    ("WARN", LogLevel::Warning),
    ("ERROR", LogLevel::Error),
    ("CRITICAL", LogLevel::Error),
];

const FORMAT_NAMES: [(&str, LogFormat); 2] = [("json", LogFormat::Json), ("text", LogFormat::Text)];

/// A level name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a log level; allowed are DEBUG, INFO, WARNING, ERROR, CRITICAL")]
pub struct UnknownLogLevel;

impl FromStr for LogLevel {
    type Err = UnknownLogLevel;

    fn from_str(name: &str) -> Result<Self, UnknownLogLevel> {
        let found = LEVEL_NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.trim()));
        found.map(|(_, level)| *level).ok_or(UnknownLogLevel)
    }
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Debug => LevelFilter::DEBUG,
            Self::Info => LevelFilter::INFO,
            Self::Warning => LevelFilter::WARN,
            Self::Error => LevelFilter::ERROR,
        }
    }
}

/// What every line says about the process, and which lines there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The binary's role, such as `inference-monitor`.
    pub service: String,
    /// The cluster that it serves.
    pub cluster_id: String,
    /// The region that it serves.
    pub region: String,
    /// The form of a line.
    pub format: LogFormat,
    /// The least severe level written. Libraries never go below `INFO`, whatever is set: what they
    /// say when debugging may hold request headers.
    pub level: LogLevel,
}

impl LogSettings {
    /// Settings with the format and level of `LOG_FORMAT` (`json`, `text`) and `LOG_LEVEL`.
    pub fn read(reader: &mut EnvironmentReader<'_>, service: &str, cluster_id: &str, region: &str) -> Self {
        Self {
            service: service.to_owned(),
            cluster_id: cluster_id.to_owned(),
            region: region.to_owned(),
            format: reader.choice("LOG_FORMAT", LogFormat::Json, &FORMAT_NAMES),
            level: reader.choice("LOG_LEVEL", LogLevel::Info, &LEVEL_NAMES),
        }
    }

    /// Which targets pass at which level.
    pub fn targets(&self) -> Targets {
        let own = self.level.filter();
        Targets::new().with_default(own.min(LevelFilter::INFO)).with_target("gco", own)
    }
}

/// The process already has a log subscriber.
#[derive(Debug, thiserror::Error)]
#[error("the log was set up before")]
pub struct LogAlreadySet;

/// Sends the process's log to standard output.
///
/// # Errors
/// When it was set up before.
pub fn init(settings: LogSettings) -> Result<(), LogAlreadySet> {
    let targets = settings.targets();
    let layer = LogLayer::new(settings, Arc::new(SystemClock) as Arc<dyn Clock>, |line| {
        // A closed standard output must not end a server; there is nowhere to report it either.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    });
    let registry = tracing_subscriber::registry().with(targets).with(layer);
    registry.try_init().map_err(|_| LogAlreadySet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    #[test]
    fn python_level_names_are_understood() {
        assert_eq!("warning".parse(), Ok(LogLevel::Warning));
        assert_eq!(" CRITICAL ".parse(), Ok(LogLevel::Error));
        assert_eq!("loud".parse::<LogLevel>(), Err(UnknownLogLevel));
    }

    #[test]
    fn format_and_level_come_from_the_environment() {
        let environment = Environment::from_pairs([("LOG_FORMAT", "text"), ("LOG_LEVEL", "debug")]);
        let mut reader = environment.reader();
        let settings = LogSettings::read(&mut reader, "s", "c", "r");
        assert_eq!((settings.format, settings.level), (LogFormat::Text, LogLevel::Debug));
        assert_eq!(reader.finish(), Ok(()));

        let environment = Environment::from_pairs([("LOG_FORMAT", "xml"), ("LOG_LEVEL", "loud")]);
        let mut reader = environment.reader();
        let settings = LogSettings::read(&mut reader, "s", "c", "r");
        assert_eq!((settings.format, settings.level), (LogFormat::Json, LogLevel::Info));
        assert_eq!(reader.finish().unwrap_err().problems.len(), 2);
    }

    #[test]
    fn debugging_concerns_our_own_crates_only() {
        let mut settings = LogSettings { level: LogLevel::Debug, ..LogSettings::default() };
        let targets = settings.targets();
        assert!(targets.would_enable("gco_monitor::plan", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("hyper::proto", &tracing::Level::DEBUG));
        assert!(targets.would_enable("hyper::proto", &tracing::Level::INFO));
        settings.level = LogLevel::Error;
        let targets = settings.targets();
        assert!(!targets.would_enable("gco_monitor", &tracing::Level::WARN));
        assert!(!targets.would_enable("hyper", &tracing::Level::WARN));
    }
}
