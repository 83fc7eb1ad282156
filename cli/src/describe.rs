//! One endpoint in words: what is asked for, and what each region says of it. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gco_store::problem::bounded;
use gco_store::row::{DesiredState, EndpointRow, Quorum};
use gco_store::spec::{Autoscaling, Spec};
use gco_store::status::{Autoscaler, ObservedSpec, PodReason, RegionEntry, Rollout, State, StatusCondition};
use gco_store::table::RegionItem;
use gco_store::time;
use gco_store::wire::Value;
use jiff::Timestamp;

use crate::age;
use crate::output::{columns, cut};

/// Widths of the region table: REGION, STATE, READY, DESIRED, LAST SYNC.
const REGION_COLUMNS: [usize; 5] = [18, 10, 6, 8, 19];
/// `2026-11-29T17:14:28`: a time-stamp to the second.
const TIME_TO_THE_SECOND_CHARACTERS: usize = 19;
/// Longest text from a row that is shown, in characters.
const LONGEST_SHOWN_CHARACTERS: usize = 300;
/// Most problems of a row that are shown.
const MOST_PROBLEMS: usize = 20;
/// Characters of a hash that tell specs apart well enough for the eye.
const SHORT_HASH_CHARACTERS: usize = 8;
/// A monitor writes a heartbeat every 60 s; three missed ones are no accident.
pub const STALE_HEARTBEAT_SECONDS: u64 = 180;
/// A monitor reads the whole table at least every 5 min; two missed reads are no accident.
const STALE_READ_SECONDS: u64 = 660;

/// What the regions' items of the second table say, by region; absent where there is none.
pub type RegionItems = BTreeMap<String, RegionItem>;

/// The regions that `status` speaks of: the targets in order, then every other region with an entry.
#[must_use]
pub fn regions_of(row: &EndpointRow) -> Vec<String> {
    let others = row.region_status.keys().filter(|region| !row.is_target(region));
    row.target_regions.iter().chain(others).cloned().collect()
}

/// Regions for a sentence: their names, or how many they are.
#[must_use]
pub fn regions_in_words<'a>(regions: impl IntoIterator<Item = &'a String>) -> String {
    let regions: Vec<&str> = regions.into_iter().map(String::as_str).collect();
    match regions.len() {
        0 => "no region".to_owned(),
        1..=8 => clean(&regions.join(", ")),
        count => format!("{count} regions"),
    }
}

/// What a region says of a canary, in words.
#[must_use]
pub fn canary_words(told: &Value) -> String {
    let text = |key: &str| told.at(&[key]).map_or_else(|| "-".to_owned(), plain_text);
    clean(&format!(
        "{}, {} of {} ready, {}",
        text("state"),
        text("replicas_ready"),
        text("replicas_desired"),
        text("image")
    ))
}

