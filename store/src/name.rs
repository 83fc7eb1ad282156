//! Which names an endpoint may have, and which object names follow from one.
use std::collections::BTreeSet;

use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};

/// Suffixes of objects that an endpoint owns besides the one with its own name (contract C.9).
pub const RESERVED_SUFFIXES: [&str; 8] =
    ["-canary", "-prefill", "-decode", "-proxy", "-store", "-admin", "-mooncake", "-pd-proxy"];

/// Prefix that KEDA gives to the HorizontalPodAutoscaler of a ScaledObject.
pub const KEDA_PREFIX: &str = "keda-hpa-";

/// Names of shared objects in the endpoints' namespace (contract C.8.1): an endpoint of this name would fight over them.
pub const RESERVED_NAMES: [&str; 1] = ["mooncake-master"];

/// Longest endpoint name: 63 characters of a label value or Service name minus `-prefill` (8).
pub const LONGEST_NAME_CHARACTERS: usize = 55;

/// Suffixes of Deployments, Services, autoscalers and everything else that is neither ConfigMap nor Secret.
const OBJECT_SUFFIXES: [&str; 6] = ["", "-canary", "-prefill", "-decode", "-proxy", "-store"];
/// Suffixes of ConfigMaps; `-tls-proxy` is made by the newest original monitors.
const CONFIG_MAP_SUFFIXES: [&str; 3] = ["-mooncake", "-pd-proxy", "-tls-proxy"];
/// Suffixes of Secrets.
const SECRET_SUFFIXES: [&str; 1] = ["-admin"];

/// Checks a name for a new endpoint: DNS-1035, at most 55 characters, no reserved suffix (D-5).
///
/// # Errors
/// What is wrong, and what is allowed.
pub fn check_new(name: &str) -> Result<(), FieldProblem> {
    let shown = bounded(name, QUOTED_VALUE_CHARACTERS);
    let problem = |message: String| Err(FieldProblem::new("endpoint_name", message));
    if name.is_empty() {
        return problem("must not be empty".to_owned());
    }
    if name.chars().count() > LONGEST_NAME_CHARACTERS {
        return problem(format!(
            "must be at most {LONGEST_NAME_CHARACTERS} characters, so that derived names fit 63; got {} in \"{shown}\"",
            name.chars().count()
        ));
    }
    if !is_dns_1035(name) {
        return problem(format!(
            "must be lower-case letters, digits and '-', start with a letter and end with a letter or digit, got \"{shown}\""
        ));
    }
    if let Some(suffix) = RESERVED_SUFFIXES.iter().find(|suffix| name.ends_with(*suffix)) {
        return problem(format!(
            "must not end in \"{suffix}\": objects of the endpoint \"{}\" are called so",
            name.strip_suffix(suffix).unwrap_or(name)
        ));
    }
    if name.starts_with(KEDA_PREFIX) {
        return problem(format!("must not start with \"{KEDA_PREFIX}\": KEDA names autoscalers of other endpoints so"));
    }
    if RESERVED_NAMES.contains(&name) {
        return problem(format!("must not be \"{name}\": shared objects are called so"));
    }
    Ok(())
}

/// Whether `text` matches `[a-z]([-a-z0-9]*[a-z0-9])?`.
#[must_use]
pub fn is_dns_1035(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(|last| *last != b'-')
        && bytes.iter().all(|byte| allowed(*byte))
}

/// Whether `text` can be a region's name: `[a-z]([-a-z0-9]*[a-z0-9])?`, at most 63 characters (a label value). AWS's own
/// names are of this shape; names of regions on one machine only need it.
#[must_use]
pub fn is_region(text: &str) -> bool {
    const LONGEST_LABEL_VALUE: usize = 63;
    text.len() <= LONGEST_LABEL_VALUE && is_dns_1035(text)
}

/// Whether objects of the endpoints `one` and `other` could share a kind and a name. Never for an endpoint and itself.
///
/// Compared within three groups of kinds (ConfigMaps; Secrets; everything else), so that `chat` and `chat-pd` get along
/// although a ConfigMap of the first is called like a Deployment of the second: `chat-pd-proxy`.
#[must_use]
pub fn collide(one: &str, other: &str) -> bool {
    // A monitor asks this of every pair of rows, so nearly all answers have to be cheap.
    one != other && may_collide(one, other) && share_a_name(one, other)
}

/// Necessary for a shared object name: one name begins with the other, or one is about as the prefix of KEDA is.
fn may_collide(one: &str, other: &str) -> bool {
    let like_keda = |name: &str| name.starts_with(KEDA_PREFIX) || KEDA_PREFIX.starts_with(name);
    one.starts_with(other) || other.starts_with(one) || like_keda(one) || like_keda(other)
}

