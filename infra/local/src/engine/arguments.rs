//! The argument list of a model server, read the way a real one reads it: the last spelling of a
//! flag wins, `--flag value` and `--flag=value` are the same, underscores stand for hyphens, a flag
//! may take several values, and what is not known is kept and shown rather than refused.

use std::fmt;
use std::time::Duration;

use super::transfer::TransferConfig;

/// What the engine takes from its argument list.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineArguments {
    /// Where to listen, on loopback whatever `--host` says.
    pub port: u16,
    /// `--model`, `--model-id`, or the first argument without a flag.
    pub model: String,
    /// `--served-model-name`; the model itself when the flag is absent. Never empty.
    pub served_names: Vec<String>,
    /// `--root-path` without a trailing slash; empty when absent.
    pub root_path: String,
    /// `--load-seconds`, a flag of the simulated engine only.
    pub load: Option<Duration>,
    /// `--max-model-len`: the most tokens that prompt and answer may have together.
    pub maximum_model_tokens: usize,
    /// `--max-num-seqs`: the most sequences that are generated at once; others wait.
    pub maximum_sequences: usize,
    /// `--kv-transfer-config`; `None` when it is absent or names a connector that is not simulated.
    pub transfer: Option<TransferConfig>,
    /// `--data-parallel-size`: how many engines this process is.
    pub data_parallel_size: usize,
    /// `--enable-prompt-tokens-details`: whether an answer says how much of its prompt was not computed.
    pub prompt_tokens_details: bool,
    /// Every flag as it was given, in order, also those without a meaning here.
    pub declared: Vec<DeclaredFlag>,
}

/// One flag of the argument list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredFlag {
    /// With its hyphens; empty for arguments before the first flag.
    pub flag: String,
    /// What followed it.
    pub values: Vec<String>,
}

/// A flag that the engine knows has a value that it cannot use.
#[derive(Debug, PartialEq, Eq)]
pub struct ArgumentError {
    flag: String,
    value: String,
    expected: &'static str,
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "argument {}: {:?} is not {}", self.flag, self.value, self.expected)
    }
}

impl std::error::Error for ArgumentError {}

impl EngineArguments {
    /// Reads the arguments that follow the program's name.
    ///
    /// # Errors
    ///
    /// When a flag that the engine knows has no usable value.
    pub fn parse<I, S>(arguments: I) -> Result<Self, ArgumentError>
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let declared = declared_flags(arguments.into_iter().map(Into::into));
        let last =
            |names: &[&str]| declared.iter().rev().find(|one| names.iter().any(|name| same_flag(&one.flag, name)));
        let last_value = |names: &[&str]| last(names).and_then(|one| one.values.last().cloned());

        let positional = last(&[""]).map(|one| one.values.as_slice()).unwrap_or_default();
        // `vllm serve MODEL` names the model without a flag; the sub-command comes with it when
        // the image's entry point is the bare program.
        let positional_model = positional.iter().find(|value| !matches!(value.as_str(), "serve" | "vllm")).cloned();
        let model = last_value(&["--model", "--model-id", "--model-path"])
            .or(positional_model)
            .unwrap_or_else(|| "gco/simulated".to_owned());
        let served_names = last(&["--served-model-name"])
            .map(|one| one.values.clone())
            .filter(|names| !names.is_empty())
            .unwrap_or_else(|| vec![model.clone()]);

        let root_path = last_value(&["--root-path"]).unwrap_or_default();
        let root_path = root_path.trim_end_matches('/').to_owned();
        let usable = root_path.is_empty() || (root_path.starts_with('/') && !root_path.contains(['{', '}', '*', '?']));
        if !usable {
            return Err(error("--root-path", &root_path, "a path that starts with a slash"));
        }

        let load = last_value(&["--load-seconds"])
            .map(|value| {
                let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                seconds.ok_or_else(|| error("--load-seconds", &value, "a number of seconds"))
            })
            .transpose()?;

        let transfer = match last_value(&["--kv-transfer-config"]) {
            Some(text) => {
                TransferConfig::parse(&text).map_err(|expected| error("--kv-transfer-config", &text, expected))?
            }
            None => None,
        };

