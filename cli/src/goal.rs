//! What a wait waits for, and how far it is. Pure.

use gco_store::problem::bounded;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Spec;
use gco_store::status::{Autoscaler, RegionEntry, State};
use gco_store::wire::Value;

use crate::describe::state_word;

/// A state that an endpoint is to reach everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Every target region serves what the row asks for now, and routers let traffic through.
    Running,
    /// No target region has pods.
    Stopped,
    /// The row is gone.
    Deleted,
}

impl Goal {
    /// The words that name goals.
    pub const WORDS: [&'static str; 3] = ["running", "stopped", "deleted"];

    /// Reads a goal's word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "running" => Some(Self::Running),
            "stopped" => Some(Self::Stopped),
            "deleted" => Some(Self::Deleted),
            _ => None,
        }
    }

    /// The goal's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Deleted => "deleted",
        }
    }
}

/// How far a goal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Reached.
    Reached,
    /// Not yet; what is missing, one line each.
    Waiting(Vec<String>),
    /// It cannot be reached without somebody doing something; what.
    Hopeless(String),
}

/// How far `row` (absent: gone) is from `goal`. `lifecycle_id` is the life of the name that the wait began with.
#[must_use]
pub fn progress(goal: Goal, row: Option<&EndpointRow>, lifecycle_id: Option<&str>) -> Progress {
    // A row without a lifecycle gets one from the first monitor that sees it; that is still the same life.
    let same_life = |row: &&EndpointRow| lifecycle_id.is_none() || row.lifecycle_id.as_deref() == lifecycle_id;
    let Some(row) = row.filter(same_life) else {
        return match goal {
            Goal::Deleted => Progress::Reached,
            _ => Progress::Hopeless("the endpoint was deleted meanwhile".to_owned()),
        };
    };
    match (goal, &row.desired_state) {
        (Goal::Running, DesiredState::Deploying | DesiredState::Running) => running(row),
        (Goal::Stopped, DesiredState::Stopped) => everywhere(row, &State::Stopped, |_, _| None),
        (Goal::Deleted, DesiredState::Deleted) => deleted(row),
        (_, other) => Progress::Hopeless(format!(
            "the endpoint is asked to be '{}', so it will not become {}",
            bounded(other.as_str(), 40),
            goal.word()
        )),
    }
}

fn running(row: &EndpointRow) -> Progress {
    let spec = Spec::check(&row.spec).ok().map(|checked| checked.spec);
    match everywhere(row, &State::Running, |region, entry| behind(spec.as_ref(), region, entry)) {
        // Routers look at the row's state too.
        Progress::Reached if row.desired_state == DesiredState::Deploying => {
            Progress::Waiting(vec!["every region serves; the row is promoted to running next".to_owned()])
        }
        Progress::Waiting(mut missing) if row.paused => {
            missing.push("the endpoint is paused, so its regions change nothing".to_owned());
            Progress::Waiting(missing)
        }
        progress => progress,
    }
}

/// What a region that serves lacks to serve what the row asks for; `None`: nothing. Straight after an edit an entry is
/// still about the row before it, and says so by its hashes.
fn behind(spec: Option<&Spec>, region: &str, entry: &RegionEntry) -> Option<String> {
    // Monitors of the earlier control plane report no hashes: their state is all there is.
    let observed = entry.observed_spec.as_ref()?;
    let Some(spec) = spec else { return Some("serves on, but the row's spec is not valid".to_owned()) };
    let asked = Some(spec.template_input_hash(region));
    if observed.seen != asked {
        return Some("serves what it served before; the last edit is not seen yet".to_owned());
    }
    let replicas = match spec.autoscaled() {
        Some(bounds) => {
            let (least, most) = (bounds.min_replicas, bounds.max_replicas);
            let taken = |autoscaler: &Autoscaler| (autoscaler.min_replicas, autoscaler.max_replicas) == (least, most);
            if !entry.autoscaler.as_ref().is_some_and(taken) {
                return Some(format!("no autoscaler chooses from {least} to {most} replicas yet"));
            }
            least
        }
        None if entry.autoscaler.is_some() => return Some("the autoscaler is not removed yet".to_owned()),
        None if entry.replicas_desired != spec.replicas => {
            return Some(format!("the change to {} replicas is not seen yet", spec.replicas));
        }
        None => spec.replicas,
    };
    if let Some(lack) = canary_lacks(spec, entry) {
        return Some(lack);
    }
    let stuck = entry.rollout.as_ref().and_then(|rollout| rollout.stuck.as_deref());
    if observed.serving != asked {
        return Some(match stuck {
            Some(reason) => format!("the last edit is not rolled out: {}", bounded(reason, 60)),
            None => "rolling out the last edit".to_owned(),
        });
    }
    (entry.replicas_ready < replicas).then(|| match stuck {
        Some(reason) => format!("serves with less than asked for: {}", bounded(reason, 60)),
        None => "serves with less than asked for".to_owned(),
    })
}

