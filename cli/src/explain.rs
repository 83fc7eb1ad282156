//! What a row's regions say, in words, with the next step. Pure.

use gco_monitor::report::guide;
use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Spec;
use gco_store::status::{RegionEntry, State};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::describe::{self, RegionItems};

/// Most bad fields that are listed.
const MOST_FIELDS: usize = 20;
/// Longest text of a finding.
const LONGEST: usize = 400;

/// One thing that is worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `GCO-…`, when it is an error with a page.
    pub code: Option<String>,
    /// What is so.
    pub what: String,
    /// What to do, in order; empty: nothing.
    pub steps: Vec<String>,
}

/// What is worth knowing of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionWords {
    /// The region.
    pub region: String,
    /// Whether it serves requests now.
    pub serves: bool,
    /// One sentence.
    pub summary: String,
    /// Everything else.
    pub findings: Vec<Finding>,
}

/// What is worth knowing of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Name of the endpoint.
    pub name: String,
    /// What it is asked for.
    pub asked: String,
    /// What concerns the whole row.
    pub findings: Vec<Finding>,
    /// Its regions.
    pub regions: Vec<RegionWords>,
}

fn finding(what: impl AsRef<str>, step: &str) -> Finding {
    let steps = if step.is_empty() { Vec::new() } else { vec![step.to_owned()] };
    Finding { code: None, what: bounded(what.as_ref(), LONGEST), steps }
}

/// Explains a row.
#[must_use]
pub fn explain(row: &EndpointRow, items: &RegionItems, now: Timestamp) -> Explanation {
    let name = bounded(&row.name, 100);
    let asked = match &row.desired_state {
        DesiredState::Deploying => "It was created and has not served anywhere yet.".to_owned(),
        DesiredState::Running => "It should serve.".to_owned(),
        DesiredState::Stopped => "It should hold no pods.".to_owned(),
        DesiredState::Deleted => "It should vanish.".to_owned(),
        DesiredState::Unknown(word) => {
            format!("It asks for something that nobody knows (\"{}\"): nothing is done.", bounded(word, 60))
        }
    };
    let mut findings = Vec::new();
    if row.paused {
        findings.push(finding(
            "It is paused: the regions observe and report, and change nothing.",
            "`gco inference resume NAME` ends that.",
        ));
    }
    let spec_problems = Spec::check(&row.spec).err().unwrap_or_default();
    for FieldProblem { field, message } in row.problems.iter().chain(&spec_problems).take(MOST_FIELDS) {
        findings.push(finding(
            format!("{field}: {message}"),
            "Correct it: `gco inference edit NAME`, or `gco inference undo NAME`.",
        ));
    }
    let warnings = describe::monitor_warnings(row, items, now);
    let regions = describe::regions_of(row)
        .into_iter()
        .map(|region| {
            let mut words = of_region(row, &region);
            if items.get(&region).is_some_and(|item| item.frozen) {
                words.findings.insert(
                    0,
                    finding(
                        "The region is frozen: its monitor changes nothing.",
                        &format!("`gco inference unfreeze {}` ends that.", bounded(&region, 60)),
                    ),
                );
            }
            if let Some(warning) = warnings.get(&region) {
                let step = "Look whether the region's monitor runs and reaches the table.";
                words.findings.insert(0, finding(warning, step));
            }
            words
        })
        .collect();
    let mut explanation = Explanation { name: name.clone(), asked, findings, regions };
    for step in explanation.steps_mut() {
        *step = step.replace("NAME", &name);
    }
    explanation
}

