//! Prefill dies in the middle of an exchange, and comes back.

use std::time::Duration;

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
            super::Kind::Nixl => {
                in_flight(pair, "the requests to be at prefill", |now| now >= count).await?;
            }
        }
        let killed = Instant::now();
        pair.prefill.kill().await?;
        Ok::<_, anyhow::Error>(killed)
    };
    let (replies, killed) = tokio::join!(asked, dies);
    judge(pair, report, known, replies, "prefill killed before its answer", [killed?.elapsed(), began.elapsed()])
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
        let read = if reached.is_ok() {
            in_flight(pair, "prefill's answers to be read", |now| now == 0.0).await
        } else {
            Ok(())
        };
        let killed = Instant::now();
        pair.prefill.kill().await?;
        pair.decode.signal(Signal::SIGCONT)?;
        reached.and(read)?;
        Ok::<_, anyhow::Error>(killed)
    };
    let (replies, killed) = tokio::join!(asked, dies);
    judge(pair, report, known, replies, "prefill killed before the hand-over", [killed?.elapsed(), began.elapsed()])
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

/// Every client has its whole answer from decode, and in time: `since_kill` and `in_all` tell how long it took.
fn judge(
    pair: &Pair,
    report: &mut Report,
    known: &[Known],
    replies: Vec<anyhow::Result<Reply>>,
    what: &str,
    [since_kill, in_all]: [Duration; 2],
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
    report.check(
        &pair.named(&format!("{what}: every client gets its whole answer from decode")),
        if wrong.is_empty() { Ok(seen) } else { Err(format!("{seen}; {}", wrong[0])) },
    );
    let seen = format!("{} after the kill, {} in all", seconds(since_kill), seconds(in_all));
    let (deadline, grace) = (HAND_OFF.as_secs(), GRACE.as_secs());
    report.check(
        &pair.named(&format!("{what}: whole within the hand-off deadline ({deadline} s) + {grace} s")),
        if since_kill <= HAND_OFF + GRACE { Ok(seen) } else { Err(seen) },
    );
    Ok(())
}

/// Waits until the number of the proxy's requests at prefill is as it should be.
async fn in_flight(pair: &Pair, what: &str, is_reached: impl Fn(f64) -> bool) -> anyhow::Result<()> {
    wait::until(what, ANSWER_BOUND, async || {
        let now = pair.proxy.metric("gco_proxy_in_flight", "role=\"prefill\"").await;
        let now = now.map_err(|problem| format!("{problem:#}"))?;
        if is_reached(now) { Ok(()) } else { Err(now.to_string()) }
    })
    .await?;
    Ok(())
}
