//! The generated pages are up to date, and what the pages claim to be tested is. `UPDATE_DOCUMENTS=1` writes them anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gco_monitor::admin::telemetry::Telemetry;
use gco_monitor::report::{codes, guide};
use gco_proxy::admin::metrics::{Metrics, Mode};
use gco_proxy::backends::sources::fixed;
use gco_proxy::backends::{Fleet, FleetSettings, Role};
use gco_proxy::exchange::{Outcome, Reason};
use gco_runtime::environment::Environment;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_up_to_date(page: &str, generated: &str) -> std::io::Result<()> {
    let path = root().join("docs").join(page);
    if Environment::process().non_empty("UPDATE_DOCUMENTS").is_some() {
        std::fs::write(&path, generated)?;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == generated,
        "docs/{page} is out of date: run UPDATE_DOCUMENTS=1 cargo test -p gco-tests --test documents"
    );
    Ok(())
}

/// Families, types, labels and help texts of the Prometheus text.
fn metrics_page(introduction: &str, text: &str) -> String {
    let mut page = format!("{introduction}\n\n| Family | Type | Labels | Meaning |\n|---|---|---|---|\n");
    let mut families: Vec<(String, String, String, String)> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.push((name.to_owned(), String::new(), String::new(), help.to_owned()));
        } else if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if let Some(family) = families.last_mut() {
                family.1 = kind.to_owned();
            }
        } else if let Some(family) = families.last_mut().filter(|family| family.2.is_empty()) {
            let labels =
                line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
            let names = labels.split("\",").filter_map(|label| label.split_once('=').map(|(name, _)| name.trim()));
            let names: Vec<String> = names.filter(|name| *name != "le").map(|name| format!("`{name}`")).collect();
            family.2 = if names.is_empty() { " ".to_owned() } else { names.join(", ") };
        }
    }
    families.sort_by_key(|(name, ..)| (name.starts_with("gco_monitor_"), name.clone()));
    for (name, kind, labels, help) in families {
        page.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
    page
}

