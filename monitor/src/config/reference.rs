//! Every setting with its default and meaning: the source of `docs/configuration.md`.

/// One variable: name, default as one would write it (empty: none), meaning.
pub type Setting = (&'static str, &'static str, &'static str);

/// All of them, in the page's order.
pub const SETTINGS: [Setting; 34] = [
    ("REGION", "unknown-region", "the own region, as rows name it"),
    ("CLUSTER_NAME", "unknown-cluster", "`cluster_id` of log lines"),
    ("PROJECT_NAME", "gco", "prefix of the project's parameters"),
    (
        "INFERENCE_NAMESPACE",
        "gco-inference",
        "where the Lease and every object live; rows of other namespaces are refused",
    ),
    (
        "INFERENCE_ENDPOINTS_TABLE_NAME",
        "gco-inference-endpoints",
        "the table; the regions' table is this plus `-regions`",
    ),
    ("DYNAMODB_REGION", "the value of `REGION`", "where the table is"),
    ("DYNAMODB_ENDPOINT_URL", "", "another DynamoDB server than AWS's"),
    ("GCO_TABLE", "dynamodb", "`dynamodb`, or `embedded:<path>` in a build with the feature `embedded-table`"),
    ("RECONCILE_INTERVAL_SECONDS", "15", "between two complete reads of a table without a change index"),
    ("USE_CHANGE_INDEX", "true", "whether a change index that the table has is used"),
    ("CHANGE_QUERY_INTERVAL_SECONDS", "1", "between two queries of the change index"),
    ("INDEXED_READ_INTERVAL_SECONDS", "300", "between two complete reads of a table whose change index is used"),
    ("FULL_PASS_INTERVAL_SECONDS", "300", "every endpoint is planned anew this often, from caches"),
    ("HEARTBEAT_INTERVAL_SECONDS", "60", "between two heartbeats in the regions' table"),
    ("ABSENCE_GAP_SECONDS", "15", "between the two looks that prove that an endpoint is gone"),
    (
        "OPTIONAL_KINDS_INTERVAL_SECONDS",
        "60",
        "how often KEDA is looked for while a row needs it and the cluster lacks it; ten times less often while none does",
    ),
    ("INFERENCE_UNHEALTHY_THRESHOLD_SECONDS", "300", "without a ready pod for this long: a warning in the log"),
    ("MAX_CONCURRENT_ENDPOINTS", "16", "endpoints that are worked on at the same time, 1 to 1024"),
    (
        "UNASKED_RESTARTS_AT_ONCE",
        "5",
        "endpoints whose pods restart at the same time though no edit of their row asks for it (a refresh, for example), 1 to 1000",
    ),
    (
        "UNASKED_RESTARTS_FAILURES",
        "3",
        "failed ones after which none begins any more until `gco inference refresh --clear`, 1 to 1000",
    ),
    (
        "K8S_API_TIMEOUT",
        "30",
        "longest wait for one Kubernetes call; a change waits at most for what is left of the claim",
    ),
    ("LEASE_DURATION_SECONDS", "15", "how long the Lease lasts after a renewal; a whole number"),
    ("LEASE_RENEW_INTERVAL_SECONDS", "5", "between two renewals"),
    ("LEASE_RENEW_TIMEOUT_SECONDS", "3", "longest wait for one call about the Lease"),
    ("LEASE_MARGIN_SECONDS", "2", "how much earlier than the Lease our claim ends"),
    ("CLAIM_MINIMUM_SECONDS", "2", "with less left of the claim no change is started"),
    ("HOSTNAME", "monitor", "beginning of the Lease's holder; the process adds random digits"),
    ("METRICS_HOST", "0.0.0.0", "address of `/healthz`, `/readyz`, `/metrics`, `/state`"),
    ("METRICS_PORT", "9090", "its port; 0 takes a free one, which the log names"),
    ("GCO_ALLOW_FORCED_PASS", "false", "whether `POST /full-pass` is answered"),
    ("LOG_FORMAT", "json", "`json` (one object per line) or `text`"),
    ("LOG_LEVEL", "INFO", "`DEBUG`, `INFO`, `WARNING`, `ERROR`"),
    ("KUBECONFIG", "", "used outside of a cluster, as kubectl does"),
    ("AWS_*", "", "credentials and their sources, as every AWS SDK reads them"),
];

/// The page, in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Configuration of the monitor\n\nGenerated from `monitor/src/config/reference.rs`; do not edit.\n\nEverything is read from the \
         environment and checked before a port opens; every problem is named at once. Times are seconds; fractions are \
         allowed unless the meaning says otherwise.\n\n| Variable | Default | Meaning |\n|---|---|---|\n",
    );
    for (name, default, meaning) in SETTINGS {
        let shown =
            if default.is_empty() || default.starts_with("the ") { default.to_owned() } else { format!("`{default}`") };
        page.push_str(&format!("| `{name}` | {shown} | {meaning} |\n"));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gco_runtime::environment::Environment;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_default_that_is_written_out_is_the_default() {
        let nothing = Config::read(&Environment::from_pairs::<&str, &str>([])).unwrap();
        for (name, default, _) in SETTINGS {
            if default.is_empty() || default.starts_with("the ") {
                continue;
            }
            let written = Config::read(&Environment::from_pairs([(name, default)])).unwrap();
            assert_eq!(written, nothing, "{name}={default}");
        }
    }

    #[test]
    fn every_variable_that_the_configuration_reads_is_on_the_page() {
        let documented: BTreeSet<&str> = SETTINGS.iter().map(|(name, ..)| *name).collect();
        let is_name = |text: &&str| {
            text.len() > 2
                && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        };
        // What stands between quotes in the source, up to its tests.
        let source = include_str!("mod.rs").split("#[cfg(test)]").next().unwrap();
        let read: BTreeSet<&str> = source.split('"').skip(1).step_by(2).filter(is_name).collect();
        assert!(read.len() > 20, "{read:?}");
        assert_eq!(read.difference(&documented).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
