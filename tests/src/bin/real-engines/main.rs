//! The proxy in front of real engines; started by `tests/real-engines.sh`, which installs what it needs.
//!
//! Usage: `real-engines [small|full] [mooncake|nixl]...`; `full` has the numbers whose results are quoted, and both
//! connectors are tried when none is named. Prints one line per check, ends with 1 when one does not hold.

mod engine_alone;
mod exchanges;
mod faults;
mod hostile;
mod pair;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_tests::proxy::Reply;
use gco_tests::real::bodies::{Comparable, comparable};
use gco_tests::real::{RealEngine, RealEngineSpec, Report};
use gco_tests::size::Size;

use pair::{Kind, Pair};

/// A request, and what a plain engine answers to it.
#[derive(Clone, Debug)]
struct Known {
    request: Comparable,
    text: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let (size, kinds) = arguments()?;
    let mut report = Report::default();
    let count = size.choose(24, 200);
    report.doing(
        "a plain engine: the answers to compare with (its start takes half a minute, on a busy machine minutes)",
    );
    let (known, spare) = match plain_answers(&mut report, count).await {
        Ok(known) => known,
        Err(problem) => {
            report.check("a plain engine answers", Err::<&str, _>(format!("{problem:#}")));
            return Ok(if report.ends() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    };
    for kind in kinds {
        if let Err(problem) = with(kind, &mut report, size, &known, &spare).await {
            report
                .check(&format!("{}: the suite comes to its end", kind.word()), Err::<&str, _>(format!("{problem:#}")));
        }
    }
    Ok(if report.ends() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn arguments() -> anyhow::Result<(Size, Vec<Kind>)> {
    let (mut size, mut kinds) = (Size::Small, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "small" => size = Size::Small,
            "full" => size = Size::Full,
            "mooncake" => kinds.push(Kind::Mooncake),
            "nixl" => kinds.push(Kind::Nixl),
            other => bail!("unknown argument {other:?}; allowed: small, full, mooncake, nixl"),
        }
    }
    if kinds.is_empty() {
        kinds = vec![Kind::Mooncake, Kind::Nixl];
    }
    Ok((size, kinds))
}

/// What a plain engine answers: to the requests of the exchanges, and to some more for the faults.
async fn plain_answers(report: &mut Report, count: usize) -> anyhow::Result<(Vec<Known>, Vec<Known>)> {
    let engine = RealEngineSpec::plain("plain").start()?;
    let took = engine.is_up().await?;
    report.saw("a plain engine's start took", format!("{took:.0?}"));
    let mut known = Vec::new();
    for request in comparable(count, 1) {
        known.push(answer_of(&engine, request).await?);
    }
    let mut spare = Vec::new();
    for request in comparable(16, 2) {
        spare.push(answer_of(&engine, request).await?);
    }
    let texts: std::collections::BTreeSet<&str> = known.iter().map(|one| one.text.as_str()).collect();
    // Otherwise equal answers would say nothing about whose prompt was read.
    let differ = texts.len() * 10 >= known.len() * 9;
    let seen = format!("{} answers, {} of them different", known.len(), texts.len());
    report.check("a plain engine's answers follow from their prompts", if differ { Ok(seen) } else { Err(seen) });
    engine.kill().await?;
    Ok((known, spare))
}

async fn answer_of(engine: &RealEngine, request: Comparable) -> anyhow::Result<Known> {
    let answer = engine.post(request.path, &request.whole()).await?;
    let reply =
        Reply { status: answer.status.as_u16(), headers: http::HeaderMap::new(), body: answer.body, whole: true };
    let text = reply.said().with_context(|| format!("asking {}", request.body))?;
    Ok(Known { request, text })
}

/// Everything with one connector.
async fn with(kind: Kind, report: &mut Report, size: Size, known: &[Known], spare: &[Known]) -> anyhow::Result<()> {
    report.doing(&format!("{}: starting prefill and decode (about a minute, on a busy machine five)", kind.word()));
    let mut pair = Pair::start(kind, report).await?;
    report.doing(&format!("{}: {} exchanges", kind.word(), known.len()));
    exchanges::check(&pair, report, size, known).await?;
    report.doing(&format!("{}: hostile bodies", kind.word()));
    hostile::check(&pair, report, size, &spare[0]).await?;
    report.doing(&format!("{}: routes that are not split", kind.word()));
    engine_alone::other_routes(&pair, report).await?;
    report.doing(&format!("{}: prefill dies before it answers", kind.word()));
    faults::before_the_answer(&pair, report, &spare[1..5]).await?;
    report.doing(&format!("{}: prefill comes back with another engine id", kind.word()));
    faults::comes_back(&mut pair, report, &spare[5]).await?;
    report.doing(&format!("{}: prefill dies between its answer and the hand-over", kind.word()));
    faults::after_the_answer(&pair, report, &spare[6..10]).await?;
    report.doing(&format!("{}: what a real engine does by itself", kind.word()));
    faults::comes_back(&mut pair, report, &spare[10]).await?;
    engine_alone::check(&pair, report).await
}

/// Seconds with two digits.
fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}