/// The whole text of `status`.
#[must_use]
pub fn endpoint(row: &EndpointRow, items: &RegionItems, now: Timestamp) -> String {
    let mut text = header(row);
    text.push_str(&region_table(row));
    for region in regions_of(row) {
        let lines = region_details(row, &region, items.get(&region), now);
        if !lines.is_empty() {
            let _ = writeln!(text, "\n  {}", clean(&region));
            for line in lines {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
    text
}

/// What about the regions' monitors makes the text above it old or void: one warning each, by region.
#[must_use]
pub fn monitor_warnings(row: &EndpointRow, items: &RegionItems, now: Timestamp) -> BTreeMap<String, String> {
    let warning = |region: &String| {
        let heartbeat = items.get(region)?.heartbeat.as_ref()?;
        let silent_seconds = time::parse(&heartbeat.last_heartbeat).map(|at| age::seconds_between(at, now));
        let read_seconds = heartbeat.last_complete_read_age_seconds;
        if let Some(seconds) = silent_seconds.filter(|seconds| *seconds > STALE_HEARTBEAT_SECONDS) {
            let age = age::of_seconds(seconds);
            return Some(format!(
                "the last heartbeat of its monitor is {age} old; what it says here may be out of date"
            ));
        }
        let age = age::of_seconds(read_seconds);
        (read_seconds > STALE_READ_SECONDS)
            .then(|| format!("its monitor last read the whole table {age} before its last heartbeat"))
    };
    let warnings = regions_of(row).into_iter().filter_map(|region| Some((region.clone(), warning(&region)?)));
    warnings.map(|(region, warning)| (region.clone(), format!("{}: {warning}", clean(&region)))).collect()
}

fn header(row: &EndpointRow) -> String {
    let spec = |key: &str, default: &str| -> String {
        let value = row.spec.as_map().and_then(|spec| spec.get(key));
        clean(&value.map_or_else(|| default.to_owned(), plain_text))
    };
    let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".to_owned(), clean);
    let mut state = clean(row.desired_state.as_str());
    if row.paused {
        state.push_str(" (paused: the regions change nothing)");
    }
    let canary = row.spec.at(&["canary"]).filter(|canary| canary.as_map().is_some_and(|canary| !canary.is_empty()));
    let canary = canary.map(|canary| {
        let of = |key: &str, default: &str| canary.at(&[key]).map_or_else(|| default.to_owned(), plain_text);
        clean(&format!("{} % to {}, {} per region", of("weight", "10"), of("image", "-"), of("replicas", "1")))
    });
    let lines = [
        ("State", state),
        ("Image", spec("image", "-")),
        ("Replicas", replicas(row)),
        ("GPUs", spec("gpu_count", "1")),
        ("Port", spec("port", "8000")),
        ("Path", text(&row.ingress_path)),
        ("Namespace", text(&row.namespace)),
        ("Created", text(&row.created_at)),
    ];
    let mut header = format!("Endpoint: {}\n", clean(&row.name));
    for (label, value) in lines {
        let _ = writeln!(header, "  {}", columns(&[(&format!("{label}:"), 10), (&value, 0)]));
    }
    if let Some(canary) = canary {
        let _ = writeln!(header, "  {}", columns(&[("Canary:", 10), (&canary, 0)]));
    }
    let spec_problems = Spec::check(&row.spec).err().unwrap_or_default();
    for problem in row.problems.iter().chain(&spec_problems).take(MOST_PROBLEMS) {
        let _ = writeln!(header, "  Problem:   {problem}");
    }
    if row.desired_state == DesiredState::Deleted {
        let _ = writeln!(header, "  Deletion:  {}", deletion(row));
        for (region, absent) in row.absent_regions.iter().filter(|(region, _)| row.declared_absent(region)) {
            let said = format!("{region} was declared gone for good by {}: {}", absent.by, absent.reason);
            let _ = writeln!(header, "             {}", clean(&said));
        }
    }
    header
}

/// The count that the row asks for, or within which bounds and by what each region chooses it.
fn replicas(row: &EndpointRow) -> String {
    let checked = Spec::check(&row.spec).ok().map(|checked| checked.spec);
    match checked.as_ref().and_then(Spec::autoscaled) {
        Some(autoscaling) => autoscaling_words(autoscaling),
        None => clean(&row.spec.at(&["replicas"]).map_or_else(|| "1".to_owned(), plain_text)),
    }
}

/// `2 to 8, by cpu at 70 % and memory at 80 %`.
#[must_use]
pub fn autoscaling_words(autoscaling: &Autoscaling) -> String {
    let Autoscaling { enabled: _, min_replicas, max_replicas, metrics } = autoscaling;
    let metrics: Vec<String> =
        metrics.iter().map(|metric| format!("{} at {} %", metric.kind.word(), metric.target_percent)).collect();
    format!("{min_replicas} to {max_replicas}, by {}", metrics.join(" and "))
}

fn deletion(row: &EndpointRow) -> String {
    match row.quorum() {
        Quorum::Stands => "confirmed by every region; the row is removed next".to_owned(),
        Quorum::Missing(regions) => {
            format!("waiting for {} to confirm that nothing is left", clean(&regions.join(", ")))
        }
        Quorum::Undefined(problem) => format!("cannot be confirmed: {problem}"),
    }
}

fn region_table(row: &EndpointRow) -> String {
    let [region_width, state_width, ready_width, desired_width, time_width] = REGION_COLUMNS;
    let line = |region: &str, state: &str, ready: &str, desired: &str, last_sync: &str| {
        let cells = [
            (region, region_width),
            (state, state_width),
            (ready, ready_width),
            (desired, desired_width),
            (last_sync, time_width),
        ];
        format!("  {}\n", columns(&cells))
    };
    let mut table = format!("\n{}", line("REGION", "STATE", "READY", "DESIRED", "LAST SYNC"));
    for region in regions_of(row) {
        match row.region_status.get(&region) {
            Some(entry) => table.push_str(&line(
                &clean(&region),
                &state_word(&entry.state),
                &entry.replicas_ready.to_string(),
                &entry.replicas_desired.to_string(),
                &entry.last_sync.as_deref().map_or_else(|| "-".to_owned(), |at| cut(at, TIME_TO_THE_SECOND_CHARACTERS)),
            )),
            None => table.push_str(&line(&clean(&region), "-", "-", "-", "-")),
        }
    }
    table
}

fn region_details(row: &EndpointRow, region: &str, item: Option<&RegionItem>, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if !row.is_target(region) {
        lines.push("not a target (any more)".to_owned());
    }
    if let Some(entry) = row.region_status.get(region) {
        if entry.lifecycle_id.is_some() && entry.lifecycle_id != row.lifecycle_id {
            lines.push("the entry is of an earlier life of this name".to_owned());
        }
        lines.extend(entry_details(entry, &current_hashes(row, region)));
    } else {
        lines.push("not seen yet: the region has said nothing of this endpoint".to_owned());
    }
    if let Some(item) = item {
        lines.extend(monitor_details(item, now));
    }
    lines
}

fn entry_details(entry: &RegionEntry, current: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    if entry.degraded {
        lines.push(format!(
            "degraded: serves, with {} of {} replicas ready",
            entry.replicas_ready, entry.replicas_desired
        ));
    }
    // Who serves nothing, as asked, looks at no spec.
    let serves_nothing = matches!(entry.state, State::Stopping | State::Stopped);
    if let Some(observed) = entry.observed_spec.as_ref().filter(|_| !serves_nothing) {
        lines.push(format!("spec: {}", spec_words(observed, current)));
    }
    if let Some(canary) = entry.extra.get("canary") {
        lines.push(format!("canary: {}", canary_words(canary)));
    }
    if let Some(rollout) = &entry.rollout {
        lines.push(format!("rollout: {}", rollout_words(rollout)));
    }
    if let Some(autoscaler) = &entry.autoscaler {
        lines.push(format!("autoscaler: {}", autoscaler_words(autoscaler)));
    }
    lines.extend(entry.pods.iter().map(|pod| format!("pods not ready: {}", pod_words(pod))));
    if !entry.blocked_by.is_empty() {
        let objects: Vec<String> = entry.blocked_by.iter().map(|object| clean(object)).collect();
        lines.push(format!("blocked by objects that are not ours: {}", objects.join(", ")));
    }
    lines.extend(entry.conditions.iter().filter(|condition| !is_fine(condition)).map(condition_words));
    if let Some(observations) = entry.absence_observations {
        lines.push(format!("clean-up: nothing left in {observations} complete checks in a row (2 are needed)"));
    }
    if let Some(error) = &entry.error {
        lines.push(format!("error: {}", clean(error)));
    }
    lines
}

fn monitor_details(item: &RegionItem, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(heartbeat) = &item.heartbeat {
        let since = time::parse(&heartbeat.last_heartbeat).map_or_else(
            || "at an unreadable time".to_owned(),
            |at| age::of_seconds(age::seconds_between(at, now)) + " ago",
        );
        let (leader, version) = (clean(&heartbeat.leader), clean(&heartbeat.version));
        lines.push(format!("monitor: heartbeat {since}, leader {leader}, version {version}"));
    }
    if item.frozen {
        lines.push("frozen: an operator asked this region to change nothing".to_owned());
    }
    lines
}

/// Hashes that stand for the row's spec in `region`, whichever of them its monitor reports; none when it is not valid.
fn current_hashes(row: &EndpointRow, region: &str) -> Vec<String> {
    Spec::check(&row.spec).map_or_else(
        |_| Vec::new(),
        |checked| {
            let spec = checked.spec;
            vec![spec.spec_hash(), spec.input_hash(region), spec.template_input_hash(region)]
        },
    )
}

/// What a region has seen, applied and serves, in words. `current` is empty when the row's spec has no hash.
fn spec_words(observed: &ObservedSpec, current: &[String]) -> String {
    let short = |hash: &Option<String>| {
        hash.as_deref().map_or_else(|| "none".to_owned(), |hash| cut(hash, SHORT_HASH_CHARACTERS))
    };
    let ObservedSpec { seen, applied, serving } = observed;
    let details = format!("seen {}, applied {}, serves {}", short(seen), short(applied), short(serving));
    let Some(last_seen) = seen else { return format!("not seen yet ({details})") };
    if !current.is_empty() && !current.contains(last_seen) {
        return format!("the last edit is not seen yet ({details})");
    }
    if applied != seen {
        return format!("seen, not applied yet ({details})");
    }
    if serving != seen {
        return format!("rolling out ({details})");
    }
    format!("up to date ({details})")
}

fn rollout_words(rollout: &Rollout) -> String {
    let mut words =
        format!("{} of {} pods are new, {} of them ready", rollout.updated, rollout.total, rollout.updated_ready);
    if let Some(reason) = &rollout.stuck {
        let _ = write!(words, "; stuck: {}", clean(reason));
    }
    words
}

fn autoscaler_words(autoscaler: &Autoscaler) -> String {
    let Autoscaler { kind, min_replicas, max_replicas, replicas } = autoscaler;
    let who = match kind.as_str() {
        "hpa" => "Kubernetes".to_owned(),
        "keda" => "KEDA".to_owned(),
        other => clean(other),
    };
    format!("{who}, {replicas} now, {min_replicas} to {max_replicas}")
}

fn pod_words(pod: &PodReason) -> String {
    let mut words = format!("{} {}", pod.count, clean(&pod.reason));
    if let Some(code) = pod.exit_code {
        let _ = write!(words, " (exit code {code})");
    }
    if !pod.example.is_empty() {
        let _ = write!(words, ", for example {}", clean(&pod.example));
    }
    if !pod.message.is_empty() {
        let _ = write!(words, ": {}", clean(&pod.message));
    }
    words
}

/// Conditions that are there only while something is in the way; of all others `True` is good news.
const BAD_WHEN_TRUE: [&str; 3] = ["Blocked", "Paused", "Progressing"];
/// Reason of a condition that is `False` because the row asks for no pods.
const AS_ASKED: &str = "Stopped";

/// Whether a condition says nothing that a person should look at.
fn is_fine(condition: &StatusCondition) -> bool {
    // A valid spec may still have fields that change nothing; then the message names them.
    let has_a_remark = condition.kind == "SpecValid" && !condition.message.is_empty();
    let good = if BAD_WHEN_TRUE.contains(&condition.kind.as_str()) { "False" } else { "True" };
    (condition.status == good && !has_a_remark) || condition.reason == AS_ASKED
}

fn condition_words(condition: &StatusCondition) -> String {
    let mut words = format!("{} is {}", clean(&condition.kind), clean(&condition.status));
    if !condition.reason.is_empty() {
        let _ = write!(words, " ({})", clean(&condition.reason));
    }
    if !condition.since.is_empty() {
        let _ = write!(words, " since {}", cut(&condition.since, TIME_TO_THE_SECOND_CHARACTERS));
    }
    if !condition.message.is_empty() {
        let _ = write!(words, ": {}", clean(&condition.message));
    }
    words
}

/// The state's word; `-` when the entry has none.
#[must_use]
pub fn state_word(state: &State) -> String {
    match state.as_str() {
        "" => "-".to_owned(),
        word => clean(word),
    }
}

/// A scalar as text; anything else by its type.
#[must_use]
pub fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) | Value::Number(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        other => format!("({})", other.type_name()),
    }
}

/// Text from a row, safe for a terminal.
fn clean(text: &str) -> String {
    bounded(text, LONGEST_SHOWN_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(seen: &str, applied: &str, serving: &str) -> String {
        let hash = |letter: &str| (!letter.is_empty()).then(|| letter.repeat(64));
        let observed = ObservedSpec { seen: hash(seen), applied: hash(applied), serving: hash(serving) };
        spec_words(&observed, &["b".repeat(64)])
    }

    #[test]
    fn what_a_region_has_seen_applied_and_serves_is_said_in_words() {
        assert_eq!(words("", "", ""), "not seen yet (seen none, applied none, serves none)");
        assert!(words("a", "a", "a").starts_with("the last edit is not seen yet (seen aaaaaaaa, "));
        assert!(words("b", "a", "a").starts_with("seen, not applied yet ("));
        assert!(words("b", "b", "a").starts_with("rolling out ("));
        assert!(words("b", "b", "").starts_with("rolling out ("));
        assert_eq!(words("b", "b", "b"), "up to date (seen bbbbbbbb, applied bbbbbbbb, serves bbbbbbbb)");
    }

    #[test]
    fn a_region_that_serves_nothing_as_asked_is_not_said_to_lag_behind() {
        let observed = ObservedSpec { seen: None, applied: Some("a".repeat(64)), serving: None };
        let details = |state| {
            let entry = RegionEntry { observed_spec: Some(observed.clone()), ..RegionEntry::new(state) };
            entry_details(&entry, &["a".repeat(64)])
        };
        assert_eq!(details(State::Stopped), [""; 0]);
        assert!(details(State::Creating)[0].starts_with("spec: not seen yet ("));
    }

    #[test]
    fn conditions_are_shown_only_when_they_are_not_fine() {
        let condition = |kind: &str, status: &str| StatusCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: "Because".to_owned(),
            message: "of this".to_owned(),
            since: "2026-11-29T17:14:28.123456+00:00".to_owned(),
        };
        assert!(is_fine(&condition("Ready", "True")));
        assert!(is_fine(&condition("Blocked", "False")));
        assert!(is_fine(&StatusCondition { reason: AS_ASKED.to_owned(), ..condition("Ready", "False") }));
        assert!(!is_fine(&condition("Ready", "Unknown")));
        assert!(!is_fine(&condition("Blocked", "True")));
        assert!(!is_fine(&condition("SpecValid", "True")));
        let said = condition_words(&condition("Ready", "False"));
        assert_eq!(said, "Ready is False (Because) since 2026-11-29T17:14:28: of this");
    }

    #[test]
    fn text_of_a_row_cannot_drive_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert_eq!(clean(&"x".repeat(10_000)).chars().count(), LONGEST_SHOWN_CHARACTERS);
    }
}