/// What the canary that the row asks for lacks; `None`: nothing, or none is asked for.
fn canary_lacks(spec: &Spec, entry: &RegionEntry) -> Option<String> {
    let asked = spec.canary.as_ref()?;
    let Some(told) = entry.extra.get("canary") else { return Some("the canary is not seen yet".to_owned()) };
    let text = |key: &str| told.at(&[key]).and_then(Value::as_str);
    let number = |key: &str| told.at(&[key]).and_then(Value::as_integer);
    if text("image") != Some(asked.image.as_str())
        || number("replicas_desired") != Some(i64::from(asked.replicas))
        || number("weight") != Some(i64::from(asked.weight))
    {
        return Some("the last edit of the canary is not seen yet".to_owned());
    }
    let ready = number("replicas_ready").unwrap_or_default();
    (text("state") != Some("running")).then(|| format!("{ready} of {} pods of the canary are ready", asked.replicas))
}

/// Whether every target region is in the `wanted` state and, where it is, `lacks` finds nothing.
fn everywhere(row: &EndpointRow, wanted: &State, lacks: impl Fn(&str, &RegionEntry) -> Option<String>) -> Progress {
    if row.target_regions.is_empty() {
        return Progress::Hopeless("the endpoint has no target regions".to_owned());
    }
    let mut missing = Vec::new();
    for region in &row.target_regions {
        let entry = row.region_status.get(region).filter(|entry| is_of_this_life(row, entry));
        match entry {
            Some(entry) if entry.state == *wanted => {
                if let Some(lack) = lacks(region, entry) {
                    missing.push(format!("{}; {lack}", region_line(region, Some(entry))));
                }
            }
            Some(entry) if entry.state == State::Failed => {
                let error = entry.error.as_deref().unwrap_or("it does not say why");
                return Progress::Hopeless(format!(
                    "{region} cannot serve the endpoint as it is: {}",
                    bounded(error, 300)
                ));
            }
            other => missing.push(region_line(region, other)),
        }
    }
    if missing.is_empty() { Progress::Reached } else { Progress::Waiting(missing) }
}

fn deleted(row: &EndpointRow) -> Progress {
    let regions = row.deletion_regions.as_ref().unwrap_or(&row.target_regions);
    let waiting: Vec<String> = regions
        .iter()
        .filter(|region| !row.acknowledged(region) && !row.declared_absent(region))
        .map(|region| region_line(region, row.region_status.get(region)))
        .collect();
    if waiting.is_empty() {
        return Progress::Waiting(vec!["every region has confirmed; the row is removed next".to_owned()]);
    }
    Progress::Waiting(waiting)
}

fn is_of_this_life(row: &EndpointRow, entry: &RegionEntry) -> bool {
    // Entries of the oldest monitors carry no lifecycle.
    entry.lifecycle_id.is_none() || entry.lifecycle_id == row.lifecycle_id
}

/// One region in one line, for progress.
#[must_use]
pub fn region_line(region: &str, entry: Option<&RegionEntry>) -> String {
    let region = bounded(region, 63);
    let Some(entry) = entry else { return format!("{region}: not seen yet") };
    let mut line =
        format!("{region}: {}, {} of {} ready", state_word(&entry.state), entry.replicas_ready, entry.replicas_desired);
    if let Some(pod) = entry.pods.first() {
        line.push_str(&format!(" ({} {})", pod.count, bounded(&pod.reason, 60)));
    }
    if let Some(error) = &entry.error {
        line.push_str(&format!("; {}", bounded(error, 200)));
    }
    line
}

#[cfg(test)]
mod tests {
    use gco_store::status::{ObservedSpec, Rollout};
    use gco_store::wire::Item;

