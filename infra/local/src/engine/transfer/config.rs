//! `--kv-transfer-config`, the JSON by which vLLM is told whom it hands its KV cache to.

use serde_json::Value;

/// How KV moves from one engine to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// `MooncakeConnector`: decode asks the prefill engine that the request names, under a transfer id that whoever sent
    /// both requests made up; both may be sent at once.
    Mooncake,
    /// `NixlConnector`: prefill answers with what decode has to be told.
    Nixl,
}

/// `kv_role`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferRole {
    /// `kv_producer`: prefill.
    Producer,
    /// `kv_consumer`: decode.
    Consumer,
    /// `kv_both`.
    Both,
}

impl TransferRole {
    /// Whether KV is kept for others.
    #[must_use]
    pub fn produces(self) -> bool {
        self != Self::Consumer
    }

    /// Whether KV is fetched from others.
    #[must_use]
    pub fn consumes(self) -> bool {
        self != Self::Producer
    }
}

/// `kv_load_failure_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoadFailure {
    /// `fail`, the default: the request ends with an error.
    Fail,
    /// `recompute`: the prompt is computed here after all.
    Recompute,
}

/// What the engine takes from `--kv-transfer-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferConfig {
    /// How KV moves.
    pub connector: Connector,
    /// In which direction.
    pub role: TransferRole,
    /// What a request comes to whose KV cannot be had.
    pub on_load_failure: OnLoadFailure,
    /// `engine_id`; a fresh one in every process when absent.
    pub engine_id: Option<String>,
}

impl TransferConfig {
    /// Reads the flag's value. `None` for a connector that is not simulated (a store's, for example): the engine then
    /// takes no part in transfers. Of a `MultiConnector` the first simulated child counts.
    ///
    /// # Errors
    ///
    /// With what is allowed, when the value is no JSON object, or a simulated connector lacks a usable role or policy.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        let Ok(Value::Object(config)) = serde_json::from_str(text) else { return Err("a JSON object") };
        Self::of(&Value::Object(config))
    }

    fn of(config: &Value) -> Result<Option<Self>, &'static str> {
        let connector = match config["kv_connector"].as_str() {
            Some("MooncakeConnector") => Connector::Mooncake,
            Some("NixlConnector") => Connector::Nixl,
            Some("MultiConnector") => {
                let children = config["kv_connector_extra_config"]["connectors"].as_array();
                for child in children.into_iter().flatten() {
                    if let Some(found) = Self::of(child)? {
                        return Ok(Some(found));
                    }
                }
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let role = match config["kv_role"].as_str() {
            Some("kv_producer") => TransferRole::Producer,
            Some("kv_consumer") => TransferRole::Consumer,
            Some("kv_both") => TransferRole::Both,
            _ => return Err("a JSON object whose kv_role is kv_producer, kv_consumer or kv_both"),
        };
        let on_load_failure = match config.get("kv_load_failure_policy").map(Value::as_str) {
            None | Some(Some("fail")) => OnLoadFailure::Fail,
            Some(Some("recompute")) => OnLoadFailure::Recompute,
            Some(_) => return Err("a JSON object whose kv_load_failure_policy is fail or recompute"),
        };
        let engine_id = config["engine_id"].as_str().map(str::to_owned);
        Ok(Some(Self { connector, role, on_load_failure, engine_id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_of_both_connectors_are_read() {
        let read = |text: &str| TransferConfig::parse(text).unwrap().map(|config| (config.connector, config.role));
        assert_eq!(
            read(r#"{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}"#),
            Some((Connector::Mooncake, TransferRole::Producer))
        );
        assert_eq!(
            read(r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#),
            Some((Connector::Nixl, TransferRole::Both))
        );
        assert_eq!(read(r#"{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}"#), None);
        assert_eq!(
            read(
                r#"{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[
                    {"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"},
                    {"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"}]}}"#
            ),
            Some((Connector::Mooncake, TransferRole::Consumer))
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_is_allowed() {
        for (text, allowed) in [
            ("kv_both", "a JSON object"),
            ("[]", "a JSON object"),
            (r#"{"kv_connector":"NixlConnector"}"#, "kv_role"),
            (r#"{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":1}"#, "policy"),
        ] {
            assert!(TransferConfig::parse(text).unwrap_err().contains(allowed), "{text}");
        }
    }
}