        Ok(Self {
            transfer,
            data_parallel_size: number(
                last_value(&["--data-parallel-size", "-dp"]),
                "--data-parallel-size",
                "a number of engines",
            )?
            .filter(|count| (1..=64).contains(count))
            .unwrap_or(1),
            prompt_tokens_details: last(&["--enable-prompt-tokens-details"]).is_some(),
            port: number(last_value(&["--port"]), "--port", "a port number")?.unwrap_or(8000),
            load,
            maximum_model_tokens: number(
                last_value(&["--max-model-len", "--max-total-tokens"]),
                "--max-model-len",
                "a number of tokens",
            )?
            .unwrap_or(8192),
            maximum_sequences: number(last_value(&["--max-num-seqs"]), "--max-num-seqs", "a number of sequences")?
                .filter(|count| *count > 0)
                .unwrap_or(256),
            model,
            served_names,
            root_path,
            declared,
        })
    }
}

/// Whether two spellings name one flag: argument parsers of model servers take `_` for `-`.
fn same_flag(given: &str, known: &str) -> bool {
    given.len() == known.len() && given.chars().map(|c| if c == '_' { '-' } else { c }).eq(known.chars())
}

fn error(flag: &str, value: &str, expected: &'static str) -> ArgumentError {
    ArgumentError { flag: flag.to_owned(), value: value.to_owned(), expected }
}

fn number<T: std::str::FromStr>(
    value: Option<String>,
    flag: &str,
    expected: &'static str,
) -> Result<Option<T>, ArgumentError> {
    value.map(|text| text.parse().map_err(|_| error(flag, &text, expected))).transpose()
}

fn declared_flags(arguments: impl Iterator<Item = String>) -> Vec<DeclaredFlag> {
    let mut declared: Vec<DeclaredFlag> = Vec::new();
    for argument in arguments {
        if is_flag(&argument) {
            // Only a long flag carries its value after an equals sign.
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) if argument.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
                _ => (argument, None),
            };
            declared.push(DeclaredFlag { flag, values: value.into_iter().collect() });
        } else if let Some(open) = declared.last_mut() {
            open.values.push(argument);
        } else {
            declared.push(DeclaredFlag { flag: String::new(), values: vec![argument] });
        }
    }
    declared
}

/// A hyphen starts a flag, unless what follows is a negative number.
fn is_flag(argument: &str) -> bool {
    argument.len() > 1 && argument.starts_with('-') && argument.parse::<f64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_spelling_of_a_flag_wins() {
        let read = EngineArguments::parse(["--port", "8000", "--port=9001"]).unwrap();
        assert_eq!(read.port, 9001);
    }

    #[test]
    fn unknown_flags_are_kept_with_all_their_values() {
        let read = EngineArguments::parse([
            "--tensor-parallel-size",
            "8",
            "--enable-prefix-caching",
            "--kv-transfer-config",
            "{\"kv_role\": \"kv_both\"}",
            "--seed",
            "-1",
            "--tool",
            "a",
            "b",
        ])
        .unwrap();
        let seen: Vec<(&str, Vec<&str>)> = read
            .declared
            .iter()
            .map(|one| (one.flag.as_str(), one.values.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(
            seen,
            [
                ("--tensor-parallel-size", vec!["8"]),
                ("--enable-prefix-caching", vec![]),
                ("--kv-transfer-config", vec!["{\"kv_role\": \"kv_both\"}"]),
                ("--seed", vec!["-1"]),
                ("--tool", vec!["a", "b"]),
            ]
        );
    }

    #[test]
    fn the_model_is_served_under_its_own_name_or_the_names_given() {
        let plain = EngineArguments::parse(["--model", "org/llama"]).unwrap();
        assert_eq!(plain.served_names, ["org/llama"]);
        let named = EngineArguments::parse(["serve", "org/llama", "--served_model_name", "a", "b"]).unwrap();
        assert_eq!(named.model, "org/llama");
        assert_eq!(named.served_names, ["a", "b"]);
    }

    #[test]
    fn a_root_path_loses_its_trailing_slash_and_must_start_with_one() {
        let read = EngineArguments::parse(["--root-path", "/inference/demo/"]).unwrap();
        assert_eq!(read.root_path, "/inference/demo");
        let refused = EngineArguments::parse(["--root-path", "inference"]).unwrap_err();
        assert_eq!(refused.to_string(), "argument --root-path: \"inference\" is not a path that starts with a slash");
    }

    #[test]
    fn a_port_that_is_no_number_is_refused_by_name() {
        let refused = EngineArguments::parse(["--port", "http"]).unwrap_err();
        assert_eq!(refused.to_string(), "argument --port: \"http\" is not a port number");
    }
}
