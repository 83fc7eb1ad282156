//! What a request's `kv_transfer_params` make an engine do, including the ways in which they end it: real engines (vLLM
//! 0.26 to 0.33) do not defend themselves against incomplete or misdirected parameters, and nor does this one.

use serde_json::Value;

use super::config::{Connector, TransferConfig};

/// What is to happen with a request's KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// Nothing: the prompt is computed here and its KV is nobody else's.
    None,
    /// Prefill: the KV is kept under this transfer id, or, for NIXL, under the request's own identifier.
    Keep {
        /// The id that decode will ask with; made here when absent.
        transfer_id: Option<String>,
    },
    /// Decode: the KV is fetched.
    Pull(Pull),
    /// Decode was told to fetch and not from whom: the request waits for ever, and when it goes away or is refused, the
    /// clean-up looks for the missing key.
    WaitForEver {
        /// Whether that clean-up ends the engine. It does when the transfer id is there and another key is not.
        ends_engine: bool,
    },
    /// An assertion fails: status 500, and the engine ends.
    EndsEngine,
}

/// Where a decode request's KV is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) source: Source,
    pub(crate) engine_id: String,
    pub(crate) transfer_id: String,
    /// What prefill found in its own cache, when whoever sent the request says so.
    pub(crate) remote_cached_tokens: Option<usize>,
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A bootstrap server, which knows where the engine's worker is.
    Bootstrap(String),
    /// The worker itself.
    SideChannel {
        /// A name or an address.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Handover {
    /// Reads the member as the connector of this engine does. `Err` when it is no object, which the server refuses before
    /// the connector sees it.
    pub(crate) fn read(parameters: Option<&Value>, config: &TransferConfig) -> Result<Self, NotAnObject> {
        let parameters = match parameters {
            None | Some(Value::Null) => return Ok(Self::None),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => return Err(NotAnObject),
        };
        let asked = |name: &str| parameters.get(name).is_some_and(is_true);
        let text = |name: &str| parameters.get(name).and_then(Value::as_str).map(str::to_owned);
        if asked("do_remote_prefill") {
            if !config.role.consumes() {
                return Ok(Self::EndsEngine);
            }
            return Ok(match config.connector {
                Connector::Mooncake => {
                    let transfer_id = text("transfer_id");
                    match (text("remote_bootstrap_addr"), text("remote_engine_id"), transfer_id) {
                        (Some(address), Some(engine_id), Some(transfer_id)) => Self::Pull(Pull {
                            source: Source::Bootstrap(address),
                            engine_id,
                            transfer_id,
                            remote_cached_tokens: tokens(parameters.get("remote_prefill_cached_tokens")),
                        }),
                        (_, _, transfer_id) => Self::WaitForEver { ends_engine: transfer_id.is_some() },
                    }
                }
                Connector::Nixl => {
                    let port = parameters.get("remote_port").and_then(Value::as_u64);
                    let port = port.and_then(|port| u16::try_from(port).ok());
                    let has_blocks = parameters.get("remote_block_ids").is_some_and(Value::is_array);
                    match (text("remote_host"), port, text("remote_engine_id"), text("remote_request_id")) {
                        (Some(host), Some(port), Some(engine_id), Some(transfer_id)) if has_blocks => {
                            Self::Pull(Pull {
                                source: Source::SideChannel { host, port },
                                engine_id,
                                transfer_id,
                                remote_cached_tokens: tokens(parameters.get("remote_prefill_cached_tokens")),
                            })
                        }
                        _ => Self::EndsEngine,
                    }
                }
            });
        }
        if asked("do_remote_decode") {
            return Ok(match (config.connector, text("transfer_id")) {
                (_, Some(_)) if !config.role.produces() => Self::EndsEngine,
                // A warning in the log, and nothing is kept.
                (Connector::Mooncake, None) => Self::None,
                (Connector::Mooncake, transfer_id) => Self::Keep { transfer_id },
                (Connector::Nixl, _) if config.role.produces() => Self::Keep { transfer_id: None },
                (Connector::Nixl, _) => Self::None,
            });
        }
        Ok(Self::None)
    }

    /// Whether a refusal of the request ends the engine.
    pub(crate) fn ends_engine_when_refused(&self) -> bool {
        matches!(self, Self::WaitForEver { ends_engine: true })
    }
}

