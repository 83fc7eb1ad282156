//! The report: gates first, then every figure of every contender, then what may make one doubt them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::figures::{FIGURES, Figure, LIMITS, Results};
use crate::gates::{Against, Bound, GATES, Gate, Verdict};
use crate::machine::IDLE_SHARE;
use crate::peers::Contender;
use crate::statistics::Spread;

/// The share of a core that others may have had before a cell counts as disturbed.
const DISTURBED_SHARE: f64 = IDLE_SHARE;

/// The first part of the report, as Markdown: what was run, and whether the gates hold.
#[must_use]
pub fn gates(about: &Value, results: &Results) -> String {
    let mut text = String::from("# gco-proxy beside its peers\n\n");
    head(&mut text, about);
    text.push_str("## Gates\n\nOur figure divided by the peer's of the same round: median [least to most]. ");
    text.push_str("Figures without a peer stand for themselves.\n\n");
    gate_table(&mut text, results, false);
    text.push_str("\n## What would be better still\n\n");
    gate_table(&mut text, results, true);
    text
}

/// The rest of the report: every figure, and what may make one doubt them.
#[must_use]
pub fn figures(results: &Results) -> String {
    let mut text = String::from("\n## Figures\n\nMedian [least to most] over the rounds.\n\n");
    figure_table(&mut text, results, &FIGURES);
    text.push_str("\n## Ratios: gco-proxy to each, in the same round\n\n");
    ratios(&mut text, results);
    text.push_str("\n## Whether these figures can be trusted\n\n");
    trust(&mut text, results);
    text
}

fn head(text: &mut String, about: &Value) {
    // Writing to a string cannot fail, here and below.
    for name in ["date", "machine", "commit", "arguments"] {
        if let Some(value) = about[name].as_str() {
            let _ = writeln!(text, "* {name}: {value}");
        }
    }
    let list = |name: &str| about[name].as_array().cloned().unwrap_or_default();
    for entry in list("contenders") {
        let _ = writeln!(text, "* {}: {}", word(&entry["name"]), word(&entry["version"]));
    }
    for entry in list("missing") {
        let _ = writeln!(text, "* **{} is not here**: {}", word(&entry["name"]), word(&entry["reason"]));
    }
    text.push('\n');
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("unknown")
}

fn gate_table(text: &mut String, results: &Results, is_stretch: bool) {
    text.push_str("| figure | against | target | measured | rounds | |\n|---|---|---|---|---|---|\n");
    let chosen = || GATES.iter().filter(|gate| gate.is_stretch == is_stretch);
    for gate in chosen() {
        let measured = gate.measured(results);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            gate.figure.title,
            against(gate),
            target(gate.bound),
            measured.map_or("-".to_owned(), spread),
            measured.map_or(0, |spread| spread.count),
            gate.verdict(results).word()
        );
    }
    let count = |verdict| chosen().filter(|gate| gate.verdict(results) == verdict).count();
    let (held, missed, not) = (count(Verdict::Held), count(Verdict::Missed), count(Verdict::NotMeasured));
    let _ = writeln!(text, "\n{held} held, {missed} missed, {not} not measured.");
}

fn against(gate: &Gate) -> String {
    match gate.against {
        Against::Peer(peer) => peer.name().to_owned(),
        Against::MedianOf(peer) => format!("{} (ratio of the medians)", peer.name()),
        Against::Itself => "itself".to_owned(),
    }
}

fn target(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(bound) => format!("≥ {bound}"),
        Bound::AtMost(bound) => format!("≤ {bound}"),
    }
}

fn row(text: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let _ = write!(text, "| {first} |");
    for cell in cells {
        let _ = write!(text, " {cell} |");
    }
    text.push('\n');
}

fn figure_table(text: &mut String, results: &Results, figures: &[Figure]) {
    let contenders = results.contenders();
    row(text, "figure", contenders.iter().map(|contender| contender.name().to_owned()));
    row(text, "---", contenders.iter().map(|_| "---".to_owned()));
    for figure in figures {
        let cells = contenders.iter().map(|contender| {
            let is_always_zero = figure.is_above_base && contender.is_base();
            let found = if is_always_zero { None } else { results.spread(*figure, *contender) };
            found.map_or("-".to_owned(), spread)
        });
        row(text, figure.title, cells);
    }
}

