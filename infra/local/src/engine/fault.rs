//! The ways in which a simulated engine can be told to fail.

use std::fmt;
use std::time::Duration;

/// How this engine fails, if at all.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Fault {
    /// It does not.
    #[default]
    None,
    /// It ends at once with this exit code, as an engine does that finds no device.
    CrashAtStart {
        /// 1 to 255.
        exit_code: u8,
    },
    /// It ends with this exit code some time after it started to serve.
    CrashAfter {
        /// Counted from the start of the process.
        delay: Duration,
        /// 1 to 255.
        exit_code: u8,
    },
    /// It listens and never becomes healthy.
    NeverHealthy,
    /// It takes this long to load, whatever the settings say.
    SlowLoad {
        /// Counted from the start of the process.
        delay: Duration,
    },
}

impl Fault {
    /// Reads `crash-CODE`, `crash-after-SECONDS-CODE`, `never-healthy` or `slow-load-SECONDS`.
    /// `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let exit_code = |code: &str| code.parse::<u8>().ok().filter(|code| *code > 0);
        let seconds = |text: &str| text.parse::<u64>().ok().map(Duration::from_secs);
        if text == "never-healthy" {
            return Some(Self::NeverHealthy);
        }
        if let Some(rest) = text.strip_prefix("crash-after-") {
            let (delay, code) = rest.split_once('-')?;
            return Some(Self::CrashAfter { delay: seconds(delay)?, exit_code: exit_code(code)? });
        }
        if let Some(rest) = text.strip_prefix("crash-") {
            return Some(Self::CrashAtStart { exit_code: exit_code(rest)? });
        }
        let delay = seconds(text.strip_prefix("slow-load-")?)?;
        Some(Self::SlowLoad { delay })
    }

    /// The fault that a model's name asks for: the last part of the name is `fault-` and what
    /// [`Fault::parse`] reads, for example `sample/fault-crash-3`.
    #[must_use]
    pub fn of_model(model: &str) -> Option<Self> {
        Self::parse(model.rsplit('/').next()?.strip_prefix("fault-")?)
    }
}

impl fmt::Display for Fault {
    /// Writes what [`Fault::parse`] reads; the empty text for no fault.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::CrashAtStart { exit_code } => write!(formatter, "crash-{exit_code}"),
            Self::CrashAfter { delay, exit_code } => {
                write!(formatter, "crash-after-{}-{exit_code}", delay.as_secs())
            }
            Self::NeverHealthy => formatter.write_str("never-healthy"),
            Self::SlowLoad { delay } => write!(formatter, "slow-load-{}", delay.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read_and_nothing_else() {
        assert_eq!(Fault::parse("crash-3"), Some(Fault::CrashAtStart { exit_code: 3 }));
        assert_eq!(
            Fault::parse("crash-after-20-137"),
            Some(Fault::CrashAfter { delay: Duration::from_secs(20), exit_code: 137 })
        );
        assert_eq!(Fault::parse("never-healthy"), Some(Fault::NeverHealthy));
        assert_eq!(Fault::parse("slow-load-90"), Some(Fault::SlowLoad { delay: Duration::from_secs(90) }));
        for text in ["crash-3", "crash-after-20-137", "never-healthy", "slow-load-90"] {
            assert_eq!(Fault::parse(text).unwrap().to_string(), text);
        }
        for unknown in ["", "crash", "crash-0", "crash-256", "crash-after-1", "slow-load", "healthy"] {
            assert_eq!(Fault::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_model_name_may_ask_for_a_fault() {
        assert_eq!(Fault::of_model("sample/fault-never-healthy"), Some(Fault::NeverHealthy));
        assert_eq!(Fault::of_model("fault-crash-9"), Some(Fault::CrashAtStart { exit_code: 9 }));
        assert_eq!(Fault::of_model("org/default-crash-9"), None);
    }
}