/// `kv_transfer_params` has another type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAnObject;

/// What Python takes for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

fn tokens(value: Option<&Value>) -> Option<usize> {
    value.and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::config::{OnLoadFailure, TransferRole};
    use super::*;

    fn read(connector: Connector, role: TransferRole, parameters: &Value) -> Handover {
        let config = TransferConfig { connector, role, on_load_failure: OnLoadFailure::Fail, engine_id: None };
        Handover::read(Some(parameters), &config).unwrap()
    }

    #[test]
    fn a_complete_set_is_kept_by_prefill_and_fetched_by_decode() {
        let keep = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-1"});
        assert_eq!(
            read(Connector::Mooncake, TransferRole::Producer, &keep),
            Handover::Keep { transfer_id: Some("xfer-1".to_owned()) }
        );
        let pull = json!({
            "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": "xfer-1", "remote_engine_id": "e",
            "remote_bootstrap_addr": "http://127.0.0.1:8998",
        });
        for role in [TransferRole::Consumer, TransferRole::Both] {
            assert!(matches!(read(Connector::Mooncake, role, &pull), Handover::Pull(_)));
        }
    }

    #[test]
    fn an_incomplete_set_waits_for_ever_and_ends_the_engine_when_only_the_transfer_id_is_there() {
        let whole = json!({
            "do_remote_prefill": true, "transfer_id": "x", "remote_engine_id": "e", "remote_bootstrap_addr": "http://h:1",
        });
        for (missing, ends_engine) in
            [("transfer_id", false), ("remote_engine_id", true), ("remote_bootstrap_addr", true)]
        {
            let mut part = whole.clone();
            part.as_object_mut().unwrap().remove(missing);
            let read = read(Connector::Mooncake, TransferRole::Consumer, &part);
            assert_eq!(read, Handover::WaitForEver { ends_engine }, "without {missing}");
            assert_eq!(read.ends_engine_when_refused(), ends_engine);
        }
    }

    #[test]
    fn parameters_for_the_other_role_end_the_engine() {
        let keep = json!({"do_remote_decode": true, "transfer_id": "x"});
        assert_eq!(read(Connector::Mooncake, TransferRole::Consumer, &keep), Handover::EndsEngine);
        let pull = json!({"do_remote_prefill": true});
        assert_eq!(read(Connector::Mooncake, TransferRole::Producer, &pull), Handover::EndsEngine);
        assert_eq!(read(Connector::Nixl, TransferRole::Both, &pull), Handover::EndsEngine);
    }

    #[test]
    fn a_prefill_without_a_transfer_id_keeps_nothing_and_nixl_makes_its_own() {
        let keep = json!({"do_remote_decode": true});
        assert_eq!(read(Connector::Mooncake, TransferRole::Producer, &keep), Handover::None);
        assert_eq!(read(Connector::Nixl, TransferRole::Both, &keep), Handover::Keep { transfer_id: None });
    }

    #[test]
    fn parameters_that_ask_for_nothing_and_null_are_a_plain_request() {
        for parameters in [json!({}), json!({"transfer_id": "x"}), json!({"do_remote_prefill": false}), Value::Null] {
            assert_eq!(read(Connector::Mooncake, TransferRole::Consumer, &parameters), Handover::None);
        }
        let config = TransferConfig {
            connector: Connector::Mooncake,
            role: TransferRole::Both,
            on_load_failure: OnLoadFailure::Fail,
            engine_id: None,
        };
        assert_eq!(Handover::read(Some(&json!([1])), &config), Err(NotAnObject));
    }
}