/// Every error code: meaning, what serves meanwhile, what to do.
fn errors_page() -> String {
    let mut page = String::from(
        "# Error codes\n\nGenerated from `monitor/src/report/codes.rs` and `guide.rs`; do not edit.\n\nA region's entry of a row \
         carries such a code with a short text while something keeps the endpoint from being served as asked \
         (`gco inference status`, `gco inference explain`). NAME stands for the endpoint.\n",
    );
    for guide in guide::GUIDES {
        let code = codes::ALL.iter().find(|code| code.code == guide.code).map_or("", |code| code.meaning);
        page.push_str(&format!(
            "\n## {}\n\n**{}.** {code}\n\n{}\n\n",
            guide.code,
            capital(guide.title),
            guide.meanwhile
        ));
        for (number, step) in guide.steps.iter().enumerate() {
            page.push_str(&format!("{}. {step}\n", number + 1));
        }
    }
    page
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[test]
fn the_page_of_error_codes_is_up_to_date_and_has_a_section_for_every_code() {
    let page = errors_page();
    for code in codes::ALL {
        assert_eq!(page.matches(&format!("\n## {}\n", code.code)).count(), 1, "{}", code.code);
    }
    is_up_to_date("errors.md", &page).unwrap();
}

#[test]
fn the_configuration_page_is_up_to_date() {
    is_up_to_date("configuration.md", &gco_monitor::config::reference::page()).unwrap();
}

#[test]
fn the_metrics_page_is_up_to_date_and_names_every_family() {
    let telemetry = Telemetry::new().unwrap();
    let introduction = "# Metrics of the monitor\n\nGenerated from the monitor's own `/metrics`; do not edit.\n\nThe first two \
                        families have the names and labels that existing dashboards read.";
    let page = metrics_page(introduction, &telemetry.render().unwrap());
    assert!(page.matches("\n| `gco_").count() > 20, "{page}");
    is_up_to_date("metrics.md", &page).unwrap();
}

#[test]
fn the_proxys_configuration_page_is_up_to_date() {
    is_up_to_date("proxy-configuration.md", &gco_proxy::config::reference::page()).unwrap();
}

#[tokio::test]
async fn the_proxys_metrics_page_is_up_to_date_and_names_every_family() {
    let now = tokio::time::Instant::now();
    let fleet = Fleet::new(FleetSettings::default(), now);
    // Families of engines are there once there is one.
    let described = fixed::backends(Role::Decode, &["http://decode:8000".to_owned()], None).unwrap();
    fleet.apply(Role::Decode, &fixed::all_ready(&described), now);
    let metrics = Metrics::new(&fleet, Mode { connector: "mooncake", fallback: "decode-only" }).unwrap();
    let introduction = "# Metrics of the prefill-decode proxy\n\nGenerated from the proxy's own `/metrics`; do not edit. Outcomes and \
                        reasons are explained on [the proxy's page](proxy.md#how-exchanges-end).";
    let page = metrics_page(introduction, &metrics.render().unwrap());
    assert!(page.matches("\n| `gco_proxy_").count() > 15, "{page}");
    is_up_to_date("proxy-metrics.md", &page).unwrap();
}

#[test]
fn the_proxys_page_explains_every_outcome_every_reason_and_every_type_of_error() {
    let page = std::fs::read_to_string(root().join("docs/proxy.md")).unwrap();
    let explained = |word: &str| page.matches(&format!("\n| `{word}` | ")).count();
    for reason in Reason::ALL {
        assert_eq!(explained(reason.word()), 1, "{}", reason.word());
    }
    let outcome = |outcome: Outcome| outcome.word();
    let outcomes = [
        Outcome::Transferred,
        Outcome::Primed,
        Outcome::DecodeOnly(Reason::Path),
        Outcome::Refused(Reason::Path),
        Outcome::Abandoned,
    ];
    for word in outcomes.map(outcome) {
        assert_eq!(explained(word), 1, "{word}");
    }
    // The types that the sources give to errors: the text after the status.
    let mut types: BTreeSet<String> = BTreeSet::new();
    let is_a_test =
        |path: &Path| path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests");
    for source in
        sources(&["proxy/src"]).unwrap().into_iter().filter(|path| !is_a_test(path.strip_prefix(root()).unwrap()))
    {
        let text = std::fs::read_to_string(&source).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let quoted = text.split('"').skip(1).step_by(2).filter(|quoted| {
            ["_error", "_backend", "_timeout", "_unavailable", "overloaded"].iter().any(|end| quoted.ends_with(end))
                && quoted.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        });
        types.extend(quoted.map(str::to_owned));
    }
    assert!(types.contains("invalid_request_error"), "{types:?}");
    for kind in types {
        assert_eq!(explained(&kind), 1, "{kind}");
    }
}

/// All Rust sources below these folders.
fn sources(folders: &[&str]) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Names of all functions in the project's Rust sources.
fn functions() -> std::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for path in sources(&["store", "infra", "monitor", "proxy", "cli", "tests"])? {
        let source = std::fs::read_to_string(&path)?;
        let declared = source.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        names.extend(declared.map(str::to_owned));
    }
    Ok(names)
}

#[test]
fn every_weakness_of_the_page_names_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("docs/weaknesses.md")).unwrap();
    let functions = functions().unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| D-")).collect();
    assert!(rows.len() >= 30, "{} rows", rows.len());
    for row in rows {
        let tests = row.rsplit('|').nth(1).unwrap_or_default();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test in: {row}");
        for name in named {
            assert!(functions.contains(name), "no test is called {name}: {row}");
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut pages: Vec<PathBuf> =
        vec![root().join("README.md"), root().join("infra/local/README.md"), root().join("infra/bed/README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { pages.push(path) }
        }
    }
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with('#') {
                continue;
            }
            let file = target.split('#').next().unwrap();
            assert!(page.parent().unwrap().join(file).exists(), "{}: {target}", page.display());
            links += 1;
        }
    }
    assert!(links > 10, "{links}");
}