/// Whether an object name of `one` is one of `other`, by making all of them.
fn share_a_name(one: &str, other: &str) -> bool {
    let group = |name: &str, suffixes: &[&str]| -> BTreeSet<String> {
        suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect()
    };
    let objects = |name: &str| {
        let mut names = group(name, &OBJECT_SUFFIXES);
        names.extend(["", "-prefill", "-decode"].map(|suffix| format!("{KEDA_PREFIX}{name}{suffix}")));
        names
    };
    !objects(one).is_disjoint(&objects(other))
        || !group(one, &CONFIG_MAP_SUFFIXES).is_disjoint(&group(other, &CONFIG_MAP_SUFFIXES))
        || !group(one, &SECRET_SUFFIXES).is_disjoint(&group(other, &SECRET_SUFFIXES))
}

/// Those of `others` that `name` must yield to: their objects could collide with those of `name`, and they are the shorter
/// name. A derived name is always longer than the one it derives from, so of `a` and `a-canary` only the second yields: a
/// row that comes later cannot stop an endpoint that serves (D-5).
pub fn yields_to<'a>(name: &str, others: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    others.into_iter().filter(|other| other.len() <= name.len() && collide(name, other)).collect()
}

/// Those of `others` whose objects could collide with those of `name`; `name` itself is passed over.
pub fn colliding<'a>(name: &str, others: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    others.into_iter().filter(|other| collide(name, other)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_accepted() {
        for name in ["a", "chat", "chat-small", "qa-llama-3", "my-model-7", "chat-pd", &"a".repeat(55)] {
            assert_eq!(check_new(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_break_a_rule_are_refused_with_the_reason() {
        for (name, reason) in [
            ("", "must not be empty"),
            ("Chat", "lower-case"),
            ("7b", "start with a letter"),
            ("chat-", "end with a letter"),
            ("chat.small", "lower-case"),
            ("ch\u{e4}t", "lower-case"),
            (&"a".repeat(56), "at most 55"),
            ("chat-canary", "endpoint \"chat\""),
            ("chat-pd-proxy", "must not end in"),
            ("keda-hpa-chat", "KEDA"),
            ("mooncake-master", "shared objects"),
        ] {
            let problem = check_new(name).expect_err(name);
            assert_eq!(problem.field, "endpoint_name");
            assert!(problem.message.contains(reason), "{name}: {problem}");
        }
    }

    #[test]
    fn derived_names_collide_in_both_directions() {
        for (one, other) in [
            ("a", "a-canary"),
            ("a", "a-proxy"),
            ("a", "a-prefill"),
            ("a", "keda-hpa-a"),
            ("keda-hpa-a", "a"),
            ("a", "keda-hpa-a-decode"),
        ] {
            assert!(collide(one, other), "{one} {other}");
            assert!(collide(other, one), "{other} {one}");
        }
    }

    #[test]
    fn the_cheap_answer_is_the_whole_one() {
        let stems = ["a", "ab", "b", "k", "keda", "keda-hpa", "keda-hpa-a", "prefill", "decode", "chat", "chat-pd"];
        let mut names: Vec<String> = stems.map(str::to_owned).to_vec();
        for stem in stems {
            names.extend(RESERVED_SUFFIXES.map(|suffix| format!("{stem}{suffix}")));
            names.push(format!("{KEDA_PREFIX}{stem}"));
            names.push(format!("{stem}-tls-proxy"));
        }
        let mut colliding = 0;
        for one in &names {
            for other in &names {
                let whole = one != other && share_a_name(one, other);
                assert_eq!(collide(one, other), whole, "{one} {other}");
                colliding += usize::from(whole);
            }
        }
        assert!(colliding > 100, "{colliding}");
        assert!(!may_collide("edit-0001", "edit-0002"));
    }

    #[test]
    fn names_that_share_no_object_get_along() {
        for (one, other) in [("a", "b"), ("a", "a-b"), ("chat", "chat-pd"), ("a", "a")] {
            assert!(!collide(one, other), "{one} {other}");
        }
    }

    #[test]
    fn colliding_names_are_listed_without_the_name_itself() {
        let all = ["a", "a-canary", "b", "keda-hpa-a"];
        assert_eq!(colliding("a", all), ["a-canary", "keda-hpa-a"]);
        assert!(colliding("b", all).is_empty());
    }

    #[test]
    fn only_the_derived_name_yields() {
        let all = ["a", "a-canary", "b", "keda-hpa-a"];
        assert!(yields_to("a", all).is_empty());
        assert_eq!(yields_to("a-canary", all), ["a"]);
        assert_eq!(yields_to("keda-hpa-a", all), ["a", "a-canary"]);
    }

    #[test]
    fn region_names_of_aws_and_of_one_machine_are_accepted() {
        for region in ["us-east-1", "us-gov-west-1", "eu-isoe-west-1", "local", "region-a"] {
            assert!(is_region(region), "{region}");
        }
        for region in ["", "US-EAST-1", "us_east_1", "1-east", "us east"] {
            assert!(!is_region(region), "{region}");
        }
    }
}
