//! Prefill dies in the middle of an exchange, and comes back.

use futures::future::join_all;
use gco_bed::wait;
use gco_tests::proxy::Reply;
use gco_tests::real::Report;
use gco_tests::real::engine::ANSWER_BOUND;
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::pair::{GRACE, HAND_OFF, Pair};
use super::{Known, seconds};

/// Prefill is frozen when the requests come to it, and killed while decode waits (with NIXL decode is not asked before).
pub(crate) async fn before_the_answer(pair: &Pair, report: &mut Report, known: &[Known]) -> anyhow::Result<()> {
    pair.prefill.signal(Signal::SIGSTOP)?;
    let began = Instant::now();
    let asked = join_all(known.iter().map(|one| pair.ask(one)));
    let dies = async {
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let count = known.len() as f64;
        match pair.kind {
            super::Kind::Mooncake => {
                pair.decode.reaches("vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", count).await?;
            }
            super::Kind::Nixl => in_flight(pair, "role=\"prefill\"", count).await?,
        }
        let killed = Instant::now();
        pair.prefill.kill().await?;
        Ok::<_, anyhow::Error>(killed)
    };
    let (replies, killed) = tokio::join!(asked, dies);
    let took = killed?.elapsed();
    whole_by_decode(
        pair,
        report,
        known,
        replies,
        "prefill killed before its answer: every client gets its whole answer from decode",
    )?;
    in_time(pair, report, took, began.elapsed(), "the fall-back when prefill is killed before its answer")
}

/// Decode is frozen until prefill has answered and is dead, so that the KV is gone when decode comes for it.
pub(crate) async fn after_the_answer(pair: &Pair, report: &mut Report, known: &[Known]) -> anyhow::Result<()> {
    let finished = pair.prefill.metric("vllm:request_success_total", "").await?;
    pair.decode.signal(Signal::SIGSTOP)?;
    let began = Instant::now();
    let asked = join_all(known.iter().map(|one| pair.ask(one)));
    let dies = async {
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let all = finished + known.len() as f64;
        let reached = pair.prefill.reaches("vllm:request_success_total", "", all).await;
        // The proxy must have read the answers: otherwise they die with the connection, which is the other case.
        let read = if reached.is_ok() { in_flight_gone(pair, "role=\"prefill\"").await } else { Ok(()) };
        let killed = Instant::now();
        pair.prefill.kill().await?;
        pair.decode.signal(Signal::SIGCONT)?;
        reached.and(read)?;
        Ok::<_, anyhow::Error>(killed)
    };
    let (replies, killed) = tokio::join!(asked, dies);
    let took = killed?.elapsed();
    whole_by_decode(
        pair,
        report,
        known,
        replies,
        "prefill killed before the hand-over: every client gets its whole answer from decode",
    )?;
    in_time(pair, report, took, began.elapsed(), "the fall-back when prefill is killed before the hand-over")
}

/// A new process at the same ports, with another engine id: exchanges go on.
pub(crate) async fn comes_back(pair: &mut Pair, report: &mut Report, known: &Known) -> anyhow::Result<()> {
    pair.prefill.restart().await?;
    let took = pair.prefill.is_up().await?;
    report.saw(&pair.named("prefill's start took"), format!("{took:.0?}"));
    // The breaker lets a probe through within half a minute.
    let seen = wait::until("an exchange after the restart", ANSWER_BOUND, async || {
        let reply = pair.ask(known).await.map_err(|problem| format!("{problem:#}"))?;
        let text = reply.said().map_err(|problem| format!("{problem:#}"))?;
        match reply.exchange() {
            "transferred" if text == known.text => Ok("transferred, the same text"),
            other => Err(format!("{other}: {text:?}")),
        }
    })
    .await;
    report.check(
        &pair.named("after prefill's restart exchanges are transferred again"),
        seen.map_err(|problem| problem.to_string()),
    );
    Ok(())
}

fn whole_by_decode(
    pair: &Pair,
    report: &mut Report,
    known: &[Known],
    replies: Vec<anyhow::Result<Reply>>,
    what: &str,
) -> anyhow::Result<()> {
    let (mut wrong, mut reasons) = (Vec::new(), Vec::new());
    for (one, reply) in known.iter().zip(replies) {
        let reply = reply?;
        reasons.push(reply.exchange().to_owned());
        match reply.said() {
            Ok(text) if text == one.text && reply.exchange().starts_with("decode-only; reason=") => {}
            said => wrong.push(format!("{said:?}, {}", reply.exchange())),
        }
    }
    reasons.sort();
    reasons.dedup();
    let seen = format!("{} of {}: {}", known.len() - wrong.len(), known.len(), reasons.join(", "));
    report.check(&pair.named(what), if wrong.is_empty() { Ok(seen) } else { Err(format!("{seen}; {}", wrong[0])) });
    Ok(())
}

fn in_time(
    pair: &Pair,
    report: &mut Report,
    since_kill: std::time::Duration,
    in_all: std::time::Duration,
    what: &str,
) -> anyhow::Result<()> {
    let seen = format!("{} after the kill, {} in all", seconds(since_kill), seconds(in_all));
    let limit = HAND_OFF + GRACE;
    let what =
        format!("{what} is whole within the hand-off deadline ({} s) + {} s", HAND_OFF.as_secs(), GRACE.as_secs());
    report.check(&pair.named(&what), if since_kill <= limit { Ok(seen) } else { Err(seen) });
    Ok(())
}

/// Waits until the proxy has so many requests at engines of a role.
async fn in_flight(pair: &Pair, role: &str, least: f64) -> anyhow::Result<()> {
    wait::until("the requests to be at prefill", ANSWER_BOUND, async || {
        let now = pair.proxy.metric("gco_proxy_in_flight", role).await.map_err(|problem| format!("{problem:#}"))?;
        if now >= least { Ok(()) } else { Err(now.to_string()) }
    })
    .await?;
    Ok(())
}

/// Waits until the proxy has no request at engines of a role.
async fn in_flight_gone(pair: &Pair, role: &str) -> anyhow::Result<()> {
    wait::until("prefill's answers to be read", ANSWER_BOUND, async || {
        let now = pair.proxy.metric("gco_proxy_in_flight", role).await.map_err(|problem| format!("{problem:#}"))?;
        if now == 0.0 { Ok(()) } else { Err(now.to_string()) }
    })
    .await?;
    Ok(())
}