    use super::*;

    fn row(desired_state: &str, states: &[(&str, &str)]) -> EndpointRow {
        let text = |text: &str| Value::from(text);
        let status = states.iter().map(|(region, state)| {
            let entry = Item::from([
                ("state".to_owned(), text(state)),
                ("lifecycle_id".to_owned(), text("life")),
                ("error".to_owned(), text("ImageInvalid: no such image")),
            ]);
            ((*region).to_owned(), Value::Map(entry))
        });
        let item = Item::from([
            ("endpoint_name".to_owned(), text("chat")),
            ("lifecycle_id".to_owned(), text("life")),
            ("desired_state".to_owned(), text(desired_state)),
            ("target_regions".to_owned(), Value::List(vec![text("us-east-1"), text("eu-west-1")])),
            ("region_status".to_owned(), Value::Map(status.collect())),
        ]);
        EndpointRow::parse(item).unwrap()
    }

    fn waiting(progress: Progress) -> Vec<String> {
        match progress {
            Progress::Waiting(lines) => lines,
            other => panic!("expected waiting, got {other:?}"),
        }
    }

    #[test]
    fn running_needs_every_target_region_and_the_promotion() {
        let both = [("us-east-1", "running"), ("eu-west-1", "running")];
        assert_eq!(progress(Goal::Running, Some(&row("running", &both)), Some("life")), Progress::Reached);
        assert_eq!(waiting(progress(Goal::Running, Some(&row("deploying", &both)), Some("life"))).len(), 1);
        let one = waiting(progress(Goal::Running, Some(&row("running", &both[..1])), Some("life")));
        assert_eq!(one, ["eu-west-1: not seen yet"]);
    }

    /// A row that asks for two replicas of `image`, and what its only region says.
    fn served(image: &str, entry: RegionEntry) -> (EndpointRow, Spec) {
        let spec = Value::Map(Item::from([("image".to_owned(), image.into()), ("replicas".to_owned(), 2_i64.into())]));
        let mut row = row("running", &[]);
        row.target_regions = vec!["us-east-1".to_owned()];
        row.spec = spec;
        row.region_status.insert("us-east-1".to_owned(), entry);
        let spec = Spec::check(&row.spec).unwrap().spec;
        (row, spec)
    }

    /// What a region says that has seen and serves these.
    fn entry(seen: &str, serving: Option<&str>, ready: u32, desired: u32) -> RegionEntry {
        let hash = |image: &str| served(image, RegionEntry::new(State::Running)).1.template_input_hash("us-east-1");
        RegionEntry {
            replicas_ready: ready,
            replicas_desired: desired,
            lifecycle_id: Some("life".to_owned()),
            observed_spec: Some(ObservedSpec {
                seen: Some(hash(seen)),
                applied: Some(hash(seen)),
                serving: serving.map(hash),
            }),
            ..RegionEntry::new(State::Running)
        }
    }

    #[test]
    fn after_an_edit_a_region_counts_once_it_has_seen_and_serves_it() {
        let of = |entry| progress(Goal::Running, Some(&served("x:2", entry).0), Some("life"));
        let before = waiting(of(entry("x:1", Some("x:1"), 2, 2)));
        assert_eq!(
            before,
            ["us-east-1: running, 2 of 2 ready; serves what it served before; the last edit is not seen yet"]
        );
        for serving in [Some("x:1"), None] {
            assert!(waiting(of(entry("x:2", serving, 2, 2)))[0].ends_with("; rolling out the last edit"));
        }
        assert_eq!(of(entry("x:2", Some("x:2"), 2, 2)), Progress::Reached);
        assert!(waiting(of(entry("x:2", Some("x:2"), 1, 2)))[0].ends_with("; serves with less than asked for"));
        let stuck = Rollout { updated: 1, updated_ready: 0, total: 3, stuck: Some("FailedCreate".to_owned()) };
        let stuck = RegionEntry { rollout: Some(stuck), ..entry("x:2", Some("x:1"), 2, 2) };
        assert!(waiting(of(stuck))[0].ends_with("; the last edit is not rolled out: FailedCreate"));
    }