fn ratios(text: &mut String, results: &Results) {
    let peers: Vec<_> = results.contenders().into_iter().filter(|peer| *peer != Contender::GcoProxy).collect();
    row(text, "figure", peers.iter().map(|contender| contender.name().to_owned()));
    row(text, "---", peers.iter().map(|_| "---".to_owned()));
    for figure in FIGURES.iter().filter(|figure| !figure.is_above_base) {
        row(text, figure.title, peers.iter().map(|peer| results.ratio(*figure, *peer).map_or("-".to_owned(), spread)));
    }
}

fn trust(text: &mut String, results: &Results) {
    text.push_str(
        "Who was the limit: a proxy that had not nearly all of its core, while engine and load had all of theirs, could have \
         done more requests or events than its figures say.\n\n",
    );
    figure_table(text, results, &LIMITS);
    text.push_str(
        "\nRequests without the right answer (status, ticket, count of events, end), and without a whole one; how many of the \
         engine's decodes brought what prefill gave; cells in which others had more than 8 % of a core, or \
         before which the cores were not idle.\n\n",
    );
    text.push_str("| | right | wrong | failed | handed over | cells | disturbed | most of a core to others |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    for contender in results.contenders() {
        let of = || results.records().filter(move |record| record.contender == contender.name());
        let sum = |name: &str| of().filter_map(|record| record.get(name)).sum::<f64>();
        let foreign = || of().filter_map(|record| record.get("foreign_share"));
        let is_disturbed = |share: Option<f64>, was_idle: Option<f64>| {
            share.is_some_and(|share| share > DISTURBED_SHARE) || was_idle == Some(0.0)
        };
        let disturbed = of().filter(|record| is_disturbed(record.get("foreign_share"), record.get("was_idle"))).count();
        let decodes = sum("decodes");
        let handed = if decodes > 0.0 { 100.0 * sum("decodes_from_remote") / decodes } else { 0.0 };
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.0} | {handed:.1} % | {} | {disturbed} | {} |",
            contender.name(),
            sum("good"),
            sum("wrong"),
            sum("failed"),
            of().count(),
            foreign().reduce(f64::max).map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        );
    }
    let problems: Vec<_> = results.records().filter(|record| record.problem.is_some()).collect();
    if !problems.is_empty() {
        text.push_str("\nWhat went wrong last in each cell where something did:\n\n");
        for record in problems {
            let problem = record.problem.as_deref().unwrap_or_default().replace('\n', " ");
            let shown: String = problem.chars().take(300).collect();
            let _ = writeln!(text, "* round {}, {}, {}: {shown}", record.round + 1, record.contender, record.cell);
        }
    }
}

fn spread(spread: Spread) -> String {
    if spread.count == 1 {
        return number(spread.median);
    }
    format!("{} [{} to {}]", number(spread.median), number(spread.least), number(spread.most))
}

/// A number with three digits that mean something.
fn number(number: f64) -> String {
    match number.abs() {
        size if size >= 10_000.0 => {
            let thousands = (number / 1_000.0).trunc();
            format!("{thousands},{:03}", (number - thousands * 1_000.0).abs().trunc())
        }
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::record;
    use crate::figures::{RATE_64, WRITTEN};

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let shown = [64_569.4, 1_228.0, 15.53, 0.617, -242.0, -24.55].map(number);
        assert_eq!(shown, ["64,569", "1228", "15.5", "0.62", "-242", "-24.6"]);
    }

    #[test]
    fn the_report_marks_each_gate_and_names_who_is_missing() {
        let about = serde_json::json!({
            "date": "today", "machine": "this",
            "contenders": [{"name": "nginx", "version": "nginx/1.22.1"}],
            "missing": [{"name": "haproxy", "reason": "no apt-get"}],
        });
        let mut wrong = record(0, Contender::Nginx, RATE_64, 100.0);
        wrong.problem = Some("status 502".to_owned());
        let results = Results::new([wrong, record(0, Contender::GcoProxy, RATE_64, 60.0)]);
        let report = gates(&about, &results);
        assert!(report.contains("| requests/s, c=64 | nginx | ≥ 0.53 | 0.60 | 1 | held |"), "{report}");
        assert!(report.contains("| requests/s, c=64 | nginx | ≥ 0.75 | 0.60 | 1 | **missed** |"));
        assert!(report.contains(&format!("| {} | itself | ≤ 160 | - | 0 | not measured |", WRITTEN.title)));
        assert!(report.contains("**haproxy is not here**: no apt-get"));
        assert!(figures(&results).contains("status 502"));
    }
}