impl Explanation {
    fn steps_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let of_regions = self.regions.iter_mut().flat_map(|region| &mut region.findings);
        self.findings.iter_mut().chain(of_regions).flat_map(|finding| &mut finding.steps)
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.asked);
        list(&self.findings, "  ", &mut text);
        for region in &self.regions {
            text.push_str(&format!("\n  {}: {}\n", region.region, region.summary));
            list(&region.findings, "    ", &mut text);
        }
        text
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Json {
        let findings = |findings: &[Finding]| -> Vec<Json> {
            let json = |one: &Finding| json!({"code": one.code, "what": one.what, "next_steps": one.steps});
            findings.iter().map(json).collect()
        };
        let regions: Vec<Json> = self
            .regions
            .iter()
            .map(|region| {
                json!({
                    "region": region.region, "serves": region.serves, "summary": region.summary,
                    "findings": findings(&region.findings),
                })
            })
            .collect();
        json!({"name": self.name, "asked": self.asked, "findings": findings(&self.findings), "regions": regions})
    }
}

fn list(findings: &[Finding], indent: &str, text: &mut String) {
    for Finding { code, what, steps } in findings {
        let code = code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
        text.push_str(&format!("{indent}- {code}{what}\n"));
        for step in steps {
            text.push_str(&format!("{indent}    → {step}\n"));
        }
    }
}

fn of_region(row: &EndpointRow, region: &str) -> RegionWords {
    let shown = bounded(region, 60);
    let Some(entry) = row.region_status.get(region) else {
        return RegionWords {
            region: shown,
            serves: false,
            summary: "its monitor has said nothing yet.".to_owned(),
            findings: vec![finding(
                "No entry of this region is in the row.",
                "Wait a minute; then look whether the region's monitor runs.",
            )],
        };
    };
    let serves = entry.state == State::Running;
    let mut findings = Vec::new();
    if let Some(error) = &entry.error {
        findings.push(of_error(error));
    }
    for condition in &entry.conditions {
        let holds = condition.status == "True";
        let Some((words, step)) = guide::of_condition(&condition.kind, holds, &condition.reason) else { continue };
        let said = if condition.message.is_empty() { String::new() } else { format!(" ({})", condition.message) };
        findings.push(finding(format!("{words}{said}"), step));
    }
    for pod in &entry.pods {
        let code = pod.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
        let what = format!("{} of its pods: {}{code}: {}", pod.count, pod.reason, pod.message);
        findings.push(finding(what, &format!("Look at one: `kubectl -n gco-inference describe pod {}`.", pod.example)));
    }
    if !entry.blocked_by.is_empty() {
        findings.push(finding(format!("In the way: {}", entry.blocked_by.join(", ")), ""));
    }
    RegionWords { region: shown, serves, summary: summary(entry, serves), findings }
}

fn summary(entry: &RegionEntry, serves: bool) -> String {
    let counts = format!("{} of {} pods ready", entry.replicas_ready, entry.replicas_desired);
    let words = match &entry.state {
        State::Running if entry.degraded => "serves, with less than asked for",
        State::Running => "serves",
        State::Creating => "does not serve yet",
        State::Updating => "is changing, and routers send nothing there (an entry of the earlier control plane)",
        State::Stopping => "is stopping",
        State::Stopped => "holds no pods, as asked",
        State::Deleting => "is removing it",
        State::Deleted => "has removed it",
        State::Failed => "cannot serve it as it is",
        State::Error => "failed (an entry of the earlier control plane)",
        State::Other(_) => "says something that this version does not know",
    };
    if serves || entry.replicas_desired > 0 { format!("{words}; {counts}.") } else { format!("{words}.") }
}

/// An error text: a code with its guide, or an earlier control plane's words.
fn of_error(error: &str) -> Finding {
    match guide::of_error(error) {
        Some((guide, _)) => {
            let said = error.split_once(':').map_or(error, |(_, said)| said.trim());
            let what = format!("{}: {said} {}", guide.title, guide.meanwhile);
            let steps = guide.steps.iter().map(|step| (*step).to_owned()).collect();
            Finding { code: Some(guide.code.to_owned()), what: bounded(&what, LONGEST), steps }
        }
        None => finding(format!("It reports an error: {error}"), "Look at the region's monitor log."),
    }
}