    #[test]
    fn after_a_scale_a_region_counts_once_it_has_seen_the_new_count() {
        let of = |entry| progress(Goal::Running, Some(&served("x:1", entry).0), Some("life"));
        for before in [1, 3] {
            let said = waiting(of(entry("x:1", Some("x:1"), before, before)));
            assert!(said[0].ends_with("; the change to 2 replicas is not seen yet"), "{said:?}");
        }
        // Pods of a scale-down that have not ended yet are in nobody's way.
        assert_eq!(of(entry("x:1", Some("x:1"), 3, 2)), Progress::Reached);
    }

    #[test]
    fn an_autoscaled_region_counts_once_its_autoscaler_has_the_bounds_and_the_least_are_ready() {
        let of = |ready: u32, autoscaler: Option<(u32, u32)>| {
            let autoscaler = autoscaler.map(|(min_replicas, max_replicas)| Autoscaler {
                kind: "hpa".to_owned(),
                min_replicas,
                max_replicas,
                replicas: 5,
            });
            let (mut row, _) = served("x:1", RegionEntry { autoscaler, ..entry("x:1", Some("x:1"), ready, 5) });
            let block = serde_json::json!({"enabled": true, "min_replicas": 2, "max_replicas": 8});
            let Value::Map(spec) = &mut row.spec else { panic!("no map") };
            spec.insert("autoscaling".to_owned(), Value::from_plain_json("autoscaling", &block).unwrap());
            progress(Goal::Running, Some(&row), Some("life"))
        };
        assert_eq!(of(2, Some((2, 8))), Progress::Reached);
        assert!(waiting(of(1, Some((2, 8))))[0].ends_with("; serves with less than asked for"));
        for before in [None, Some((1, 8)), Some((2, 6))] {
            assert!(waiting(of(5, before))[0].ends_with("; no autoscaler chooses from 2 to 8 replicas yet"));
        }
        // And back: as long as an autoscaler is there, the count is its.
        let autoscaler = Autoscaler { kind: "hpa".to_owned(), min_replicas: 2, max_replicas: 8, replicas: 2 };
        let held = RegionEntry { autoscaler: Some(autoscaler), ..entry("x:1", Some("x:1"), 2, 2) };
        let said = waiting(progress(Goal::Running, Some(&served("x:1", held).0), Some("life")));
        assert!(said[0].ends_with("; the autoscaler is not removed yet"), "{said:?}");
    }

    #[test]
    fn a_region_that_reports_no_hashes_counts_by_its_state() {
        let original = RegionEntry { replicas_desired: 5, ..RegionEntry::new(State::Running) };
        assert_eq!(progress(Goal::Running, Some(&served("x:1", original).0), Some("life")), Progress::Reached);
    }

    #[test]
    fn a_wait_for_a_paused_endpoint_says_that_it_is_paused() {
        let (mut row, _) = served("x:2", entry("x:1", Some("x:1"), 2, 2));
        row.paused = true;
        let said = waiting(progress(Goal::Running, Some(&row), Some("life")));
        assert!(said[1].contains("is paused"), "{said:?}");
    }

    #[test]
    fn a_row_that_cannot_be_served_is_not_reached_by_what_still_serves() {
        let (mut row, _) = served("x:2", entry("x:1", Some("x:1"), 2, 2));
        row.spec = Value::Map(Item::from([("image".to_owned(), Value::from(5_i64))]));
        let said = waiting(progress(Goal::Running, Some(&row), Some("life")));
        assert!(said[0].ends_with("the row's spec is not valid"), "{said:?}");
    }

    #[test]
    fn a_region_that_failed_ends_the_wait() {
        let states = [("us-east-1", "running"), ("eu-west-1", "failed")];
        let ended = progress(Goal::Running, Some(&row("running", &states)), Some("life"));
        let Progress::Hopeless(reason) = ended else { panic!("{ended:?}") };
        assert!(reason.contains("eu-west-1") && reason.contains("no such image"), "{reason}");
    }

    #[test]
    fn a_row_that_is_gone_or_began_anew_is_deleted() {
        assert_eq!(progress(Goal::Deleted, None, Some("life")), Progress::Reached);
        assert_eq!(progress(Goal::Deleted, Some(&row("running", &[])), Some("other")), Progress::Reached);
        assert!(matches!(progress(Goal::Running, None, Some("life")), Progress::Hopeless(_)));
        assert!(matches!(progress(Goal::Stopped, Some(&row("running", &[])), Some("life")), Progress::Hopeless(_)));
    }
}
