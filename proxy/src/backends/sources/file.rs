//! The backends file, for engines that were started by hand: one JSON object, watched.
//!
//! ```json
//! {"prefill": [{"url": "http://127.0.0.1:23001", "bootstrap": "http://127.0.0.1:23002"}],
//!  "decode": [{"url": "http://127.0.0.1:23003"}, {"url": "http://127.0.0.1:23004", "state": "terminating"}]}
//! ```
//!
//! `dial` says where an engine listens when that is not at its URL's address, `key` is its identity (its URL if there is
//! none), `state` is `ready`, `not-ready` or `terminating`. A file that cannot be read or understood changes nothing: the
//! last good one counts, and the log says what is wrong.

use gco_runtime::text::bounded;
use serde_json::{Map, Value};

use super::{dial_of, fixed};
use crate::backends::{Availability, BackendKey, Bootstrap, Description, Role};

/// What a file names, per role (prefill first).
pub(super) type Named = [Vec<(Description, Availability)>; 2];

/// How much of a foreign text an error shows.
const SHOWN_CHARACTERS: usize = 120;

/// Reads a backends file.
///
/// # Errors
/// With the first thing that is wrong, and what is allowed.
pub(super) fn parse(text: &[u8]) -> Result<Named, String> {
    let file: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| format!("not a JSON object: {error}"))?;
    let mut named: Named = [Vec::new(), Vec::new()];
    for (name, engines) in &file {
        let role = Role::ALL.into_iter().find(|role| role.word() == name);
        let shown = bounded(name, SHOWN_CHARACTERS);
        let role = role.ok_or_else(|| format!("{shown:?}: only prefill and decode are known"))?;
        let engines = engines.as_array().ok_or_else(|| format!("{shown}: not a list"))?;
        for (place, engine) in engines.iter().enumerate() {
            let (description, availability) =
                read(role, engine).map_err(|wrong| format!("{shown}[{place}]: {wrong}"))?;
            if named[role.index()].iter().any(|(other, _)| other.key == description.key) {
                return Err(format!("{shown}[{place}]: {} is named twice", description.key));
            }
            named[role.index()].push((description, availability));
        }
    }
    Ok(named)
}

fn read(role: Role, engine: &Value) -> Result<(Description, Availability), String> {
    let engine = engine.as_object().ok_or("not an object")?;
    const KNOWN: [&str; 5] = ["url", "bootstrap", "dial", "key", "state"];
    if let Some(name) = engine.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(format!("{:?}: only {} are known", bounded(name, SHOWN_CHARACTERS), KNOWN.join(", ")));
    }
    let text = |name: &str| match engine.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("{name}: not a text")),
    };
    let url = text("url")?.ok_or("url: http://host:port is needed")?;
    let mut described = fixed::backends(role, &[url.to_owned()], None).map_err(|error| format!("url: {error}"))?;
    let mut description = described.pop().ok_or("url: http://host:port is needed")?;
    if let Some(dial) = text("dial")? {
        description.dial = dial_of(dial).ok_or("dial: not host:port")?;
    }
    if let Some(key) = text("key")? {
        description.key = BackendKey::new(key);
    }
    if let Some(bootstrap) = text("bootstrap")? {
        if role != Role::Prefill {
            return Err("bootstrap: only prefill engines have one".to_owned());
        }
        let bare = bootstrap.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let dial = bare.and_then(dial_of).ok_or("bootstrap: not http://host:port")?;
        description.bootstrap = Some(Bootstrap { address: bootstrap.trim_end_matches('/').to_owned(), dial });
    }
    let words = [Availability::Ready, Availability::NotReady, Availability::Terminating];
    let availability = match text("state")? {
        None => Availability::Ready,
        Some(word) => {
            let known = words.into_iter().find(|availability| availability.word() == word);
            known.ok_or("state: only ready, not-ready and terminating are known")?
        }
    };
    Ok((description, availability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_read_with_where_they_listen() {
        let [prefill, decode] = parse(
            br#"{"prefill": [{"url": "http://192.0.2.7:8000/", "dial": "127.0.0.1:23001", "key": "uid-7",
                "bootstrap": "http://127.0.0.1:23002"}],
                "decode": [{"url": "http://127.0.0.1:23003"}, {"url": "http://127.0.0.1:23004", "state": "terminating"}]}"#,
        )
        .unwrap();
        let (description, availability) = &prefill[0];
        assert_eq!(*availability, Availability::Ready);
        assert_eq!(description.authority, "192.0.2.7:8000");
        assert_eq!(description.dial.to_string(), "127.0.0.1:23001");
        assert_eq!(description.key.as_str(), "uid-7");
        assert_eq!(description.bootstrap.as_ref().unwrap().address, "http://127.0.0.1:23002");
        assert_eq!(decode[0].0.key.as_str(), "http://127.0.0.1:23003");
        assert_eq!(decode[1].1, Availability::Terminating);
    }

    #[test]
    fn a_role_that_is_not_named_has_no_engines() {
        assert_eq!(parse(b"{}").unwrap(), [Vec::new(), Vec::new()]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, wrong) in [
            ("[]", "not a JSON object"),
            (r#"{"store": []}"#, "only prefill and decode"),
            (r#"{"decode": {}}"#, "decode: not a list"),
            (r#"{"decode": ["http://a:1"]}"#, "decode[0]: not an object"),
            (r#"{"decode": [{}]}"#, "decode[0]: url"),
            (r#"{"decode": [{"url": 7}]}"#, "url: not a text"),
            (r#"{"decode": [{"url": "https://a:1"}]}"#, "TLS to engines"),
            (r#"{"decode": [{"url": "http://a:1", "bootstrap": "http://a:2"}]}"#, "only prefill engines"),
            (r#"{"prefill": [{"url": "http://a:1", "bootstrap": "a:2"}]}"#, "bootstrap: not http://host:port"),
            (r#"{"prefill": [{"url": "http://a:1", "dial": "a"}]}"#, "dial: not host:port"),
            (r#"{"prefill": [{"url": "http://a:1", "state": "up"}]}"#, "state: only"),
            (r#"{"prefill": [{"url": "http://a:1", "weight": 1}]}"#, "\"weight\": only"),
            (
                r#"{"prefill": [{"url": "http://a:1"}, {"url": "http://a:1/"}]}"#,
                "prefill[1]: http://a:1 is named twice",
            ),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
